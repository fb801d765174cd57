"""A small sealed store, a failure plan, and a shorthand that runs a replay over them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import standins
from standins import STEPS, FailurePlan, StandInConfig, StandInPolicy

from polykv.execution.engines import SERIAL
from polykv.execution.plan import replay_config
from polykv.execution.sweep import run_replay
from polykv.storage import CaptureStore
from polykv.storage.run import RunDirectory

POLICIES = (StandInPolicy("plain"), StandInPolicy("centred", 0.5, center_keys="calibrate_mean", sink_tokens=2))
CONFIG = StandInConfig((8, 2, 16))
N_RESULTS = 3 * 2 * 2 * 4  # cells × splits × policies × (three budgets and window_only)
N_CONTROLS = 3 * 2 * 4
N_PARTS = 3 * 2 * 3  # cells × splits × (two policies and the controls)


@pytest.fixture(scope="session")
def store_path(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("store") / "capture"
    standins.write_store(path)
    return path


@pytest.fixture
def plan(tmp_path, monkeypatch) -> FailurePlan:
    folder = tmp_path / "failure-plan"
    folder.mkdir()
    monkeypatch.setenv(standins.PLAN_VARIABLE, str(folder))
    return FailurePlan(folder)


def run_once(folder: Path, store: Path, engine=SERIAL, policies=POLICIES, config=CONFIG, **options) -> SimpleNamespace:
    """Replay into `folder`: the summary, the run directory's path and its tables' bytes."""
    opened = CaptureStore.open(str(store))
    wanted = replay_config(opened, policies, config, options.get("cells"))
    with RunDirectory.create_or_resume(folder, wanted) as directory:
        summary = run_replay(opened, policies, config, directory, engine, steps=STEPS, **options)
    return SimpleNamespace(summary=summary, path=directory.path, tables=tables(directory.path))


@pytest.fixture
def replay(tmp_path, store_path, plan):
    """replay(name, engine=…, ks_per_job=…, policies=…, config=…): see `run_once`."""
    return lambda name="run", store=store_path, **options: run_once(tmp_path / name, store, **options)


@pytest.fixture(scope="session")
def whole(tmp_path_factory, store_path) -> SimpleNamespace:
    """The meaning: a serial run in one cut, without failures. Read only."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "plan").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(standins.PLAN_VARIABLE, str(folder / "plan"))
        return run_once(folder / "run", store_path)


def tables(path: Path) -> dict[str, bytes]:
    """The bytes of the three tables: equal bytes are equal values in equal order."""
    return {name: (path / f"{name}.parquet").read_bytes() for name in ("results", "controls", "selection")}
