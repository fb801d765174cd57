"""Policies × candidate_k as points: what each costs, what it loses, and which are on the Pareto front."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Point:
    """One policy at one candidate_k over all cells of split confirm.

    `error`: output relative error, mean over cells and passages, with its 95 % t interval over
    passages (None below two passages, or when cells were measured on different ones). `n_pass` of
    `n_cells` measured cells pass. `bytes_per_token` of one KV head (mean over cells), codes only;
    `decode_reduction`: values a full decode touches / values decoded, over all cells.
    """

    policy: str
    candidate_k: int
    is_full: bool
    n_cells: int
    n_pass: int
    error: float
    low: float | None
    high: float | None
    bytes_per_token: float
    float16_bytes_per_token: float
    decode_reduction: float

    @property
    def percent_of_float16(self) -> float:
        return 100.0 * self.bytes_per_token / self.float16_bytes_per_token


def points(results: Iterable[Mapping[str, Any]]) -> list[Point]:
    """The points of a results table, by policy and candidate_k; failed rows are left out."""
    groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in results:
        measured = row["status"] == "ok" and row["output_relative_error_mean"] is not None
        if row["split"] == "confirm" and row["row_kind"] == "candidate" and measured:
            groups.setdefault((row["policy"], row["candidate_k"]), []).append(row)
    return [_point(policy, k, rows) for (policy, k), rows in sorted(groups.items())]


def front(found: Sequence[Point], cost: Callable[[Point], float]) -> list[Point]:
    """Points that no other beats: none has less error at no more cost. Cheapest first."""
    best: list[Point] = []
    for point in sorted(found, key=lambda p: (cost(p), p.error)):
        if not best or point.error < best[-1].error:
            best.append(point)
    return best


def mean_interval(values: np.ndarray) -> tuple[float, float] | None:
    """95 % two-sided t interval of the mean of values [passage]; None below two passages."""
    n = len(values)
    if n < 2:
        return None
    half = stdtrit(n - 1, 0.5 + CONFIDENCE / 2) * values.std(ddof=1) / np.sqrt(n)
    return float(values.mean() - half), float(values.mean() + half)


def _point(policy: str, candidate_k: int, rows: Sequence[Mapping[str, Any]]) -> Point:
    interval = _interval(rows)
    decoded = sum(row["decoded_values_total"] for row in rows)
    return Point(
        policy=policy,
        candidate_k=candidate_k,
        is_full=all(row["is_full"] for row in rows),
        n_cells=len(rows),
        n_pass=sum(row["verdict"] == "pass" for row in rows),
        error=float(np.mean([row["output_relative_error_mean"] for row in rows])),
        low=interval[0] if interval else None,
        high=interval[1] if interval else None,
        bytes_per_token=float(np.mean([row["bytes_per_token"] for row in rows])),
        float16_bytes_per_token=float(np.mean([row["float16_bytes_per_token"] for row in rows])),
        decode_reduction=sum(row["full_decode_value_count"] for row in rows) / max(1, decoded),
    )


def _interval(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    lists = [row["passage_output_relative_error"] for row in rows]
    if any(values is None or None in values for values in lists) or len({len(values) for values in lists}) != 1:
        return None
    return mean_interval(np.asarray(lists, dtype=np.float64).mean(axis=0))
