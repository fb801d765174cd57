"""The two kinds of codec a search can share bytes with: a fixed rate, or an entropy-coded one.

A kind offers the same options to every unit, each with the bytes and the cost it is expected to take
there: bytes a vector for the fixed rate, steps (in units of cost^½) for the entropy coder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from polykv.calibration.transform import Basis, fit_transform_pq
from polykv.calibration.transform_ecsq import expected_bits, expected_cost, fit_transform_ecsq, step_for_bits
from polykv.codecs.trained import TrainedCodec
from polykv.codecs.transform_ecsq import transform_ecsq_codec
from polykv.codecs.transform_pq import transform_pq_codec
from polykv.errors import InputError

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Rate:
    """options: values of the one argument, fewest bytes first; reference: index of the option that
    expectations are corrected at. size and cost: expected bytes a vector, and cost in the basis' metric,
    of an option; fit(basis, rows, option, seed): arrays; codec(arrays)."""

    name: str
    options: tuple[float, ...]
    reference: int
    size: Callable[[Basis, float], float]
    cost: Callable[[Basis, float], float]
    fit: Callable[[Basis, np.ndarray, float, int], Arrays]
    codec: Callable[[Arrays], TrainedCodec]


# Fine where most units end up, coarse above.
_BYTES = (3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18, 20, 22, 24, 28, 32)
# From an error that ruins a model to one it does not notice, a quarter of a bit a coordinate apart: in units
# of the root of a relative squared output error. A head's share of the model's KL, in nats, is about 64 times less.
_STEPS = tuple(float(0.3 * 2 ** (-i / 4)) for i in range(30))
_NATS_STEPS = tuple(step / 8 for step in _STEPS)
_BITS = 8

FIXED = Rate(
    "fixed",
    _BYTES,
    _BYTES.index(10),
    size=lambda basis, n_bytes: float(min(n_bytes, len(basis.costs))),
    cost=lambda basis, n_bytes: basis.expected_cost(int(n_bytes)),
    fit=lambda basis, rows, n_bytes, seed: fit_transform_pq(basis, rows, int(n_bytes), seed),
    codec=transform_pq_codec,
)
ENTROPY = Rate(
    "entropy",
    _STEPS,
    14,
    size=lambda basis, step: float(expected_bits(basis, step).sum()) / _BITS,
    cost=expected_cost,
    fit=lambda basis, rows, step, seed: fit_transform_ecsq(basis, rows, step),
    codec=transform_ecsq_codec,
)
RATES = {rate.name: rate for rate in (FIXED, ENTROPY)}


def rate_named(name: str, in_nats: bool = False) -> Rate:
    """ "fixed" or "entropy", for costs in nats or relative output errors; raises InputError for another name."""
    if name not in RATES:
        raise InputError(f"rate is {name!r}; known: {', '.join(RATES)}")
    rate = RATES[name]
    return replace(rate, options=_NATS_STEPS) if in_nats and rate is ENTROPY else rate


def reaching(rate: Rate, basis: Basis) -> Rate:
    """`rate` for a basis whose costs are beyond its steps: the finest takes a byte a coordinate. FIXED is as it is."""
    if rate.name != ENTROPY.name or not basis.costs[0] > 0:
        return rate
    scale = step_for_bits(basis, _BITS * len(basis.costs)) / rate.options[-1]
    return replace(rate, options=tuple(step * scale for step in rate.options))
