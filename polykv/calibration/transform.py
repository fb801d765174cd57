"""The transform under a codec: coordinates that are independent, in units of what their errors cost.

For one stream of one cell, errors e of coded vectors cost eᵀ M e: M comes from the captured
attention (no gradient, no model). With C the covariance of the vectors, the eigenvectors of
M^½ C M^½ are the coordinates, and their eigenvalues what dropping each would cost: a
Karhunen-Loève transform in the metric. `water_level` shares bits out over them (reverse
water-filling, Cover & Thomas 1991, §10.3.3).

basis = fit_basis(rows, metric)            # metric: key_metric(sample) or value_metric(sample)
arrays = fit_transform_pq(basis, rows, 16) # the arrays of a codec of 16 bytes a vector
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polykv.calibration.sample import Probe, Sample
from polykv.codecs.base import checked_vectors
from polykv.codecs.transform_pq import CODEWORDS
from polykv.errors import DimensionMismatch, InputError
from polykv.rotation import Rotation

# Share of the mean sensitivity that every direction is given: the next text asks other questions.
METRIC_FLOOR = 0.1
BITS_A_GROUP = 8
_HEAVY_TOKENS = 48
_KMEANS_ROWS = 4096
_KMEANS_ITERATIONS = 6
# what 256 codewords leave of a unit-variance Gaussian, against the bound 2^(−2b): about .5 dB to 1.5 dB
_ABOVE_THE_BOUND = 1.35


@dataclass(frozen=True, eq=False)
class Basis:
    """mean [head_dim]; analysis [coordinate, head_dim] and synthesis [head_dim, coordinate] with
    synthesis · analysis = 1; costs [coordinate], falling: what dropping each coordinate costs (the
    coordinates themselves have unit variance). float64 all."""

    mean: np.ndarray
    analysis: np.ndarray
    synthesis: np.ndarray
    costs: np.ndarray

    def coordinates(self, rows: np.ndarray) -> np.ndarray:
        """[n, coordinate] float64 of rows [n, head_dim]."""
        return (np.asarray(rows, np.float64) - self.mean) @ self.analysis.T


def key_metric(sample: Sample, rotation: Rotation | None = None) -> np.ndarray:
    """[head_dim, head_dim] float64: M of keys, from the probes of a key sample.

    To first order an error e of key j moves the output by scale · p_j (v_j − o)(q·e), so
    M = mean over queries of Σ_j (scale · p_j ‖v_j − o‖ / ‖o‖)² q qᵀ, pairs attended exactly left
    out: eᵀMe summed over tokens is the squared relative error of the attention output. With a
    `rotation` it is the metric of keys before RoPE: q is turned back by each token's position, and
    the heaviest tokens of a query stand for all. Raises InputError when nothing counts.
    """
    total, n = np.zeros((sample.rows.shape[1],) * 2), 0
    for probe in sample.probes:
        reach, seen = _reach(probe)
        size = np.square(probe.outputs).sum(axis=1)
        moved = np.square(probe.values).sum(axis=1)[None, :] - 2 * probe.outputs @ probe.values.T + size[:, None]
        weights = (reach * np.maximum(moved, 0.0))[seen] * probe.spec.softmax_scale**2 / size[seen, None]
        total += _outer(probe.queries[seen], weights, rotation)
        n += int(seen.sum())
    return _checked_metric(total, n)


def value_metric(sample: Sample) -> np.ndarray:
    """[value_dim, value_dim] float64: M of values, mean over queries of Σ_j p_j² / ‖o‖² times one."""
    total, n = 0.0, 0
    for probe in sample.probes:
        reach, seen = _reach(probe)
        total += float((reach[seen].sum(axis=1) / np.square(probe.outputs[seen]).sum(axis=1)).sum())
        n += int(seen.sum())
    return _checked_metric(total * np.eye(sample.rows.shape[1]), n)


def fit_basis(rows: np.ndarray, metric: np.ndarray) -> Basis:
    """The coordinates of rows [n, head_dim] (n ≥ 2) in the metric [head_dim, head_dim].

    METRIC_FLOOR of the mean sensitivity is added in every direction.
    """
    rows = checked_vectors(rows, np.shape(rows)[1] if np.ndim(rows) == 2 else 0, "rows").astype(np.float64)
    width = rows.shape[1]
    if np.shape(metric) != (width, width):
        raise DimensionMismatch(f"rows are {width} wide, the metric is {np.shape(metric)}")
    if len(rows) < 2:
        raise InputError(f"{len(rows)} vector has no covariance; at least 2 are needed")
    floored = metric + METRIC_FLOOR * np.trace(metric) / width * np.eye(width)
    sizes, axes = np.linalg.eigh(floored)
    root, inverse = (axes * np.sqrt(sizes)) @ axes.T, (axes / np.sqrt(sizes)) @ axes.T
    costs, turn = np.linalg.eigh(root @ np.cov(rows.T, bias=True).reshape(width, width) @ root)
    order = np.argsort(-costs, kind="stable")
    costs, turn = np.maximum(costs[order], 0.0), turn[:, order]
    spread = np.sqrt(np.maximum(costs, costs.max() * 1e-12 if costs.max() > 0 else 1.0))
    return Basis(rows.mean(axis=0), turn.T @ root / spread[:, None], inverse @ turn * spread, costs)


def water_level(costs: np.ndarray, total_bits: float) -> float:
    """θ with Σ max(0, ½ log₂(costs / θ)) = total_bits > 0: what each coordinate is let cost."""
    costs = np.sort(costs[costs > 0])[::-1]
    if len(costs) == 0:
        return 0.0
    logs = np.log2(costs)
    for n in range(len(costs), 0, -1):
        level = (logs[:n].sum() - 2 * total_bits) / n
        if level <= logs[n - 1]:
            return float(2.0**level)
    return float(2.0 ** (logs[0] - 2 * total_bits))


def expected_cost(basis: Basis, n_bytes: int) -> float:
    """What vectors coded in `n_bytes` each are expected to cost, by the rate-distortion bound and a constant."""
    level = water_level(basis.costs, BITS_A_GROUP * n_bytes)
    return float(np.where(basis.costs > level, np.minimum(basis.costs, _ABOVE_THE_BOUND * level), basis.costs).sum())


def group_coordinates(costs: np.ndarray, n_bytes: int) -> np.ndarray:
    """[coordinate] int64: the group of each leading coordinate that gets any bits, groups worth 8 bits each.

    Fewer coordinates than bytes: a coordinate a group, and no more groups than coordinates.
    """
    level = water_level(costs, BITS_A_GROUP * n_bytes)
    bits = np.maximum(0.0, 0.5 * np.log2(np.maximum(costs, 1e-300) / max(level, 1e-300)))
    bits = bits[: max(1, int(np.count_nonzero(bits)))]
    middle = np.cumsum(bits) - bits / 2
    return np.unique(np.minimum(middle // BITS_A_GROUP, n_bytes - 1), return_inverse=True)[1].astype(np.int64)


def fit_transform_pq(basis: Basis, rows: np.ndarray, n_bytes: int, seed: int = 0) -> dict[str, np.ndarray]:
    """The arrays of a `TransformPqCodec` of about `n_bytes` a vector, fitted to rows [n, head_dim].

    Transforms and codewords are stored as float16. The same rows and seed give the same bytes. At
    most 4,096 rows, evenly spaced, are used. Raises InputError when there are fewer than 256.
    """
    if len(rows) < CODEWORDS:
        raise InputError(
            f"{len(rows)} calibration vectors cannot fit {CODEWORDS} codewords; capture more passages of split calibrate"
        )
    if n_bytes < 1:
        raise InputError(f"n_bytes is {n_bytes}, must be at least 1")
    group = group_coordinates(basis.costs, n_bytes)
    used = rows[np.linspace(0, len(rows) - 1, min(len(rows), _KMEANS_ROWS)).round().astype(np.int64)]
    # codewords are fitted in units of cost, so that a group's nearest codeword is the cheapest one
    spread = np.sqrt(basis.costs[: len(group)])
    spread = np.where(spread > 0, spread, 1.0)
    z = (basis.coordinates(used)[:, : len(group)] * spread).astype(np.float32)
    words = np.empty((CODEWORDS, len(group)), np.float32)
    for number in range(int(group[-1]) + 1):
        place = group == number
        words[:, place] = _kmeans(z[:, place], np.random.default_rng([seed, number]))
    scale = float(np.sqrt(np.square(spread).mean()))  # float16 holds numbers about one best
    return {
        "mean": basis.mean.astype(np.float32),
        "analysis": (basis.analysis[: len(group)] * (spread / scale)[:, None]).astype(np.float16),
        "synthesis": (basis.synthesis[:, : len(group)] / (spread / scale)).astype(np.float16),
        "group": group.astype(np.uint8),
        "codewords": (words / scale).astype(np.float16),
    }


def _outer(queries: np.ndarray, weights: np.ndarray, rotation: Rotation | None) -> np.ndarray:
    """[head_dim, head_dim]: Σ weights[q, j] · q_j q_jᵀ, with q_j the query turned back to token j's frame."""
    if rotation is None:
        return np.einsum("q,qd,qe->de", weights.sum(axis=1), queries, queries)
    n_heavy = min(_HEAVY_TOKENS, weights.shape[1])
    tokens = np.argsort(-weights, axis=1, kind="stable")[:, :n_heavy]
    heavy = np.take_along_axis(weights, tokens, axis=1)
    kept = heavy.sum(axis=1, keepdims=True)
    heavy = heavy * np.divide(weights.sum(axis=1, keepdims=True), kept, out=np.zeros_like(kept), where=kept > 0)
    turned = rotation.undo(np.repeat(queries, n_heavy, axis=0), tokens.ravel()).astype(np.float64)
    return (turned * heavy.reshape(-1, 1)).T @ turned


def _reach(probe: Probe) -> tuple[np.ndarray, np.ndarray]:
    """(p² [query, token] of coded tokens, [query] bool: the output is not zero)."""
    return np.where(probe.exact, 0.0, np.exp(2 * probe.log_weights)), np.square(probe.outputs).sum(axis=1) > 0


def _checked_metric(total: np.ndarray, n_queries: int) -> np.ndarray:
    if n_queries == 0 or not np.trace(total) > 0:
        raise InputError("no captured query attends to a coded token: the output-error metric has nothing to weigh")
    return total / n_queries


def _kmeans(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[256, d] float32 centroids of rows [n, d] float32; an empty cell starts anew at a row drawn at random."""
    words = rows[rng.choice(len(rows), CODEWORDS, replace=False)]
    for _ in range(_KMEANS_ITERATIONS):
        cells = (rows @ (-2 * words.T) + np.einsum("kd,kd->k", words, words)).argmin(axis=1)
        counts = np.bincount(cells, minlength=CODEWORDS)
        sums = np.stack([np.bincount(cells, column, minlength=CODEWORDS) for column in rows.T], axis=1)
        fresh = rows[rng.choice(len(rows), CODEWORDS)]
        words = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], fresh).astype(np.float32)
    return words
