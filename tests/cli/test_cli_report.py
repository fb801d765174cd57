"""`polykv report`: what it writes, and what a mistake gets."""

import json

import pytest

from polykv.cli import main
from tests.report.run_samples import write_run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return str(write_run(tmp_path_factory.mktemp("runs") / "made", layers=(0, 3)))


def run(capsys, *argv):
    code = main(list(argv))
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    return code, said.out, said.err


def test_a_report_is_written_into_its_run(capsys, made):
    code, out, err = run(capsys, "report", made)
    assert (code, out) == (0, f"wrote {made}/report.html\n")
    assert "complete in itself" in err


def test_a_report_goes_where_it_is_asked_for(capsys, made, tmp_path):
    target = tmp_path / "here.html"
    code, out, _ = run(capsys, "report", made, "-o", str(target), "--json")
    assert code == 0
    assert json.loads(out) == {"report": str(target), "bytes": target.stat().st_size}


def test_two_runs_are_compared(capsys, made, tmp_path):
    code, out, err = run(capsys, "report", made, made, "-o", str(tmp_path / "c.html"), "-q")
    assert (code, err) == (0, "")
    assert "Nothing moved: all 12 cells" in (tmp_path / "c.html").read_text()


MISTAKES = {
    "no run": (lambda made, tmp: [str(tmp / "nothing")], 3, "no run directory"),
    "a run that is a file": (lambda made, tmp: [f"{made}/run.json"], 3, "no run directory"),
    "three runs": (lambda made, tmp: [made, made, made], 2, "3 runs are given"),
    "none": (lambda made, tmp: [], 2, "RUN"),
    "a folder that is not there": (lambda made, tmp: [made, "-o", str(tmp / "no" / "r.html")], 2, "there is no folder"),
    "a folder for a file": (lambda made, tmp: [made, "-o", str(tmp)], 2, "is a folder"),
    "a run in a bucket": (lambda made, tmp: ["s3://b/run"], 2, "local or shared"),
    "a misspelt option": (lambda made, tmp: [made, "--jsn"], 2, "--json"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_words(capsys, made, tmp_path, mistake):
    argv, expected, words = MISTAKES[mistake]
    code, _, err = run(capsys, "report", *argv(made, tmp_path))
    assert (code, words in err) == (expected, True), err


def test_a_damaged_table_is_named(capsys, tmp_path):
    broken = write_run(tmp_path / "broken", layers=(0,))
    (broken / "results.parquet").write_bytes(b"PAR1 nothing PAR1")
    code, _, err = run(capsys, "report", str(broken))
    assert (code, "results.parquet" in err) == (3, True)
