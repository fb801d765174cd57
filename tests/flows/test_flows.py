"""The flows on a real Prefect API: what they run, what they leave, and how they fail."""

import os
import subprocess
import sys

import pytest
from prefect.client.orchestration import get_client

from flows.calibrate import MovedError, calibrate
from flows.replay import replay
from polykv.errors import InputError
from polykv.gonogo_stages import gonogo_rows
from polykv.report_stages import ClosingReport
from polykv.stages import Engine, SweepRequest, check_sweep, sweep_stage
from polykv.storage.run import RunDirectory
from tests.tiny_store import write_tiny_store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("harness"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def request_of(store, out, **other):
    return SweepRequest(store=store, out=str(out), **{"policies": ("int8",), "ks": ("4", "full")} | other)


def artifacts():
    """The newest artifact of each key."""
    with get_client(sync_client=True) as client:
        found = sorted(client.read_artifacts(), key=lambda artifact: artifact.created)
        return {artifact.key: artifact.data for artifact in found}


def test_a_flow_leaves_the_tables_of_a_plain_sweep(store, tmp_path):
    replay(request_of(store, tmp_path / "flow"), "serial", True)
    sweep_stage(check_sweep(request_of(store, tmp_path / "plain")), Engine("serial"))
    for table in ("results", "selection", "controls"):
        a, b = ((tmp_path / name / f"{table}.parquet").read_bytes() for name in ("flow", "plain"))
        assert a == b, table


def test_a_replay_without_a_measured_cell_has_no_report_and_does_not_fail(store, tmp_path, monkeypatch):
    monkeypatch.setattr("flows.common.closing_report", lambda out: ClosingReport(None, "no cell was measured"))
    assert replay(request_of(store, tmp_path / "run"), "serial", True).report.line == "no report: no cell was measured"
    assert replay(request_of(store, tmp_path / "run"), "serial", True, False).report is None


def test_layers_run_at_once_on_a_cluster(store, tmp_path):
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False),
    ):
        replay(request_of(store, tmp_path / "cluster"), cluster.scheduler_address, True)
    replay(request_of(store, tmp_path / "serial"), "serial", True)
    a, b = ((tmp_path / name / "results.parquet").read_bytes() for name in ("cluster", "serial"))
    assert a == b


def test_calibrate_says_what_it_skipped_and_leaves_artifacts(store, tmp_path):
    out = tmp_path / "run"
    summary, judged, certified, report = calibrate(request_of(store, out), "serial", None, None, True, False)
    assert (summary.rows_failed, judged, certified) == (0, None, None)
    run = RunDirectory.open(out)
    assert run.status == "complete"
    assert run.state["sessions"][-1]["capture"] == "skipped: no model"
    assert run.state["sessions"][-1]["certify"] == "skipped: no model"
    left = artifacts()
    assert "int8 holds all" in left["polykv-cells"]
    assert str(out) in left["polykv-run"]
    assert report.path == out / "report.html"
    assert report.path.as_uri() in left["polykv-report"]


def test_the_go_no_go_is_part_of_a_calibration(tmp_path):
    out = tmp_path / "run"
    roomy = write_tiny_store(tmp_path / "store", n_tokens=128, layers=(2,))  # more vectors than atoms
    _, judged, _, report = calibrate(request_of(roomy, out), "serial", None, None, True)
    assert judged.jobs_failed == 0
    assert {row["stream"] for row in gonogo_rows(out / "gonogo")} == {"key", "value"}
    assert (out / "gonogo.parquet").read_bytes() == (out / "gonogo/gonogo.parquet").read_bytes()
    assert "Sparse dictionary: go or no-go" in report.path.read_text()
    assert "| layer | stream |" in artifacts()["polykv-gonogo"]


def test_a_baseline_that_still_holds_lets_the_flow_pass(store, tmp_path):
    calibrate(request_of(store, tmp_path / "old"), "serial", None, None, True, False)
    calibrate(request_of(store, tmp_path / "new"), "serial", None, str(tmp_path / "old"), True, False)
    assert "no cell left its interval" in artifacts()["polykv-baseline"]


def test_a_cell_worse_than_the_baseline_fails_the_flow_and_is_named(store, tmp_path):
    calibrate(request_of(store, tmp_path / "old"), "serial", None, None, True, False)
    coarse = tmp_path / "int8.json"
    coarse.write_text(
        '{"schema_version": "polykv_policy_v1", "name": "int8",'
        ' "pool": {"key": {"id": "uniform", "bits": 3}, "value": {"id": "uniform", "bits": 3}},'
        ' "shell": {"key": {"id": "uniform", "bits": 3}, "value": {"id": "uniform", "bits": 3}}}'
    )
    other = write_tiny_store(tmp_path / "store")
    with pytest.raises(MovedError, match="worse than"):
        calibrate(
            request_of(other, tmp_path / "new", policies=(str(coarse),)),
            "serial",
            None,
            str(tmp_path / "old"),
            True,
            False,
        )
    assert "worse" in artifacts()["polykv-baseline"]


def test_a_mistake_fails_the_flow_with_its_own_words(tmp_path):
    with pytest.raises(InputError, match="nothing"):
        replay(request_of(str(tmp_path / "nothing"), tmp_path / "run"), "serial", True)


def command(*argv):
    environment = {**os.environ, "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    return subprocess.run(
        [sys.executable, "-m", *argv], capture_output=True, text=True, timeout=300, env=environment, check=False
    )


def test_a_flow_is_a_command_with_the_same_exit_codes(store, tmp_path):
    arguments = ["--policy", "int8", "--ks", "full", "--serial", "-q"]
    done = command("flows.replay", store, "--out", str(tmp_path / "run"), *arguments)
    assert done.returncode == 0, done.stderr
    assert "int8 holds all" in done.stdout
    assert done.stdout.splitlines()[-1] == f"report: {tmp_path}/run/report.html"
    wrong = command("flows.calibrate", "--store", str(tmp_path / "nothing"), "--out", str(tmp_path / "x"), *arguments)
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr


def test_a_schedule_without_a_server_says_so(store, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    done = subprocess.run(
        [sys.executable, "-m", "flows.schedule", "--store", store, "--out", str(tmp_path / "run")],
        capture_output=True, text=True, timeout=300, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "a schedule needs a Prefect server" in done.stderr
