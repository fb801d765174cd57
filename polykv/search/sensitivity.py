"""How well one measure of a search ranks what another one finds."""

from __future__ import annotations

import numpy as np
from scipy.stats import spearmanr

from polykv.errors import InputError


def rank_agreement(proxy: np.ndarray, truth: np.ndarray) -> float:
    """Spearman's correlation of a proxy [unit] with what it stands for [unit], in [−1, 1].

    Raises InputError for fewer than three units, or when one side is constant or not finite.
    """
    proxy, truth = np.asarray(proxy, np.float64), np.asarray(truth, np.float64)
    if proxy.shape != truth.shape or proxy.ndim != 1 or len(proxy) < 3:
        raise InputError(
            f"ranks of {proxy.shape} and {truth.shape} units cannot be compared; both need the same 3 or more"
        )
    for name, values in (("proxy", proxy), ("truth", truth)):
        if not np.isfinite(values).all() or np.ptp(values) == 0:
            raise InputError(f"the {name} is constant or not finite: it ranks nothing")
    return float(spearmanr(proxy, truth).statistic)
