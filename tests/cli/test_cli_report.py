"""`polykv report`: what it writes, and what a mistake gets."""

import json

import pytest

from polykv.certify_schema import CERTIFY
from polykv.cli import main
from polykv.storage.results import write_table
from polykv.storage.run import RunDirectory
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


def write_certification(path, model_id="tiny <model> & co", policy="int8", ppl=12.5):
    """A certification as `polykv certify --out` leaves it: a table and its receipt."""
    row = dict.fromkeys(CERTIFY.column_names) | {
        "policy": policy, "policy_digest": "0" * 64, "slice_kind": "all", "slice_index": 0, "n_passages": 10,
        "n_documents": 2, "first_token": 64, "end_token": 128, "n_tokens_scored": 640, "verdict": "pass",
        "ppl_baseline": ppl, "ppl_policy": ppl * 1.002, "ppl_increase": 0.002, "ppl_increase_low": 0.001,
        "ppl_increase_high": 0.003, "kl_mean": 0.0007, "kl_p99": 0.01, "log_ratio_mean": 0.002, "top1_agreement": 0.98, "bytes_per_token": 132.0,
        "ratio_to_float16": 1.94,
    }  # fmt: skip
    with RunDirectory.create_or_resume(path, {"kind": "certify", "policy": policy}) as run:
        row["run_id"] = run.run_id
        write_table(run.table_path("certify"), CERTIFY, [row])
        (run.path / "certify.json").write_text(json.dumps({"model": {"id": model_id}}))
    return str(path)


def test_the_certification_of_the_run_is_in_its_report(capsys, tmp_path):
    made = write_run(tmp_path / "run", layers=(0,))
    assert run(capsys, "report", str(made), "-q")[0] == 0
    assert "polykv certify" in (made / "report.html").read_text()
    write_certification(tmp_path / "certified")
    for name in ("certify.parquet", "certify.json"):  # a calibration with a model ends with these
        (made / name).write_bytes((tmp_path / "certified" / name).read_bytes())
    assert run(capsys, "report", str(made), "-q")[0] == 0
    page = (made / "report.html").read_text()
    assert "Perplexity with the policy on" in page
    assert "Certified: with int8" in page
    assert "12.500 → 12.525" in page


def test_the_certification_of_another_run_is_shown_when_asked_for(capsys, made, tmp_path):
    certified, target = write_certification(tmp_path / "c"), tmp_path / "r.html"
    code, _, err = run(capsys, "report", made, "--with", certified, "-o", str(target), "-q")
    assert (code, err) == (0, "")
    page = target.read_text()
    assert f"Run {RunDirectory.open(certified).run_id}: perplexity with the policy on" in page
    assert "12.500 → 12.525" in page
    assert "while this run" not in page


def test_a_certification_of_another_model_says_so(capsys, made, tmp_path):
    certified, target = write_certification(tmp_path / "c", model_id="another"), tmp_path / "r.html"
    assert run(capsys, "report", made, "--with", certified, "-o", str(target), "-q")[0] == 0
    assert "certified another, while this run&#x27;s vectors are those of tiny &lt;model&gt;" in target.read_text()


MISTAKES = {
    "a certification that is none": (lambda made, tmp: [made, "--with", made], 3, "holds no certification"),
    "a certification that is not there": (lambda made, tmp: [made, "--with", str(tmp)], 2, "no run.json"),
    "a certification for two runs": (lambda made, tmp: [made, made, "--with", made], 2, "--with goes with one run"),
    "no run": (lambda made, tmp: [str(tmp / "nothing")], 2, "does not exist"),
    "a run that is a file": (lambda made, tmp: [f"{made}/run.json"], 2, "is a file; a run directory"),
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
