"""The seed's arithmetic, to its order of operations (seed document 003).

Products and sums are float32, added left to right; exponentials and sines are taken in float64
and rounded, so that they are the same on every processor. Where the seed gives a polite answer to
a question that has none (softmax of something not finite: uniform; cosine of a zero
vector: 0; MSE of nothing: 0), `polite` must be true to get it; otherwise the answer is NaN.
"""

from __future__ import annotations

import numpy as np

from polykv.ranking import descending_key

_F32_EPSILON = np.float32(np.finfo(np.float32).eps)
_F64_EPSILON = np.finfo(np.float64).eps


def dot_f32(rows: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """[n] float32 inner products of rows [n, d] with vector [d]."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.add.accumulate(rows * vector, axis=1)[:, -1]


def softmax_f32(scores: np.ndarray, polite: bool) -> np.ndarray:
    """Row-wise softmax of [row, n] float32; a row whose sum is not finite is uniform (polite) or NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        shifted = scores - np.fmax.reduce(scores, axis=1, keepdims=True)
        weights = np.exp(shifted.astype(np.float64)).astype(np.float32)
        total = np.add.accumulate(weights, axis=1)[:, -1:]
        defined = np.isfinite(total) & (total > _F32_EPSILON)
        fallback = np.float32(1) / np.float32(scores.shape[1]) if polite else np.float32(np.nan)
        return np.where(defined, weights / np.where(defined, total, np.float32(1)), fallback)


def attend_f32(scores: np.ndarray, values: np.ndarray, polite: bool) -> np.ndarray:
    """Attention output [d] float32 of scores [n] and values [n, d], summed in the order given."""
    weights = softmax_f32(scores[None, :], polite)[0]
    with np.errstate(over="ignore", invalid="ignore"):
        return np.add.accumulate(weights[:, None] * values, axis=0)[-1]


def project_f32(output: np.ndarray | None, projection: np.ndarray) -> np.ndarray:
    """Logits [label] float32 = projection [label, d] · output [d]; no output (None) gives −0.0 everywhere."""
    if output is None:
        return np.full(len(projection), -0.0, np.float32)
    return dot_f32(projection, output)


def argmax_last(logits: np.ndarray) -> np.ndarray:
    """[row] int: place of the largest of [row, label] in IEEE total order, the last one on ties."""
    backwards = descending_key(logits[:, ::-1])
    return logits.shape[1] - 1 - backwards.argmin(axis=1)


def cosine_f64(a: np.ndarray, b: np.ndarray | None, polite: bool) -> float:
    """Cosine of [d] float32 vectors in float64; where one is zero or missing, 0.0 (polite) or NaN."""
    if b is None:
        return 0.0 if polite else float("nan")
    left, right = a.astype(np.float64), b.astype(np.float64)
    norms = np.sqrt(left @ left), np.sqrt(right @ right)
    if min(norms) <= _F64_EPSILON:
        return 0.0 if polite else float("nan")
    return float((left @ right) / (norms[0] * norms[1]))


def mse_f64(a: np.ndarray, b: np.ndarray | None, polite: bool) -> float:
    """Mean squared difference in float64; against nothing −0.0 (polite, an empty sum) or NaN."""
    if b is None:
        return -0.0 if polite else float("nan")
    return float(np.mean(np.square(a.astype(np.float64) - b.astype(np.float64))))


def output_projection(vocab_size: int, head_dim: int, seed: int) -> np.ndarray:
    """[vocab, head_dim] float32: 0.25 sin x + 0.10 cos x, x = 0.013 (v+1) + 0.017 (i+1) + 0.0001 seed."""
    f32 = np.float32
    labels = (np.arange(vocab_size, dtype=f32)[:, None] + f32(1)) * f32(0.013)
    x = labels + (np.arange(head_dim, dtype=f32)[None, :] + f32(1)) * f32(0.017) + f32(seed) * f32(0.0001)
    wide = x.astype(np.float64)
    return np.sin(wide).astype(f32) * f32(0.25) + np.cos(wide).astype(f32) * f32(0.10)
