"""A run told to the real MLflow and the real Weights & Biases, offline, and read back."""

import json
import os
import struct
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polykv.cli import main
from polykv.errors import TrackingError
from polykv.policy import CompressionPolicy
from polykv.report.tables import RunTables
from polykv.storage.artifacts import save_artifact
from polykv.tracking.wandb_file import offline_records, wait_until_kept
from polykv.tracking.wandb_runs import log_to_wandb
from polykv.tracking_stages import log_stage, record_of
from tests.report.run_samples import write_run

pytestmark = [
    pytest.mark.tracking,
    # their own and those of what they import; polykv's are still errors in every other test
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A finished run, in a folder where trackers may leave what they keep."""
    monkeypatch.chdir(tmp_path)
    return write_run(tmp_path / "made", layers=(0, 3))


def test_mlflow_keeps_figures_parameters_and_files(made, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    # offline is offline, whatever server the environment names
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    logged = log_stage(made, "mlflow", "kv", offline=True)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("kv").experiment_id])
    assert run.info.run_id in logged.place
    assert (run.info.status, run.info.run_name) == ("FINISHED", "made")
    assert run.data.metrics == dict(logged.record.metrics)
    assert run.data.params == dict(logged.record.params)
    assert run.data.tags["polykv.run_id"] == logged.record.run_id
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == set(logged.record.files)
    fetched = client.download_artifacts(run.info.run_id, "selection.parquet", str(tmp_path))
    with open(fetched, "rb") as file:
        assert file.read() == (made / "selection.parquet").read_bytes()


def test_mlflow_takes_files_in_folders_and_the_environments_store(made, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    digest = save_artifact(made / "artifacts", {"key_mean_0_0": np.zeros(4, np.float32)})
    CompressionPolicy("mine", artifacts={digest: f"artifacts/{digest}.npz"}).save(made / "mine.policy.json")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/other.db")
    log_stage(made, "mlflow")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/other.db")
    (run,) = client.search_runs([client.get_experiment_by_name("polykv").experiment_id])
    (kept,) = client.list_artifacts(run.info.run_id, "artifacts")
    assert kept.path == f"artifacts/{digest}.npz"


def test_a_run_that_mlflow_does_not_take_whole_is_left_as_failed(made, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")

    def full(*args, **kwargs):
        raise OSError("no space left")

    monkeypatch.setattr(mlflow.MlflowClient, "log_artifact", full)
    with pytest.raises(TrackingError, match="MLflow took not all of made: no space left; --offline"):
        log_stage(made, "mlflow", offline=True)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("polykv").experiment_id])
    assert run.info.status == "FAILED"


def test_a_server_that_does_not_answer_is_one_line(capsys, made, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    code = main(["log", str(made), "--to", "mlflow"])
    err = capsys.readouterr().err
    assert (code, err.count("\n"), "--offline keeps it in mlflow.db here" in err) == (3, 1, True), err


def test_wandb_keeps_figures_parameters_and_files(made, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staged"))
    logged = log_stage(made, "wandb", "kv", offline=True)
    assert logged.place.startswith(str(tmp_path / "wandb" / "offline-run-"))
    records = offline_records(logged.place)
    (started,) = [record.run for record in records if record.HasField("run")]
    assert (started.project, started.display_name) == ("kv", "made")
    config = {item.key: json.loads(item.value_json) for item in started.config.update}
    assert config.items() >= logged.record.params.items()
    summary = {}
    for record in records:
        summary.update({item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.summary.update})
    assert {name: summary[name] for name in logged.record.metrics} == dict(logged.record.metrics)
    (artifact,) = [record.artifact for record in records if record.HasField("artifact")]
    assert (artifact.name, artifact.type) == (f"polykv-{logged.record.run_id}", "polykv-run")
    assert {file.path for file in artifact.manifest.contents} == set(logged.record.files)


def test_a_wandb_run_is_told_kept_only_once_its_file_ends(made, tmp_path):
    """The file of a run is cut wherever its writer may stop: what can be read is a beginning, and is not enough."""
    pytest.importorskip("wandb")
    logged = log_stage(made, "wandb", "kv", offline=True)
    (file,) = Path(logged.place).glob("*.wandb")
    data, records = file.read_bytes(), offline_records(logged.place)
    half = tmp_path / "half"
    half.mkdir()
    for size in [0, 7, 20, *range(40, len(data), 97), len(data) - 1]:
        (half / file.name).write_bytes(data[:size])
        written = offline_records(half)
        assert written == records[: len(written)]
        assert len(written) < len(records)
        with pytest.raises(TrackingError, match=f"half is not whole: after 0 s its file holds {len(written)} records"):
            wait_until_kept(half, timeout_s=0.0)
    (half / file.name).write_bytes(data)
    wait_until_kept(half, timeout_s=0.0)


def test_a_long_wandb_file_is_read_across_its_blocks(made, monkeypatch, tmp_path):
    """More than a block of text in one parameter: a record in pieces, and others behind it."""
    pytest.importorskip("wandb")
    record = record_of(RunTables.read(made))
    many = {"long": "x" * 40_000, **{f"p{i}": "y" * 300 for i in range(150)}}
    long = replace(record, params={**record.params, **many}, files={})
    place = log_to_wandb(long, "kv", offline=True)
    records = offline_records(place)
    assert records[-1].HasField("exit")
    (started,) = [record.run for record in records if record.HasField("run")]
    told = {item.key: json.loads(item.value_json) for item in started.config.update}
    assert {name: told[name] for name in long.params} == dict(long.params)


def test_a_record_that_does_not_parse_is_no_end(tmp_path):
    pytest.importorskip("wandb")
    (tmp_path / "run-a.wandb").write_bytes(b":W&B123" + struct.pack("<IHB", 0, 5, 1) + b"\xff" * 5)
    with pytest.raises(TrackingError, match="its file holds 0 records and no end"):
        wait_until_kept(tmp_path, timeout_s=0.0)


def test_wandb_switched_off_is_no_success(made):
    """In a process of its own: wandb reads the environment once."""
    pytest.importorskip("wandb")
    said = subprocess.run(
        [sys.executable, "-m", "polykv", "log", str(made), "--to", "wandb"], check=False, capture_output=True, text=True,
        env=os.environ | {"WANDB_MODE": "disabled", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (said.returncode, said.stdout) == (3, "")
    assert "WANDB_MODE is disabled; unset it, or --offline" in said.stderr


def test_a_wandb_run_that_stays_half_written_is_refused(capsys, made, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setattr("polykv.tracking.wandb_file._LAST_PIECE", ())  # no record is ever whole
    monkeypatch.setattr("polykv.tracking.wandb_runs.KEPT_WITHIN_S", 0.1)
    code = main(["log", str(made), "--to", "wandb", "--offline"])
    said = capsys.readouterr()
    assert (code, said.out) == (3, "")
    assert "is not whole: after 0.1 s its file holds 0 records and no end" in said.err


def test_wandb_is_waited_for_while_it_writes(made, tmp_path):
    pytest.importorskip("wandb")
    logged = log_stage(made, "wandb", "kv", offline=True)
    (file,) = Path(logged.place).glob("*.wandb")
    late = tmp_path / "late"
    late.mkdir()
    (late / file.name).write_bytes(file.read_bytes()[:7])
    written = threading.Event()

    def write():
        (late / file.name).write_bytes(file.read_bytes())
        written.set()

    timer = threading.Timer(0.3, write)
    timer.start()
    try:
        wait_until_kept(late, timeout_s=60.0)
        assert offline_records(late)[-1].HasField("exit")
    finally:
        timer.join()
    assert written.is_set()


@pytest.mark.parametrize("tracker", ["mlflow", "wandb"])
def test_the_command_writes_the_report_once_and_says_where_it_all_is(capsys, made, monkeypatch, tracker):
    pytest.importorskip(tracker)
    assert not (made / "report.html").exists()
    code = main(["log", str(made), "--to", tracker, "--offline"])
    said = capsys.readouterr()
    assert (code, said.out.startswith(f"logged {made} to {tracker}: ")) == (0, True)
    record = record_of(RunTables.read(made))
    assert f"{len(record.metrics)} metrics, {len(record.params)} parameters, 5 files" in said.err
    written = (made / "report.html").stat().st_mtime_ns
    assert main(["log", str(made), "--to", tracker, "--offline", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == dict(record.metrics)
    assert (made / "report.html").stat().st_mtime_ns == written
