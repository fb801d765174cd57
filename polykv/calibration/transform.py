"""The transform under a codec: coordinates that are independent, in units of what their errors cost.

For one stream of one cell, errors e of coded vectors cost eᵀ M e: M comes from the captured
attention (no gradient, no model), or half of it from the model's gradients (`blended_metric`). With C
the covariance of the vectors, the eigenvectors of M^½ C M^½ are the coordinates, and their eigenvalues what
dropping each would cost: a Karhunen-Loève transform in the metric. `water_level` shares bits out over them (reverse
water-filling, Cover & Thomas 1991, §10.3.3), `groupings` cuts them into runs of one byte each.

basis = fit_basis(rows, metric)            # metric: key_metric(sample) or value_metric(sample)
arrays = fit_transform_pq(basis, rows, 16) # the arrays of a codec of 16 bytes a vector
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polykv.calibration.sample import Probe, Sample
from polykv.calibration.storing import ROUNDED_ROWS, smallest_dtype, stored_transforms, unit_of
from polykv.codecs.base import checked_vectors
from polykv.codecs.trained import as_integers
from polykv.codecs.transform_pq import CODEWORDS, transform_pq_codec
from polykv.errors import DimensionMismatch, InputError
from polykv.rotation import Rotation

# Share of the mean sensitivity that every direction is given: the next text asks other questions.
METRIC_FLOOR = 0.1
# Of a metric from gradients: the rest of it is the output's.
OUTPUT_SHARE = 0.5
BITS_A_GROUP = 8
MOST_BYTES = 32
_HEAVY_TOKENS = 48
_KMEANS_ROWS = 4096
_KMEANS_ITERATIONS = 6
_MOST_IN_A_GROUP = 32
_LEAST_SLOPE = 0.3


@dataclass(frozen=True, eq=False)
class Grouping:
    """edges [group + 1] int: group g codes coordinates edges[g] … edges[g + 1] − 1, those after the last
    edge are dropped; cost: what a vector so coded is expected to cost."""

    edges: tuple[int, ...]
    cost: float


@dataclass(frozen=True, eq=False)
class Basis:
    """mean [head_dim]; analysis [coordinate, head_dim] and synthesis [head_dim, coordinate] with
    synthesis · analysis = 1; costs [coordinate], falling: what dropping each coordinate costs (the
    coordinates themselves have unit variance). float64 all. groupings: see there, up to MOST_BYTES."""

    mean: np.ndarray
    analysis: np.ndarray
    synthesis: np.ndarray
    costs: np.ndarray
    groupings: tuple[Grouping, ...]

    def expected_cost(self, n_bytes: int) -> float:
        """What vectors coded in n_bytes each (at most a byte a coordinate) are expected to cost."""
        return self.grouping(n_bytes).cost

    def grouping(self, n_bytes: int) -> Grouping:
        """The runs of coordinates of a codec of n_bytes a vector, or of a byte a coordinate if that is less.

        Raises InputError for none, or more than MOST_BYTES.
        """
        if not 1 <= n_bytes <= MOST_BYTES:
            raise InputError(f"n_bytes is {n_bytes}, must be 1 to {MOST_BYTES}")
        return self.groupings[min(n_bytes, len(self.groupings)) - 1]

    def coordinates(self, rows: np.ndarray) -> np.ndarray:
        """[n, coordinate] float64 of rows [n, head_dim]."""
        return (np.asarray(rows, np.float64) - self.mean) @ self.analysis.T

    def cost(self, decoded: np.ndarray, rows: np.ndarray) -> float:
        """What rows [n, head_dim] cost, on average, that decode to `decoded` [n, head_dim]."""
        left = self.coordinates(decoded) - self.coordinates(rows)
        return float((np.square(left) @ self.costs).mean())


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


def blended_metric(nats: np.ndarray, output: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """[head_dim, head_dim] float64: half `nats` (a Fisher information, in nats), half `output` in its units.

    rows [n, head_dim] are what is coded: `output` is scaled so that dropping them costs the same in both. A
    Fisher information is noisy in its directions and right in its size; the output's is the other way round.
    """
    covariance = np.cov(np.asarray(rows, np.float64).T, bias=True).reshape(nats.shape)
    size = float(np.sum(output * covariance))
    scale = float(np.sum(nats * covariance)) / size if size > 0 else 0.0
    return (1 - OUTPUT_SHARE) * nats + OUTPUT_SHARE * scale * output


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
    return Basis(
        rows.mean(axis=0),
        turn.T @ root / spread[:, None],
        inverse @ turn * spread,
        costs,
        tuple(groupings(costs, MOST_BYTES)),
    )


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


def groupings(costs: np.ndarray, most_groups: int) -> list[Grouping]:
    """The cheapest grouping of coordinates (costs falling) into 1, 2 … min(most_groups, coordinates) runs.

    A run of m coordinates in one byte is expected to cost what reverse water-filling of 8 bits leaves,
    times what 256 codewords in m dimensions fall short of it. Found by dynamic programming.
    """
    n, most = len(costs), min(most_groups, len(costs))
    run = _run_costs(costs)
    dropped = np.concatenate([np.cumsum(costs[::-1])[::-1], [0.0]])
    best = np.full((most + 1, n + 1), np.inf)  # [groups, coordinates covered]
    best[0, 0] = 0.0
    came = np.zeros((most + 1, n + 1), np.int64)
    for groups in range(1, most + 1):
        for end in range(groups, n + 1):
            starts = np.arange(max(groups - 1, end - _MOST_IN_A_GROUP), end)
            totals = best[groups - 1, starts] + run[starts, end - starts - 1]
            place = int(totals.argmin())
            best[groups, end], came[groups, end] = totals[place], starts[place]
    return [_traced(best, came, dropped, groups) for groups in range(1, most + 1)]


def _run_costs(costs: np.ndarray) -> np.ndarray:
    """[start, length − 1] float64: expected cost of a run of coordinates in one byte; inf beyond the end."""
    n = len(costs)
    found = np.full((n, _MOST_IN_A_GROUP), np.inf)
    for start in range(n):
        for length in range(1, min(_MOST_IN_A_GROUP, n - start) + 1):
            own = costs[start : start + length]
            level = water_level(own, BITS_A_GROUP)
            active = int((own > level).sum())
            # one dimension falls 2.7 times short of the bound (Panter & Dite 1951); how that wears off is a fit by eye,
            # and a unit's expectations are corrected by what one codec of it really left
            found[start, length - 1] = np.minimum(own, level * (1 + 1.7 / max(active, 1) ** 0.6)).sum()
    return found


def _traced(best: np.ndarray, came: np.ndarray, dropped: np.ndarray, groups: int) -> Grouping:
    totals = best[groups] + dropped
    end = int(totals.argmin())
    cost, edges = float(totals[end]), [end]
    for left in range(groups, 0, -1):
        end = int(came[left, end])
        edges.append(end)
    return Grouping(tuple(reversed(edges)), cost)


def fit_transform_pq(basis: Basis, rows: np.ndarray, n_bytes: int, seed: int = 0) -> dict[str, np.ndarray]:
    """The arrays of a `TransformPqCodec` of `n_bytes` a vector, fitted to rows [n, head_dim].

    Codewords are means of their cells, which draws decoded vectors towards the mean; the synthesis gives them back
    how much they vary (see `_gains`). Transforms and codewords are stored as integers (`smallest_dtype`). The same rows and
    seed give the same bytes. At most 4,096 rows, evenly spaced, are used. Raises InputError when there are fewer than 256.
    """
    if len(rows) < CODEWORDS:
        raise InputError(
            f"{len(rows)} calibration vectors cannot fit {CODEWORDS} codewords; capture more passages of split calibrate"
        )
    edges = basis.grouping(n_bytes).edges
    # what the plan would drop joins the last run: a codeword may as well carry its mean
    edges = (*edges[:-1], len(basis.costs))
    group = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    used = rows[np.linspace(0, len(rows) - 1, min(len(rows), _KMEANS_ROWS)).round().astype(np.int64)]
    # codewords are fitted in units of cost, so that a group's nearest codeword is the cheapest one
    spread = np.sqrt(basis.costs[: len(group)]) / unit_of(basis.costs)
    spread = np.where(spread > 0, spread, 1.0)
    z = (basis.coordinates(used)[:, : len(group)] * spread).astype(np.float32)
    words = np.empty((CODEWORDS, len(group)), np.float32)
    for number in range(int(group[-1]) + 1):
        place = group == number
        words[:, place] = _kmeans(z[:, place], np.random.default_rng([seed, number]))
    gains = _gains(z, words, group)
    analysis, synthesis = stored_transforms(basis.analysis * spread[:, None], basis.synthesis / spread)

    def stored_as(dtype: type) -> dict[str, np.ndarray]:
        return {
            "mean": basis.mean.astype(np.float32),
            **analysis,
            **as_integers("synthesis", synthesis * gains, 0, dtype),
            "group": group.astype(np.uint8),
            **as_integers("codewords", words, 0, dtype),
        }

    sample = used[:: -(-len(used) // ROUNDED_ROWS)]

    def cost(dtype: type) -> float:
        codec = transform_pq_codec(stored_as(dtype))
        return basis.cost(codec.decode(codec.encode(sample)), sample)

    return stored_as(smallest_dtype(cost, synthesis.size + words.size, len(basis.mean)))


def _gains(z: np.ndarray, words: np.ndarray, group: np.ndarray) -> np.ndarray:
    """[coordinate] float64, ≥ 1: what makes decoded coordinates vary as much as z [n, coordinate] does.

    Means of cells, words [256, coordinate], have the smallest error and vary too little: by the slope of
    decoded over z. Attention sums over many tokens, where noise cancels and a wrong size does not. slope^−½ is
    right (SmolLM2, 2,240 bytes: KL .0211 without, .0163 with it, .0194 with a slope of 1).
    """
    decoded = np.empty_like(z)
    for number in range(int(group[-1]) + 1):
        place = group == number
        decoded[:, place] = words[:, place][_nearest(z[:, place], words[:, place])]
    size = np.einsum("nd,nd->d", z, z, dtype=np.float64)
    shared = np.einsum("nd,nd->d", decoded, z, dtype=np.float64)
    slope = np.divide(shared, size, out=np.ones_like(size), where=size > 0)
    return np.clip(slope, _LEAST_SLOPE, 1.0) ** -0.5


def _nearest(rows: np.ndarray, words: np.ndarray) -> np.ndarray:
    """[n] int64: the nearest of words [256, d] to each of rows [n, d]."""
    return (rows @ (-2 * words.T) + np.einsum("kd,kd->k", words, words)).argmin(axis=1)


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
        cells = _nearest(rows, words)
        counts = np.bincount(cells, minlength=CODEWORDS)
        sums = np.stack([np.bincount(cells, column, minlength=CODEWORDS) for column in rows.T], axis=1)
        fresh = rows[rng.choice(len(rows), CODEWORDS)]
        words = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], fresh).astype(np.float32)
    return words
