"""One function a stage: what both the command line and the flows call.

    capture_stage    model and corpus → capture store
    open_sweep       store and request → a planned run directory
    run_sweep        the run's jobs → parts
    collect_sweep    parts → tables and a summary
    calibrate        all of them in order, without Prefect

Nothing here prints; progress goes to a callback, results come back as dataclasses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polykv.capture import CaptureConfig
from polykv.errors import InputError
from polykv.policy import CompressionPolicy
from polykv.replay.config import DEFAULT_GATES, PERFECT, Gate, SweepConfig, normalise_candidate_ks
from polykv.storage import CaptureStore, CaptureWriter, Location, refuse_occupied

DEFAULT_POLICIES = ("two_tier", "int8")
DEFAULT_KS = ("8", "16", "32", "64", "128", "full")
FAIL_ON = ("fail", "inconclusive", "never")


@dataclass(frozen=True)
class SweepRequest:
    """A sweep as a person asks for it.

    `store` path or URL; `out` run directory; `policies` names or .json files; `ks` budgets,
    numbers or "full"; `gates` as text ("output_cosine_mean>=0.999"; none: the defaults);
    `ks_per_job` candidate_ks per job (None: all in one).
    """

    store: str
    out: str
    policies: tuple[str, ...] = DEFAULT_POLICIES
    ks: tuple[str, ...] = DEFAULT_KS
    gates: tuple[str, ...] = ()
    shared_tokens: int | None = None
    seed: int = 42
    ks_per_job: int | None = None


@dataclass(frozen=True)
class CheckedSweep:
    """A request held against its store: everything a run needs, before any work."""

    request: SweepRequest
    store: CaptureStore
    policies: tuple[CompressionPolicy, ...]
    config: SweepConfig
    notes: tuple[str, ...] = field(default_factory=tuple)


def parse_gate(text: str) -> Gate:
    """A gate from text: "output_cosine_mean>=0.999" or "output_relative_error_mean<=0.05"."""
    found = re.fullmatch(r"\s*([a-z0-9_]+)\s*(>=|<=)\s*([^\s]+)\s*", text)
    if not found:
        raise InputError(f'gate {text!r} is not "metric>=limit" or "metric<=limit"; metrics: {", ".join(PERFECT)}')
    metric, sign, limit = found.groups()
    try:
        number = float(limit)
    except ValueError as error:
        raise InputError(f"gate {text!r}: {limit!r} is not a number") from error
    return Gate(metric, "min" if sign == ">=" else "max", number)


def parse_ks(texts: Sequence[str]) -> list[int | str]:
    """Budgets from text; "full" stays a word."""
    found: list[int | str] = []
    for text in texts:
        if text == "full":
            found.append(text)
            continue
        try:
            found.append(int(text))
        except ValueError as error:
            raise InputError(f'candidate_k {text!r} is neither a whole number nor "full"') from error
    return found


def check_sweep(request: SweepRequest, storage_options: dict[str, Any] | None = None) -> CheckedSweep:
    """Open the store and refuse what cannot work: policies, budgets, gates, head_dims, splits, tiers."""
    config_ks = parse_ks(request.ks)
    policies = tuple(CompressionPolicy.resolve(name) for name in request.policies)
    if not policies:
        raise InputError("no policy to sweep; for example --policy two_tier,int8")
    names = [policy.name for policy in policies]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise InputError(f"two policies are named {twice!r}; a table needs one name a policy")
    store = CaptureStore.open(request.store, storage_options)
    ks, notes = normalise_candidate_ks(config_ks, store.meta.n_tokens)
    gates = tuple(parse_gate(text) for text in request.gates) or DEFAULT_GATES
    config = SweepConfig(ks, request.shared_tokens, gates, request.seed)
    _check_splits(store)
    _check_tiers(store, config)
    _check_codecs(store, policies)
    return CheckedSweep(request, store, policies, config, tuple(notes))


def _check_splits(store: CaptureStore) -> None:
    needed = {"select": "to choose candidate_k", "confirm": "for the verdict"}
    for split, why in needed.items():
        if not store.meta.passages(split):
            raise InputError(f"{store.url} has no passage of split {split!r}, needed {why}; capture more passages")


def _check_tiers(store: CaptureStore, config: SweepConfig) -> None:
    if config.shared_tokens is not None and config.shared_tokens >= store.meta.n_tokens:
        raise InputError(
            f"shared_tokens {config.shared_tokens} must be below the {store.meta.n_tokens} tokens of a passage: "
            "the shell would be empty"
        )


def _check_codecs(store: CaptureStore, policies: Sequence[CompressionPolicy]) -> None:
    shapes = {(spec.head_dim, spec.value_dim): spec.layer for spec in reversed(store.meta.layers)}
    for policy in policies:
        for (head_dim, value_dim), layer in shapes.items():
            for tier in ("pool", "shell"):
                policy.codec(tier, "key", layer, 0, head_dim)
                policy.codec(tier, "value", layer, 0, value_dim)


Progress = Callable[[int, int, int], None]


def run_table_path(run: str | Path, name: str) -> Path:
    """Where a run's table stands."""
    return Path(run) / f"{name}.parquet"


def plan_capture_stage(config: CaptureConfig, out: str) -> Any:
    """Load the model and rehearse one passage; a target that exists is refused before that."""
    from polykv.capture.plan import plan_capture

    refuse_occupied(Location.of(out))
    return plan_capture(config)


def capture_stage(plan: Any, out: str, on_passage: Callable[[int, int], None] | None = None) -> Any:
    """Capture every passage of a plan into a new, sealed store at `out`."""
    from polykv.capture.run import capture_to_store

    return capture_to_store(plan, CaptureWriter.create(out, plan.meta), on_passage)
