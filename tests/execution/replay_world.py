"""The small world of the replay tests: two policies, three budgets, and how to run them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from standins import STEPS, StandInConfig, StandInPolicy

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


def run_once(
    folder: Path, store: Path, engine=SERIAL, policies=POLICIES, config=CONFIG, steps=STEPS, **options
) -> SimpleNamespace:
    """Replay into `folder`: the summary, the run directory's path and its tables' bytes."""
    opened = CaptureStore.open(str(store))
    wanted = replay_config(opened, policies, config, options.get("cells"))
    with RunDirectory.create_or_resume(folder, wanted) as directory:
        summary = run_replay(opened, policies, config, directory, engine, steps=steps, **options)
    return SimpleNamespace(summary=summary, path=directory.path, tables=tables(directory.path))


def tables(path: Path) -> dict[str, bytes]:
    """The bytes of the three tables: equal bytes are equal values in equal order."""
    return {name: (path / f"{name}.parquet").read_bytes() for name in ("results", "controls", "selection")}
