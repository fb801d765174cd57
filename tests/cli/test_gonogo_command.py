"""`polykv gonogo`: the table, resume, engines alike, and a policy that replay can use."""

import json

import duckdb
import pytest

from polykv.cli import main
from polykv.cli.gonogo import heat_map
from tests.tiny_store import write_tiny_store

QUICK = ["--atoms", "24", "--sparsity", "2", "--iterations", "3", "-q"]


@pytest.fixture(scope="module")
def roomy(tmp_path_factory):
    """A store with more calibrate vectors than atoms."""
    return write_tiny_store(tmp_path_factory.mktemp("stores") / "roomy", n_tokens=64)


@pytest.fixture(scope="module")
def judged(roomy, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "gonogo"
    assert main(["gonogo", roomy, "--out", str(out), "--serial", "--write-policy", *QUICK]) == 0
    return out


def test_a_row_a_layer_and_stream_with_the_old_rule_beside_the_verdict(judged):
    rows = duckdb.sql(
        f"select layer, stream, verdict, legacy_verdict from '{judged}/gonogo.parquet' where is_primary order by 1, 2"
    ).fetchall()
    assert [row[:2] for row in rows] == [(0, "key"), (0, "value"), (5, "key"), (5, "value")]
    assert {row[3] for row in rows} == {"go"}  # random vectors: the old rule says go even so
    assert "go" not in {row[2] for row in rows}
    receipt = json.loads((judged / "gonogo.json").read_text())
    assert receipt["n_failed"] == 0
    assert receipt["verdict"] != "go"


def test_the_map_shows_every_layer_and_stream():
    rows = [
        {"layer": layer, "kv_head": -1, "stream": stream, "verdict": verdict}
        for layer, stream, verdict in [(0, "key", "go"), (0, "value", "no-go"), (14, "key", "inconclusive"), (14, "value", None)]
    ]  # fmt: skip
    assert heat_map(rows) == [
        "layer         0 14",
        "key           +  ?",
        "value         -  x",
        "(+ go, - no-go, ? inconclusive, x failed)",
    ]


def test_a_rerun_computes_nothing_and_ends_with_the_same_table(roomy, judged, capsys):
    before = (judged / "gonogo.parquet").read_bytes()
    assert main(["gonogo", roomy, "--out", str(judged), "--serial", "--json", *QUICK]) == 0
    assert (judged / "gonogo.parquet").read_bytes() == before
    sessions = json.loads((judged / "run.json").read_text())["sessions"]
    assert sessions[-1]["gonogo"] == {"jobs_run": 0, "jobs_reused": 4, "failures": {}}


def test_a_lost_part_is_computed_again_to_the_same_bytes(roomy, judged):
    before = (judged / "gonogo.parquet").read_bytes()
    next((judged / "parts").glob("gonogo-L005-key-*")).unlink()
    assert main(["gonogo", roomy, "--out", str(judged), "--serial", *QUICK]) == 0
    assert (judged / "gonogo.parquet").read_bytes() == before


@pytest.mark.slow
def test_two_workers_agree_with_one_process(roomy, judged, tmp_path):
    assert main(["gonogo", roomy, "--out", str(tmp_path / "two"), "--workers", "2", *QUICK]) == 0
    for name in ("gonogo.parquet", "gonogo.json"):
        assert (tmp_path / "two" / name).read_bytes() == (judged / name).read_bytes()
    mine, theirs = ({p.name for p in (folder / "artifacts").iterdir()} for folder in (tmp_path / "two", judged))
    assert mine == theirs


def test_a_learned_dictionary_is_a_policy_that_replay_takes(roomy, judged, tmp_path, capsys):
    policy = judged / "sparse.json"
    arguments = ["--ks", "full", "--serial", "-q", "--fail-on", "never"]
    assert main(["replay", roomy, "--out", str(tmp_path / "run"), "--policy", str(policy), *arguments]) == 0
    assert "sparse holds" in capsys.readouterr().out


def test_a_policy_whose_artifact_is_gone_is_refused_before_any_work(roomy, judged, tmp_path, capsys):
    moved = tmp_path / "sparse.json"
    moved.write_bytes((judged / "sparse.json").read_bytes())
    assert main(["replay", roomy, "--out", str(tmp_path / "run"), "--policy", str(moved), "-q"]) == 3
    assert "the artifact is missing" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_fewer_vectors_than_atoms_are_failed_rows_with_the_reason(roomy, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["gonogo", roomy, "--out", str(out), "--serial", "--atoms", "4096", "-q"]) == 3
    found = duckdb.sql(f"select distinct status, reason from '{out}/gonogo.parquet' where is_primary").fetchall()
    assert {row[0] for row in found} == {"failed"}
    assert all("4096" in row[1] for row in found)
