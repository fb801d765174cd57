"""Exact attention in numpy: the yardstick that captures and replays are held against.

The rules are those of the models captured (see `LayerSpec`): logits are
softmax_scale · q·k, soft-capped when the layer has a cap; query position i sees token j when
j ≤ i and, in a sliding-window layer, i − j < W; a learned sink logit takes part in the
softmax and carries no value. All arithmetic is float64.
"""

from __future__ import annotations

import numpy as np

from polykv.types import LayerSpec


def visible_mask(positions: np.ndarray, n_tokens: int, sliding_window: int | None) -> np.ndarray:
    """[query, token] bool: which tokens each query may attend to.

    `positions` [query] int: the token index of each query. With W = 2, the query at position 3
    sees tokens 2 and 3.
    """
    age = np.asarray(positions)[:, None] - np.arange(n_tokens)[None, :]
    seen = age >= 0
    return seen if sliding_window is None else seen & (age < sliding_window)


def attention_logits(scores: np.ndarray, spec: LayerSpec) -> np.ndarray:
    """Raw q·k products as the layer's softmax sees them: scaled, then soft-capped; float64."""
    logits = np.asarray(scores, dtype=np.float64) * spec.softmax_scale
    if spec.logit_softcap is not None:
        logits = spec.logit_softcap * np.tanh(logits / spec.logit_softcap)
    return logits


def masked_softmax(logits: np.ndarray, mask: np.ndarray, sink_logit: float | None = None) -> np.ndarray:
    """[query, token] float64 weights over the visible tokens; 0 elsewhere.

    A row with nothing visible is all zero. With a sink logit the rows sum to less than 1.
    """
    floor = -np.inf if sink_logit is None else float(sink_logit)
    masked = np.where(mask, logits, -np.inf)
    top = np.maximum(masked.max(axis=1, initial=-np.inf), floor)
    top = np.where(np.isfinite(top), top, 0.0)
    weights = np.exp(masked - top[:, None])
    total = weights.sum(axis=1) + (np.exp(floor - top) if sink_logit is not None else 0.0)
    return weights / np.where(total > 0, total, 1.0)[:, None]


def attend(
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    positions: np.ndarray,
    spec: LayerSpec,
    sink_logit: float | None = None,
) -> np.ndarray:
    """Attention output of one query head, [query, value_dim] float64.

    queries [query, head_dim], keys [token, head_dim], values [token, value_dim] without
    padding; positions [query] int.
    """
    scores = np.asarray(queries, np.float64) @ np.asarray(keys, np.float64).T
    mask = visible_mask(positions, len(keys), spec.sliding_window)
    weights = masked_softmax(attention_logits(scores, spec), mask, sink_logit)
    return weights @ np.asarray(values, np.float64)


def relative_error(got: np.ndarray, expected: np.ndarray) -> float:
    """‖got − expected‖ / ‖expected‖ over all entries; 0 when both are zero, inf when only `expected` is."""
    expected = np.asarray(expected, np.float64)
    difference = np.asarray(got, np.float64) - expected
    norm, error = np.linalg.norm(expected), np.linalg.norm(difference)
    if norm == 0.0:
        return 0.0 if error == 0.0 else float("inf")
    return float(error / norm)
