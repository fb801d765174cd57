"""A small sealed store, a failure plan, and a shorthand that runs a replay over them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import standins
from replay_world import run_once
from standins import FailurePlan


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
