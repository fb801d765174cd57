"""What a tracker is told about a run, gathered without any tracker; and what a mistake gets."""

import builtins
import json
import math

import numpy as np
import pytest

from polykv.certify import certify_rows
from polykv.cli import main
from polykv.errors import InputError, StoreError
from polykv.policy import CompressionPolicy
from polykv.report.summary import PolicySummary
from polykv.report.tables import RunTables
from polykv.schemas import CERTIFY
from polykv.storage.artifacts import save_artifact
from polykv.storage.results import write_table
from polykv.storage.run import RunDirectory
from polykv.tracking.record import certify_metrics, check_names, finite, gonogo_metrics, policy_metrics
from polykv.tracking_stages import log_stage, record_of
from tests.certify.certify_samples import certification
from tests.report.run_samples import write_run


def run(capsys, *argv):
    code = main(["log", *argv])
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    return code, said.out, said.err


@pytest.fixture
def made(tmp_path):
    return write_run(tmp_path / "made", layers=(0, 3))


def test_a_sweeps_figures_are_counted_by_verdict_and_finite(made):
    record = record_of(RunTables.read(made))
    told = record.metrics
    assert all(type(value) is float and math.isfinite(value) for value in told.values())
    # two layers × two heads: int8 and exact hold all, rough none (see run_samples)
    assert (told["int8/cells_pass"], told["int8/cells_fail"], told["int8/cells_inconclusive"]) == (4, 0, 0)
    assert (told["rough/cells_pass"], told["rough/cells_fail"]) == (0, 4)
    assert (told["int8/bytes_per_token_median"], told["int8/candidate_k_median"]) == (132, 16)
    assert "rough/candidate_k_median" not in told
    assert "rough/cells_not_measured" not in told


def test_what_a_run_is_stands_in_its_parameters(made):
    record = record_of(RunTables.read(made))
    opened = RunDirectory.open(made)
    assert record.params["config_digest"] == opened.config_digest
    assert record.params["model_id"] == "tiny <model> & co"
    assert record.params["gates"] == "output_cosine_mean >= 0.999; output_relative_error_mean <= 0.05"
    assert record.params["policies"] == "exact, int8, rough"
    assert record.params["policy_digest.int8"] == CompressionPolicy.int8().digest()
    assert all(isinstance(value, str) and value for value in record.params.values())


def test_a_failed_cell_is_told_as_not_measured(tmp_path):
    made = write_run(tmp_path / "run", layers=(0,), fail=[(0, 1, "int8")])
    assert record_of(RunTables.read(made)).metrics["int8/cells_not_measured"] == 1


def test_nulls_and_numbers_that_are_none_are_left_out():
    assert finite({"a": 1, "b": None, "c": math.nan, "d": math.inf, "e": True, "f": 0.0}) == {"a": 1, "e": 1, "f": 0}
    empty = policy_metrics([PolicySummary("none", 3, {"failed": 3})])
    assert empty == {
        "none/cells_pass": 0,
        "none/cells_inconclusive": 0,
        "none/cells_fail": 0,
        "none/cells_not_measured": 3,
    }


def test_a_certification_is_told_by_policy():
    rows = certify_rows(certification([0.01] * 6))
    (whole,) = [row for row in rows if row["slice_kind"] == "all"]
    told = certify_metrics(rows)
    assert told["int8/certify_ppl_increase"] == whole["ppl_increase"]
    assert told["int8/certify_kl_mean"] == pytest.approx(1e-3)
    assert len(told) == 8


def test_go_and_no_go_are_counted_over_primary_rows():
    rows = [{"is_primary": p, "verdict": v} for p, v in ((True, "go"), (True, "no-go"), (True, None), (False, "go"))]
    assert gonogo_metrics(rows) == {"gonogo/cells_go": 1, "gonogo/cells_no_go": 1, "gonogo/cells_inconclusive": 0}
    assert gonogo_metrics([]) == {}


def test_two_policies_of_one_name_to_a_tracker_are_refused():
    with pytest.raises(InputError, match="'a:b' and 'a\\?b' are both 'a_b'"):
        check_names(["a:b", "c", "a?b"])


def test_files_hold_tables_policies_their_artifacts_and_the_report(made):
    record = record_of(RunTables.read(made))
    assert list(record.files) == [
        "results.parquet",
        "controls.parquet",
        "selection.parquet",
        "run.json",
        "report.html",
    ]
    assert not record.files["report.html"].exists()


def test_a_policy_file_brings_what_it_needs(made):
    digest = save_artifact(made / "artifacts", {"key_mean_0_0": np.zeros(4, np.float32)})
    policy = CompressionPolicy("mine", artifacts={digest: f"artifacts/{digest}.npz"})
    policy.save(made / "mine.policy.json")
    record = record_of(RunTables.read(made))
    assert {"mine.policy.json", f"artifacts/{digest}.npz"} <= set(record.files)
    (made / "artifacts" / f"{digest}.npz").unlink()
    with pytest.raises(StoreError, match="mine.policy.json needs artifacts/"):
        record_of(RunTables.read(made))


def test_a_certified_run_is_told_too(tmp_path):
    with RunDirectory.create_or_resume(tmp_path / "c", {"kind": "certify", "config": {"seed": 7}}) as opened:
        rows = [{"run_id": opened.run_id, **row} for row in certify_rows(certification([0.01] * 6))]
        write_table(opened.table_path("certify"), CERTIFY, rows)
    record = record_of(RunTables.read(tmp_path / "c"))
    assert "int8/certify_ppl_increase" in record.metrics
    assert (record.params["kind"], record.params["seed"], record.params["policies"]) == ("certify", "7", "int8")
    assert "gates" not in record.params


def test_a_rehearsal_says_all_and_writes_nothing(capsys, made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, str(made), "--to", "mlflow", "--dry-run")
    assert code == 0
    assert "nothing was sent or written" in out
    assert "int8/cells_pass = 4" in out
    assert "report.html (to be written)" in out
    assert not (made / "report.html").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    code, out, _ = run(capsys, str(made), "--to", "wandb", "--dry-run", "--json", "--experiment", "mine")
    told = json.loads(out)
    assert (code, told["place"], told["project"]) == (0, None, "mine")
    assert told["metrics"]["int8/cells_pass"] == 4


@pytest.mark.parametrize("tracker", ["mlflow", "wandb"])
def test_a_missing_package_is_one_line_that_names_the_extra(capsys, made, monkeypatch, tracker):
    known = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == tracker:
            raise ImportError(name)
        return known(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    code, out, err = run(capsys, str(made), "--to", tracker, "--offline")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"pip install 'polykv[{tracker}]'" in err
    assert not (made / "report.html").exists()


def test_a_run_that_is_not_finished_is_refused(made):
    state = json.loads((made / "run.json").read_text())
    (made / "run.json").write_text(json.dumps({**state, "status": "interrupted"}))
    with pytest.raises(InputError, match="this run is interrupted, and only a finished run is logged"):
        log_stage(made, "mlflow")


MISTAKES = {
    "no run": (["nothing", "--to", "mlflow"], 2, "does not exist; a run directory was expected"),
    "no tracker": (["nothing"], 2, "--to"),
    "a misspelt tracker": (["nothing", "--to", "mlfow"], 2, "did you mean 'mlflow'?"),
    "another tracker": (["nothing", "--to", "comet"], 2, "trackers: mlflow, wandb"),
    "no project": (["nothing", "--to", "wandb", "--project", " "], 2, "needs a name"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_words(capsys, tmp_path, monkeypatch, mistake):
    monkeypatch.chdir(tmp_path)
    argv, expected, words = MISTAKES[mistake]
    code, _, err = run(capsys, *argv)
    assert (code, words in err) == (expected, True), err
