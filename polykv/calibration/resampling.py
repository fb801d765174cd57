"""Bootstrap over independent units (passages, documents), and points on a rate curve.

Percentile intervals are too narrow when there are few units; the levels are widened as in
Hesterberg, "What teachers should know about the bootstrap" (2015), the *expanded percentile*
interval: α/2 becomes Φ(−√(n/(n−1)) · t(1−α/2, n−1)), which for a mean gives about the t interval.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import norm, t

# Resamples times units held at once: half a million counts are 4 MB of float64.
CHUNK_COUNTS = 500_000


def bootstrap_sums(per_unit: np.ndarray, n_resamples: int, seed: int) -> np.ndarray:
    """[resample, column] float64: column sums of `per_unit` [unit, column] over units drawn with replacement."""
    n_units = len(per_unit)
    rng = np.random.default_rng(seed)
    chunk = max(1, CHUNK_COUNTS // max(1, n_units))
    sums = []
    for start in range(0, n_resamples, chunk):
        count = min(chunk, n_resamples - start)
        drawn = rng.integers(0, n_units, (count, n_units)) + np.arange(count)[:, None] * n_units
        counts = np.bincount(drawn.ravel(), minlength=count * n_units).reshape(count, n_units)
        sums.append(counts.astype(np.float64) @ per_unit)
    return np.concatenate(sums)


def interval(replicates: np.ndarray, n_units: int, confidence: float = 0.95) -> tuple[float, float]:
    """(low, high): the expanded percentile interval of bootstrap replicates [resample]; n_units ≥ 2."""
    tail = norm.cdf(-np.sqrt(n_units / (n_units - 1)) * t.ppf((1 + confidence) / 2, n_units - 1))
    low, high = np.quantile(replicates, (tail, 1 - tail))
    return float(low), float(high)


def time_sharing(bits: np.ndarray, squared_error: np.ndarray, at: float) -> np.ndarray:
    """[point] float64 weights, sum 1: the mix of points that has least squared error at no more than `at` bits.

    The points' lower convex hull: coding some vectors at one point and the rest at another has
    the weighted bits and the weighted squared error, so what is interpolated can really be had.
    bits [point], one of them 0; squared_error [point]; at in bits.

    With points (0, 1.0), (80, 0.36), (144, 0.12) and at = 112 the weights are 0, ½, ½: error² 0.24.
    """
    weights = np.zeros(len(bits))
    best = np.inf
    for low in np.flatnonzero(bits <= at):
        if squared_error[low] < best:
            best, weights = squared_error[low], np.eye(len(bits))[low]
        for high in np.flatnonzero(bits > at):
            share = (at - bits[low]) / (bits[high] - bits[low])
            mixed = (1 - share) * squared_error[low] + share * squared_error[high]
            if mixed < best:
                best, weights = mixed, (1 - share) * np.eye(len(bits))[low] + share * np.eye(len(bits))[high]
    return weights
