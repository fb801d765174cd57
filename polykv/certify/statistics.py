"""Intervals of a paired difference by passage, and how many passages would decide.

Log ratios of perplexity are signed, few (10 passages) and skewed to the right when a policy
loses much on a few of them; Student's t alone then passes a policy at its limit too often.
Each end is therefore the wider of Student's and the studentised bootstrap's (Efron 1981; Hall,
"Theoretical comparison of bootstrap confidence intervals", Ann. Statist. 16, 1988).
"""

from __future__ import annotations

import math

import numpy as np

from polykv.replay.statistics import MIN_PASSAGES, Interval, cluster_means, student_quantile

RESAMPLES = 2000
# Smaller than the nominal .025: with ten passages and skewed losses (gamma, log-normal σ = .5, a
# gamma shifted below zero) the nominal tail passes a policy at its limit in 4.0-4.2 % of cases.
BOOTSTRAP_TAIL = 0.015
_MOST_PASSAGES = 100_000


def paired_interval(differences: np.ndarray, documents: np.ndarray, seed: int) -> Interval:
    """95 % interval of the mean of signed differences [passage] float64; NaN ends for fewer than two units.

    Units are passages, or documents [passage] int when there are five or more of them. The mean
    is always the mean over passages. Fewer than six units: Student's interval alone, for show; no
    verdict rests on it. The same seed gives the same interval.
    """
    values = np.asarray(differences, np.float64)
    mean = float(values.mean()) if len(values) else float("nan")
    units = cluster_means(values, np.asarray(documents))
    n = len(units)
    if n < 2 or not np.isfinite(units).all():
        return Interval(mean, float("nan"), float("nan"), n)
    error = float(units.std(ddof=1)) / math.sqrt(n)
    reach = student_quantile(n - 1)
    # with fewer units most resamples are nearly constant, and their t says nothing
    below, above = _bootstrap_t(units, seed) if n >= MIN_PASSAGES else (0.0, 0.0)
    centre = float(units.mean())
    low, high = centre - max(reach, above) * error, centre + max(reach, -below) * error
    return Interval(mean, min(low, mean), max(high, mean), n)


def _bootstrap_t(units: np.ndarray, seed: int) -> tuple[float, float]:
    """Lower and upper quantile of (resampled mean − mean) / resampled standard error."""
    n = len(units)
    sample = units[np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))]
    error = sample.std(axis=1, ddof=1) / math.sqrt(n)
    usable = error > 1e-9 * np.abs(units).max()
    if not usable.any():
        return 0.0, 0.0
    t = (sample.mean(axis=1)[usable] - units.mean()) / error[usable]
    low, high = np.quantile(t, (BOOTSTRAP_TAIL, 1 - BOOTSTRAP_TAIL))
    return float(low), float(high)


def passages_to_decide(interval: Interval, limit: float, n_passages: int) -> int | None:
    """About how many passages would bring the interval to one side of `limit`.

    The mean and the spread are taken to stay as they are and the reach to shrink as Student's
    does. `n_passages` are now in `interval.n_units` units. None when the mean lies on the limit or
    more than 100,000 passages are needed.
    """
    n = interval.n_units
    if n < 2 or not math.isfinite(interval.mean):
        return MIN_PASSAGES
    end = interval.high if interval.mean <= limit else interval.low
    reach, gap = abs(end - interval.mean), abs(limit - interval.mean)
    if gap == 0:
        return None
    per_unit = max(1, n_passages) / n
    spread = reach * math.sqrt(n) / student_quantile(n - 1)
    units = max(n, math.ceil(MIN_PASSAGES / per_unit))
    while student_quantile(units - 1) * spread / math.sqrt(units) > gap:
        units = max(units + 1, math.ceil(units * 1.02))
        if units * per_unit > _MOST_PASSAGES:
            return None
    return math.ceil(units * per_unit)
