"""The functions a job calls, by name: a job is plain data and resolves them where it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import Any

from polykv.errors import InputError


@dataclass(frozen=True)
class Steps:
    """References "module:name" of what a replay is made of.

    open_store(url) → CaptureStore; policy(dict) → Policy; config(dict) → SweepConfig;
    sweep_cell(data, policy, config, key_mean, artifacts) → results rows without run_id and
    row_digest, where artifacts(digest) gives the arrays of the run's artifact;
    control_rows(data, config) → controls rows, likewise; key_mean(data, sink_tokens[, rotation])
    → [head_dim] float32; selection_rows(results rows, controls rows) → selection rows without run_id;
    judged(results rows, controls rows) → the same results rows, verdicts as the controls allow.
    """

    open_store: str = "polykv.storage:CaptureStore.open"
    policy: str = "polykv.policy:Policy.from_dict"
    config: str = "polykv.replay.sweep:SweepConfig.from_dict"
    sweep_cell: str = "polykv.replay.sweep:sweep_cell"
    control_rows: str = "polykv.replay.controls:control_rows"
    key_mean: str = "polykv.replay.means:key_mean"
    selection_rows: str = "polykv.replay.selection:selection_rows"
    judged: str = "polykv.replay.controls:judged"

    def call(self, step: str, *args: Any) -> Any:
        """Call the function that a step's reference names."""
        return resolve(getattr(self, step))(*args)


STEPS = Steps()


def resolve(reference: str) -> Callable[..., Any]:
    """The object "package.module:name.attribute" names; raises InputError when there is none."""
    module, _, name = reference.partition(":")
    try:
        return attrgetter(name)(import_module(module))
    except (ImportError, AttributeError) as error:
        raise InputError(f"{reference!r} names nothing that can be imported: {error}") from error
