"""Lloyd-Max levels of a standard normal: the least-squares scalar quantiser of rotated coordinates."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri

from polykv.codecs.rotation import frozen

_ITERATIONS = 200


@lru_cache(maxsize=16)
def lloyd_max_levels(bits: int) -> np.ndarray:
    """[2^bits] float64, ascending, read-only (Max 1960, Lloyd 1982)."""
    count = 2**bits
    levels = np.sqrt(3.0) * ndtri((np.arange(count) + 0.5) / count)
    for _ in range(_ITERATIONS):
        edges = np.concatenate(([-np.inf], (levels[1:] + levels[:-1]) / 2, [np.inf]))
        density = np.exp(-np.square(edges) / 2) / np.sqrt(2 * np.pi)
        levels = -np.diff(density) / np.diff(ndtr(edges))
    return frozen(levels)
