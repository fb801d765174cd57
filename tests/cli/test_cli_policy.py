"""`polykv policy`: what it prints and writes, and what a mistake gets."""

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from polykv.cli import main
from polykv.codecs.registry import build_codec
from polykv.policy import CompressionPolicy
from polykv.policy_files import load_policy
from polykv.types import STREAMS
from tests.report.run_samples import write_run

SAMPLE = str(Path(__file__).parents[2] / "data" / "smollm2-sample")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return str(write_run(tmp_path_factory.mktemp("runs") / "made"))


@pytest.fixture(scope="module")
def exported(made, tmp_path_factory):
    target = str(tmp_path_factory.mktemp("policies") / "int8.json")
    assert main(["policy", "export", made, "--policy", "int8", "-o", target, "-q"]) == 0
    return target


def run(capsys, *argv):
    code = main(list(argv))
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    return code, said.out, said.err


def test_export_prints_or_writes(capsys, made, exported, tmp_path):
    code, out, _ = run(capsys, "policy", "export", made, "--policy", "int8")
    assert (code, out) == (0, Path(exported).read_text())
    code, out, err = run(capsys, "policy", "export", made, "--policy", "rough", "-o", str(tmp_path / "rough.csv"))
    assert (code, out) == (0, "")
    assert "0 of 6 cells compressed, the rest exact" in err
    assert (tmp_path / "rough.csv").read_text().startswith("policy,layer,kv_head,verdict,kept,candidate_k")


def test_show_says_what_a_file_does(capsys, exported):
    code, out, _ = run(capsys, "policy", "show", exported)
    assert code == 0
    assert "policy       int8" in out
    assert "6 of 6 compressed, 0 kept exact" in out
    assert "tiny <model> & co" in out
    assert out.count(" pass ") == 6


def test_show_takes_named_policies_and_files_without_evidence(capsys, tmp_path):
    code, out, _ = run(capsys, "policy", "show", "two_tier")
    assert code == 0
    assert "fib_k4_n32 (query_mode=asymmetric" in out
    plain = tmp_path / "plain.json"
    CompressionPolicy("plain", cells={"10/2": {"candidate_k": 8}, "2/0": {"candidate_k": "full"}}).save(plain)
    code, out, _ = run(capsys, "policy", "show", str(plain))
    assert [line.split()[:3] for line in out.splitlines()[-2:]] == [["2", "0", "full"], ["10", "2", "8"]]


def test_show_for_machines(capsys, exported):
    code, out, _ = run(capsys, "policy", "show", exported, "--json")
    told = json.loads(out)
    assert code == 0
    assert told["digest"] == CompressionPolicy.load(exported).digest()
    assert set(told["evidence"]["cells"]) == {"0/0", "0/1", "3/0", "3/1", "7/0", "7/1"}


def test_schema_is_printed_and_holds(capsys, exported):
    code, out, _ = run(capsys, "policy", "schema")
    assert code == 0
    jsonschema.validate(json.loads(Path(exported).read_text()), json.loads(out))


def test_an_exported_policy_is_replayed(capsys, store, tmp_path):
    first, again = str(tmp_path / "first"), str(tmp_path / "again")
    quick = ["--serial", "--ks", "8,full", "-q", "--fail-on", "never"]
    assert run(capsys, "replay", store, "--out", first, "--policy", "two_tier", *quick)[0] == 0
    mine = str(tmp_path / "mine.json")
    assert run(capsys, "policy", "export", first, "-o", mine)[0] == 0
    assert run(capsys, "replay", store, "--out", again, "--policy", mine, *quick)[0] == 0


MISTAKES = {
    "no run": (["export", "{tmp}/nothing"], 2, "does not exist; a run directory was expected"),
    "several policies": (["export", "{made}"], 2, "choose one with --policy"),
    "an unknown policy": (["export", "{made}", "--policy", "int"], 2, "did you mean 'int8'"),
    "a policy file of no .json": (["export", "{made}", "--policy", "int8", "-o", "{tmp}/x.txt"], 2, "must end in .json"),
    "a folder that is not there": (["export", "{made}", "--policy", "int8", "-o", "{tmp}/no/x.json"], 2, "cannot be written"),
    "an unknown format": (["export", "{made}", "--format", "xml"], 2, "xml"),
    "a file that is not there": (["show", "{tmp}/x.json"], 2, "x.json"),
    "a name of no policy": (["show", "two_teir"], 2, "did you mean 'two_tier'"),
    "a file that is no policy": (["show", "{made}/run.json"], 2, "schema_version"),
    "an unknown command": (["exprot"], 2, "export"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_words(capsys, made, tmp_path, mistake):
    argv, expected, words = MISTAKES[mistake]
    code, out, err = run(capsys, "policy", *(word.format(made=made, tmp=tmp_path) for word in argv))
    assert (code, words in err) == (expected, True), err
    assert out == ""


def test_fit_refuses_a_folder_that_cannot_be_written_before_it_fits(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    code, out, err = run(capsys, "policy", "fit", SAMPLE, "--layers", "0", "--out", str(tmp_path / "a" / "b"), "--dry-run")  # fmt: skip
    assert (code, out) == (2, "")
    assert f"{tmp_path} may not be written to" in err


@pytest.mark.parametrize("options", [("--stages", "8", "--bits", "5"), ("--stages", "3", "--bits", "6", "--gain")])
def test_fit_tells_the_bytes_that_its_codecs_take(capsys, tmp_path, options):
    asked = ("--layers", "0", "--iterations", "1", "--beam", "1", *options, "--out", str(tmp_path), "--json")
    code, out, _ = run(capsys, "policy", "fit", SAMPLE, *asked)
    told = json.loads(out)
    policy, load = load_policy(told["policy"])
    entries = [cell["pool"][stream] for cell in policy.cells.values() for stream in STREAMS]
    codecs = [build_codec(entry, 64, artifacts=load) for entry in entries]
    rows = np.random.default_rng(0).normal(size=(10, 64)).astype(np.float32)
    assert (code, told["bytes_per_token"]) == (0, sum(codec.nbytes(codec.encode(rows)) for codec in codecs) / 10)
    assert told["codebook_bytes"] == sum(codec.side_nbytes() for codec in codecs)
    assert told["float16_ratio"] == pytest.approx(2 * 64 * len(codecs) / told["bytes_per_token"])


def test_fit_trains_codebooks_that_a_replay_takes(capsys, tmp_path):
    asked = ("policy", "fit", SAMPLE, "--stages", "2", "--bits", "5", "--layers", "0,29", "--out", str(tmp_path / "vq"))
    code, out, _ = run(capsys, *asked, "--dry-run")
    assert code == 0
    assert "6 cells" in out
    assert "nothing was computed or written" in out
    assert not (tmp_path / "vq").exists()
    code, out, _ = run(capsys, *asked, "--json")
    told = json.loads(out)
    assert (code, told["cells"], told["bytes_per_token"]) == (0, 6, 6 * 2 * 2)
    policy, load = load_policy(told["policy"])
    assert sorted(policy.cells) == sorted(f"{layer}/{head}" for layer in (0, 29) for head in range(3))
    books = load(policy.cells["29/0"]["pool"]["key"]["artifact"])["codebooks"]
    assert books.shape == (2, 32, 64)
    code, _, err = run(capsys, *asked)
    assert code == 2
    assert "exists; give another --out or --name" in err
    replayed = ("replay", SAMPLE, "--serial", "--layers", "29", "--ks", "8,full", "--policy", told["policy"])
    code, out, _ = run(capsys, *replayed, "--out", str(tmp_path / "run"), "--fail-on", "never")
    assert code == 0
    assert "residual_vq" in out
