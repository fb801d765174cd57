"""Replays on worker processes, with planned deaths: the tables are those of the serial run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from replay_world import N_PARTS

from polykv.execution.engines import Engine
from polykv.schemas import RESULTS
from polykv.storage.results import read_rows
from polykv.storage.run import RunDirectory

pytestmark = pytest.mark.slow
TWO = Engine("local", n_workers=2)
HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("ks_per_job", [None, 1])
def test_two_workers_leave_the_same_tables_as_the_serial_run(replay, whole, ks_per_job):
    assert replay(engine=TWO, ks_per_job=ks_per_job).tables == whole.tables


def test_a_worker_that_dies_at_work_changes_nothing(replay, plan, whole):
    plan.set(sweep_4_0_select_plain=("kill", 1), mean_1_0=("kill", 1))
    done = replay(engine=TWO)
    assert done.tables == whole.tables
    assert done.summary.rows_failed == 0
    assert len(plan.calls("sweep,4,0,select,plain")) == 2  # it did die


def test_a_deadly_cell_is_failed_rows_its_neighbours_are_fine_and_a_rerun_repairs_it(replay, plan, whole):
    plan.set(sweep_4_1_confirm_plain=("kill", None))
    hurt = replay(engine=TWO)
    rows = read_rows(hurt.path / "results.parquet", RESULTS)
    failed = [row for row in rows if row["status"] == "failed"]
    assert {(r["layer"], r["kv_head"], r["split"], r["policy"]) for r in failed} == {(4, 1, "confirm", "plain")}
    assert {r["reason"] for r in failed} == {
        "WorkerLost: every process that ran this job died; see the workers' memory and logs"
    }
    sound = [row for row in rows if row["status"] == "ok"]
    assert sound == [r for r in read_rows(whole.path / "results.parquet", RESULTS) if r in sound]
    assert len(sound) + len(failed) == len(rows) == 48
    plan.set()
    plan.forget()
    assert replay(engine=TWO).tables == whole.tables
    assert len(plan.calls()) == 1


@pytest.fixture
def coordinator(tmp_path, store_path, plan):
    """Starts a replay in a process (group) of its own and waits until some parts are written."""
    plan.set(sweep=("sleep", None), control=("sleep", None))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(HERE.parents[1]), str(HERE)))}
    command = [sys.executable, str(HERE / "replay_driver.py"), str(tmp_path / "run"), str(store_path), "local:2"]
    process = subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.PIPE, text=True)
    with process:
        wait_until(lambda: len(parts(tmp_path / "run")) >= 4 or process.poll() is not None)
        yield process
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def parts(run: Path) -> list[Path]:
    return list((run / "parts").glob("*.parquet"))


def wait_until(true, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds} s in vain")
        time.sleep(0.05)


def group_is_gone(process: subprocess.Popen) -> bool:
    """No process of the coordinator's group is left (workers notice its death within seconds)."""
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return True
    return False


def expect_the_rest_only(replay, plan, whole, run: Path) -> None:
    kept = len(parts(run))
    assert 4 <= kept < N_PARTS
    plan.set()
    plan.forget()
    done = replay()
    assert len(plan.calls("sweep")) + len(plan.calls("control")) == N_PARTS - kept
    assert done.tables == whole.tables
    assert not list(run.glob("**/*.tmp"))


def test_a_coordinator_killed_half_way_is_finished_by_the_next_run(coordinator, replay, plan, whole, tmp_path):
    coordinator.kill()
    wait_until(lambda: group_is_gone(coordinator))
    assert RunDirectory.open(tmp_path / "run").status == "running"
    expect_the_rest_only(replay, plan, whole, tmp_path / "run")


def test_ctrl_c_stops_cleanly_and_keeps_what_is_done(coordinator, replay, plan, whole, tmp_path):
    os.killpg(coordinator.pid, signal.SIGINT)  # as a terminal does: to the workers too
    _, errors = coordinator.communicate(timeout=300)
    assert coordinator.returncode != 0
    assert errors.rstrip().endswith("KeyboardInterrupt")
    wait_until(lambda: group_is_gone(coordinator))
    assert RunDirectory.open(tmp_path / "run").status == "interrupted"
    expect_the_rest_only(replay, plan, whole, tmp_path / "run")
