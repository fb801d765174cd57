"""A calibration ends with its report, and a report that cannot be made undoes nothing."""

import json

import pytest

from polykv.cli import main
from polykv.errors import MissingExtraError
from polykv.report_stages import closing_report
from tests.report.run_samples import POLICIES, write_run

QUICK = ["--policy", "int8", "--ks", "4,full", "--serial", "-q"]


def run(capsys, *argv):
    code = main(list(argv))
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    return code, said.out, said.err


def test_a_calibration_ends_with_the_report(capsys, store, tmp_path):
    out = tmp_path / "run"
    code, said, _ = run(capsys, "calibrate", "--store", store, "--out", str(out), "--no-gonogo", *QUICK)
    assert code == 0
    assert said.splitlines()[-1] == f"report: {out}/report.html"
    assert "int8" in (out / "report.html").read_text()


def test_the_report_shows_the_go_no_go_of_the_calibration(capsys, store, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr("polykv.cli.sweep._gonogo", lambda *args: written.append("gonogo") or 0)
    monkeypatch.setattr("polykv.cli.sweep.closing_report", lambda out: written.append("report") or closing_report(out))
    assert run(capsys, "calibrate", "--store", store, "--out", str(tmp_path / "run"), *QUICK)[0] == 0
    assert written == ["gonogo", "report"]  # the tables first


@pytest.mark.parametrize("command", ["calibrate", "replay"])
def test_without_a_report(capsys, store, tmp_path, command):
    target = ["--store", store, "--no-gonogo", "--no-report"] if command == "calibrate" else [store]
    code, said, _ = run(capsys, command, *target, "--out", str(tmp_path / "run"), *QUICK)
    assert (code, "report:" in said) == (0, False)
    assert not (tmp_path / "run/report.html").exists()


def test_a_replay_ends_with_a_report_when_asked(capsys, store, tmp_path):
    code, said, _ = run(capsys, "replay", store, "--report", "--json", "--out", str(tmp_path / "run"), *QUICK)
    assert code == 0
    assert json.loads(said)["report"] == f"{tmp_path}/run/report.html"


def test_a_dry_run_writes_no_report(capsys, store, tmp_path):
    code, said, err = run(capsys, "calibrate", "--store", store, "--dry-run", "--out", str(tmp_path / "run"), *QUICK)
    assert (code, "report:" in said + err) == (0, False)


def test_a_run_without_a_measured_cell_has_no_report_and_is_no_error(tmp_path):
    fail = [(0, head, policy) for head in (0, 1) for policy in POLICIES]
    closing = closing_report(write_run(tmp_path / "run", layers=(0,), fail=fail))
    assert (closing.path, closing.line) == (None, "no report: no cell was measured")
    assert not (tmp_path / "run/report.html").exists()


def test_without_matplotlib_the_run_stands_and_says_why(capsys, store, tmp_path, monkeypatch):
    def missing(*_):
        raise MissingExtraError("plots need matplotlib")

    monkeypatch.setattr("polykv.report_stages.report_page", missing)
    out = str(tmp_path / "run")
    code, said, err = run(capsys, "calibrate", "--store", store, "--out", out, "--no-gonogo", *QUICK)
    assert (code, "report:" in said) == (0, False)
    assert err == "no report: plots need matplotlib\n"
