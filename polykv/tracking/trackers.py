"""The trackers there are, by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from polykv.errors import InputError
from polykv.tracking.mlflow_runs import log_to_mlflow, mlflow_module
from polykv.tracking.record import RunRecord
from polykv.tracking.wandb_runs import log_to_wandb, wandb_module


@dataclass(frozen=True)
class Tracker:
    """One tracker. `load()` imports its package or raises MissingExtraError; `log(record, project,
    offline)` tells it one run and returns where that can be looked at: a URL or a path."""

    name: str
    load: Callable[[], Any]
    log: Callable[[RunRecord, str, bool], str]


TRACKERS = {
    "mlflow": Tracker("mlflow", mlflow_module, log_to_mlflow),
    "wandb": Tracker("wandb", wandb_module, log_to_wandb),
}


def tracker_named(name: str) -> Tracker:
    """A tracker by name; an unknown one is refused with the nearest."""
    if name in TRACKERS:
        return TRACKERS[name]
    near = difflib.get_close_matches(name, TRACKERS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InputError(f"unknown tracker {name!r}{hint} (trackers: {', '.join(TRACKERS)})")
