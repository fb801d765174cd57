"""Label metrics of seed document 003, in batches.

p, q [query, label] are float64 probabilities; the floors of 1e-12 are the seed's.
"""

from __future__ import annotations

import numpy as np

FLOOR = 1e-12


def softmax_f64(logits: np.ndarray) -> np.ndarray:
    """Row-wise softmax in float64; a row with a non-finite logit is NaN, never uniform."""
    logits = np.asarray(logits, np.float64)
    with np.errstate(invalid="ignore"):
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True)


def kl_divergence(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """KL(p ‖ q) in nats, row-wise; q is floored at 1e-12, terms with p = 0 are 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p <= 0, 0.0, p * np.log(p / np.maximum(q, FLOOR)))
    return terms.sum(axis=-1)


def nll(p: np.ndarray, label: np.ndarray) -> np.ndarray:
    """−ln p[label] in nats, row-wise (label has p's axes but the last); p is floored at 1e-12."""
    chosen = np.take_along_axis(p, np.asarray(label)[..., None], axis=-1)[..., 0]
    return -np.log(np.maximum(chosen, FLOOR))
