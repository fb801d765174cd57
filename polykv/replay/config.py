"""What a sweep is asked to do: budgets, tiers' split, gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from polykv.errors import InputError

FULL = "full"
MAX_CANDIDATE_K = 2**63 - 1  # the results table counts in 64 bits

# Gateable metrics, with the value a perfect replay reaches; intervals are taken of the
# distance to it.
PERFECT = {
    "output_cosine_mean": 1.0,
    "output_relative_error_mean": 0.0,
    "score_correlation_mean": 1.0,
    "attention_kl_mean": 0.0,
    "attention_mass_kept_mean": 1.0,
    "topk_recall_mean": 1.0,
    "selection_cosine_mean": 1.0,
    "selection_relative_error_mean": 0.0,
    "codec_cosine_mean": 1.0,
    "codec_relative_error_mean": 0.0,
    "label_kl_mean": 0.0,
}

# Gateable metrics that are null where the capture holds no logits.
NEEDS_LOGITS = ("label_kl_mean",)


@dataclass(frozen=True)
class Gate:
    """One limit: `metric` must be ≥ limit (direction "min") or ≤ limit (direction "max")."""

    metric: str
    direction: str
    limit: float

    def __post_init__(self) -> None:
        if self.direction not in ("min", "max"):
            raise InputError(f"gate {self.metric}: direction is {self.direction!r}; known: min, max")
        if not np.isfinite(self.limit):
            raise InputError(f"gate {self.metric}: limit is {self.limit}, must be finite")

    def meets(self, value: float | None) -> bool:
        """Whether the value meets the limit; a missing or non-finite value never does."""
        if value is None or not np.isfinite(value):
            return False
        return value >= self.limit if self.direction == "min" else value <= self.limit


# About +1 % perplexity (FRONTIER: a mean cosine of .998 costs +1 %, .9935 +8 %).
DEFAULT_GATES = (
    Gate("output_cosine_mean", "min", 0.999),
    Gate("output_relative_error_mean", "max", 0.05),
)

# Seed document 003, in its order; far too wide for one head.
SEED_GATES = (
    Gate("output_cosine_mean", "min", 0.75),
    Gate("output_mse_mean", "max", 0.25),
    Gate("kl_divergence_mean", "max", 0.50),
    Gate("abs(ppl_proxy_delta)", "max", 1.0),
    Gate("top1_agreement", "min", 0.25),
)


@dataclass(frozen=True)
class SweepConfig:
    """One sweep over a capture.

    `candidate_ks`: budgets of decoded values per query, ascending, each ≥ 1, "full" already
    resolved to the token count (see `normalise_candidate_ks`). `shared_tokens` splits pool
    from shell (None: half of each passage).
    """

    candidate_ks: tuple[int, ...]
    shared_tokens: int | None = None
    gates: tuple[Gate, ...] = DEFAULT_GATES
    seed: int = 42

    def __post_init__(self) -> None:
        if not self.candidate_ks:
            raise InputError("candidate_ks must not be empty")
        if any(isinstance(k, bool) or not isinstance(k, int) or k < 1 for k in self.candidate_ks):
            raise InputError(f"candidate_ks must be whole numbers ≥ 1, got {list(self.candidate_ks)}")
        if list(self.candidate_ks) != sorted(set(self.candidate_ks)):
            raise InputError(f"candidate_ks must ascend without repeats, got {list(self.candidate_ks)}")
        if self.shared_tokens is not None and self.shared_tokens < 1:
            raise InputError(f"shared_tokens is {self.shared_tokens}, must be at least 1")
        if self.candidate_ks[-1] > MAX_CANDIDATE_K:
            raise InputError(f'candidate_k {self.candidate_ks[-1]} is beyond {MAX_CANDIDATE_K}; "full" is all there is')
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise InputError(f"seed is {self.seed!r}, must be a whole number ≥ 0")
        unknown = [gate.metric for gate in self.gates if gate.metric not in PERFECT]
        if unknown:
            raise InputError(f"no gate can be set on {unknown[0]!r}; gateable: {', '.join(PERFECT)}")
        for gate in self.gates:
            _check_direction(gate)
        if not self.gates:
            raise InputError("gates must not be empty: a sweep without a gate has no verdict")

    def to_dict(self) -> dict[str, Any]:
        return {
            "candidate_ks": list(self.candidate_ks),
            "shared_tokens": self.shared_tokens,
            "gates": [{"metric": g.metric, "direction": g.direction, "limit": g.limit} for g in self.gates],
            "seed": self.seed,
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> SweepConfig:
        names = {f.name for f in fields(cls)}
        unknown = sorted(set(raw) - names)
        if unknown:
            raise InputError(f"a sweep config has no field {unknown[0]!r}; it has {', '.join(sorted(names))}")
        found = dict(raw)
        found["candidate_ks"] = tuple(found["candidate_ks"])
        found["gates"] = tuple(Gate(**gate) for gate in found["gates"])
        return cls(**found)


def _check_direction(gate: Gate) -> None:
    """A gate that a perfect replay fails can only be a slip of the sign."""
    if not gate.meets(PERFECT[gate.metric]):
        sign = {"min": ">=", "max": "<="}[gate.direction]
        raise InputError(
            f"gate {gate.metric}{sign}{gate.limit:g} refuses even a perfect replay, whose value is "
            f"{PERFECT[gate.metric]:g}: check sign and limit"
        )


def normalise_candidate_ks(asked: Sequence[int | str], n_tokens: int) -> tuple[tuple[int, ...], list[str]]:
    """Budgets ready for `SweepConfig`, and notes on what was changed.

    "full" becomes `n_tokens` (more than any query sees); the list is sorted and
    de-duplicated with a note. Raises InputError for an empty list, for 0 and for negative
    numbers: a budget of nothing has no attention output (only the seed's replay accepts it).
    """
    if not asked:
        raise InputError("candidate_ks must not be empty; for example --ks 8,16,32,full")
    notes: list[str] = []
    numbers: list[int] = []
    for item in asked:
        if item == FULL:
            numbers.append(n_tokens)
        elif isinstance(item, (int, np.integer)) and not isinstance(item, bool):
            if item < 1:
                raise InputError(f"candidate_k {item} is not possible: a query must decode at least 1 value")
            numbers.append(int(item))
        else:
            raise InputError(f'candidate_k {item!r} is neither a whole number nor "full"')
    ordered = tuple(sorted(set(numbers)))
    if len(ordered) < len(numbers):
        notes.append(f"candidate_ks: {len(numbers) - len(ordered)} repeated value(s) dropped (full is {n_tokens})")
    if list(dict.fromkeys(numbers)) != list(ordered):
        notes.append(f"candidate_ks sorted: {', '.join(map(str, ordered))}")
    above = [k for k in ordered if k > n_tokens]
    if above:
        notes.append(f"candidate_ks {above} exceed the {n_tokens} tokens of a passage: they are full")
    return ordered, notes
