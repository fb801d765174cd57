"""The command line: what it prints, what it exits with, and that no mistake ends in a traceback."""

import json
import shutil

import duckdb
import polars as pl
import pytest

from polykv.cli import main
from tests.tiny_store import write_tiny_store

QUICK = ["--serial", "--ks", "4,full", "-q"]


def run(capsys, *argv):
    code = main(list(argv))
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    return code, said.out, said.err


@pytest.fixture(scope="module")
def finished(store, tmp_path_factory):
    out = str(tmp_path_factory.mktemp("runs") / "done")
    assert main(["replay", store, "--out", out, "--policy", "int8,two_tier", *QUICK]) == 0
    return out


def test_inspect_says_what_a_store_holds(capsys, store):
    code, out, _ = run(capsys, "inspect", store)
    assert code == 0
    assert "tiny-random" in out
    assert "2 calibrate, 6 select, 6 confirm" in out
    code, out, _ = run(capsys, "inspect", store, "--json")
    assert json.loads(out)["n_cells"] == 4


def test_verify_reads_a_sound_store(capsys, store):
    code, out, _ = run(capsys, "verify", store)
    assert (code, "sound" in out) == (0, True)
    code, out, _ = run(capsys, "verify", store, "--json")
    assert json.loads(out)["ok"] is True


DAMAGE = {
    "a flipped byte": lambda store: _flip(store / "layers/005/k/c.3.1.0.0"),
    "a deleted chunk": lambda store: (store / "layers/005/k/c.3.1.0.0").unlink(),
    "a 0-byte file": lambda store: (store / "layers/005/k/c.3.1.0.0").write_bytes(b""),
    "a truncated chunk": lambda store: _truncate(store / "layers/005/k/c.3.1.0.0"),
    "no seal": lambda store: (store / "seal.json").unlink(),
}


def _flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def _truncate(path):
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_has_a_name_and_exit_code_3(capsys, store, tmp_path, kind):
    broken = tmp_path / "broken"
    shutil.copytree(store, broken)
    DAMAGE[kind](broken)
    code, _, err = run(capsys, "verify", str(broken), "-q")
    assert code == 3
    assert "never finished" in err if kind == "no seal" else "layer 5, kv_head 1" in err
    code, out, err = run(capsys, "replay", str(broken), "--out", str(tmp_path / "run"), *QUICK)
    assert code == 3
    assert "never finished" in err if kind == "no seal" else "layer 5, kv_head 1" in out


def test_a_replay_ends_with_a_sentence_and_tables_that_others_read(capsys, finished):
    code, out, _ = run(capsys, "show", finished)
    assert code == 0
    assert "tiny-random, 4 layer × head cells: int8 holds" in out
    results = f"{finished}/results.parquet"
    counted = duckdb.sql(f"select count(*) from '{results}' where row_kind = 'candidate'").fetchall()
    assert counted == [(4 * 2 * 2 * 2,)]
    assert pl.read_parquet(results).filter(pl.col("row_kind") == "window_only").height == 4 * 2 * 2


def test_a_second_run_computes_nothing(capsys, store, finished):
    code, out, _ = run(capsys, "replay", store, "--out", finished, "--policy", "int8,two_tier", *QUICK, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["replay"]["rows_computed"] == 0
    assert found["verdict"] == "pass"


def test_a_run_directory_of_another_configuration_is_refused(capsys, store, finished):
    code, _, err = run(capsys, "replay", store, "--out", finished, "--policy", "int8", *QUICK)
    assert code == 2
    assert "policies" in err


def test_the_verdict_is_the_exit_code(capsys, store, tmp_path):
    arguments = ["replay", store, "--policy", "int8", *QUICK, "--gate", "output_cosine_mean>=0.9999999"]
    assert run(capsys, *arguments, "--out", str(tmp_path / "a"))[0] == 1
    assert run(capsys, *arguments, "--out", str(tmp_path / "a"), "--fail-on", "never")[0] == 0


def test_too_few_passages_decide_nothing(capsys, tmp_path):
    small = write_tiny_store(tmp_path / "small", splits=("calibrate", "select", "confirm"))
    arguments = ["replay", small, "--policy", "exact", *QUICK, "--out", str(tmp_path / "run")]
    code, out, _ = run(capsys, *arguments)
    assert (code, "inconclusive" in out) == (0, True)
    assert run(capsys, *arguments, "--fail-on", "inconclusive")[0] == 1


def test_heads_that_ignore_their_keys_never_pass_in_any_table(capsys, tmp_path):
    flat = write_tiny_store(tmp_path / "flat", key_scale=0.0)
    code, out, _ = run(capsys, "replay", flat, "--policy", "exact", *QUICK, "--out", str(tmp_path / "run"))
    assert (code, "insensitive" in out) == (0, True)
    for table in ("results", "selection"):
        found = duckdb.sql(f"select distinct verdict from '{tmp_path}/run/{table}.parquet'").fetchall()
        assert ("pass",) not in found
        assert ("insensitive",) in found
    assert [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith(".")] in ([], [".lock"])


def test_a_dry_run_writes_nothing(capsys, store, tmp_path):
    code, out, _ = run(capsys, "replay", store, "--out", str(tmp_path / "run"), "--dry-run")
    assert code == 0
    assert "nothing was written" in out
    assert not (tmp_path / "run").exists()


def test_calibrate_takes_a_store_and_says_what_it_skipped(capsys, store, tmp_path):
    code, _, err = run(capsys, "calibrate", "--store", store, "--out", str(tmp_path / "r"), "--serial", "--ks", "full", "--policy", "int8", "--no-gonogo")  # fmt: skip
    assert code == 0
    assert "skipped: no model" in err


def replayed(*extra):
    return lambda store, tmp: ["replay", store, "--out", str(tmp / "run"), *extra]


MISTAKES = {
    "no store": (lambda store, tmp: ["replay", str(tmp / "nothing"), "--out", str(tmp / "run")], "nothing"),
    "a store that is a file": (lambda store, tmp: ["inspect", __file__], "is a file"),
    "a folder that is no store": (lambda store, tmp: ["verify", str(tmp)], str),
    "no run": (lambda store, tmp: ["show", str(tmp / "nothing")], "does not exist"),
    "an unknown policy": (replayed("--policy", "two_teir"), "did you mean 'two_tier'"),
    "a policy file that is not there": (replayed("--policy", "mine.json"), "mine.json"),
    "no budget": (replayed("--ks", ","), "must not be empty"),
    "budget 0": (replayed("--ks", "0,8"), "candidate_k 0"),
    "a negative budget": (replayed("--ks=-4"), "candidate_k -4"),
    "a budget that is no number": (replayed("--ks", "many"), "many"),
    "a gate that is no gate": (replayed("--gate", "cosine"), "metric>=limit"),
    "a gate on nothing we measure": (replayed("--gate", "colour>=1"), "colour"),
    "a gate that nothing can pass": (replayed("--gate", "output_cosine_mean<=0.9"), "even a perfect replay"),
    "a gate on what was not captured": (replayed("--gate", "label_kl_mean<=0.1"), "holds no logits"),
    "a negative seed": (replayed("--seed", "-1"), "seed is -1"),
    "a budget of more than 64 bits": (replayed("--ks", "99999999999999999999"), "is beyond"),
    "a scheduler of no name": (replayed("--scheduler", ""), "engine is ''"),
    "an infinite gate": (replayed("--gate", "output_cosine_mean>=inf"), "finite"),
    "a pool that leaves no shell": (replayed("--shared-tokens", "48"), "48"),
    "an empty pool": (replayed("--shared-tokens", "0"), "shared_tokens is 0"),
    "two engines": (replayed("--serial", "--workers", "2"), "exclude each other"),
    "a scheduler that is no address": (replayed("--scheduler", "somewhere"), "somewhere"),
    "a run directory in a bucket": (lambda store, tmp: ["replay", store, "--out", "s3://b/run"], "local or shared"),
    "an unknown command": (lambda store, tmp: ["replai"], "Did you mean 'replay'"),
    "an unknown option": (replayed("--polcy", "int8"), "--policy"),
    "store and model": (
        lambda store, tmp: ["calibrate", "--store", store, "--model", "smollm2", "--out", str(tmp / "r")],
        "exclude" and "both given",
    ),
    "a capture without a model": (lambda store, tmp: ["capture", "--corpus", "a.txt", "--out", str(tmp / "c")], "--model"),
    "a capture without a corpus": (lambda store, tmp: ["capture", "--model", "m", "--out", str(tmp / "c")], "--corpus"),
    "layers that are no numbers": (
        lambda store, tmp: ["capture", "--model", "m", "--corpus", "a", "--layers", "all", "--out", str(tmp / "c")],
        "--layers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_words_and_exits_with_2_or_3(capsys, store, tmp_path, mistake):
    argv, words = MISTAKES[mistake]
    code, _, err = run(capsys, *argv(store, tmp_path))
    assert code == 2, err
    if isinstance(words, str):
        assert words in err
    assert err.strip()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "command",
    [
        "",
        "calibrate",
        "capture",
        "certify",
        "gonogo",
        "inspect",
        "policy",
        "query",
        "receipt",
        "replay",
        "report",
        "show",
        "verify",
    ],
)
def test_help_teaches_with_an_example(capsys, command):
    code, out, _ = run(capsys, *command.split(), "--help")
    assert code == 0
    assert "polykv " in out
