"""Attention over a compressed cache, for every query of a passage or its last ones: numpy in, numpy out.

In a whole-sequence forward each query sees the cache as it would stand at its own position:
tokens before it coded by their tier (the first `shared` tokens by the pool, later ones by the
shell, whichever side the query is on), its sinks and its recent window exact. Nothing a query
sees depends on a later token: codecs code token by token, or in groups that the window covers.
Arithmetic is float32, as in the model.

Where a policy's `unselected_values` is "mean", the softmax runs over all a query sees, and the
weight of the candidates it does not decode goes to the mean of the decoded values of all its own
candidates, read off one running sum over the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from polykv.attention import visible_mask
from polykv.certify.cells import CellPlan
from polykv.ranking import best_candidates
from polykv.replay.head import exact_token_mask
from polykv.replay.passage import encode_tiers
from polykv.types import Cell, LayerSpec

# Queries are worked off in blocks: their score rows then fit the processor's cache, and a block
# need not look at tokens after its last query.
QUERY_BLOCK = 128


@dataclass(frozen=True, eq=False)
class LayerInputs:
    """One layer's attention call for one passage, float32.

    queries [q_head, query, head_dim] and keys [kv_head, token, head_dim] after RoPE, values
    [kv_head, token, value_dim]; sink_logits [q_head] or None. The queries are those of the last
    tokens: of all of them in a whole-sequence forward, of the newest in a decoding step.
    """

    spec: LayerSpec
    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    sink_logits: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class CellUse:
    """What one cell kept and decoded for one passage.

    code_bytes: bytes of all codes, K and V. decoded, exact, visible [query] int64: values each
    query decoded, attended exactly, and could see, summed over the query heads of the cell.
    """

    cell: Cell
    code_bytes: int
    decoded: np.ndarray
    exact: np.ndarray
    visible: np.ndarray


def attend_layer(inputs: LayerInputs, plans: Mapping[Cell, CellPlan], shared: int) -> tuple[np.ndarray, list[CellUse]]:
    """(out [query, q_head, value_dim] float32, what each cell used) of one layer under a policy."""
    spec, n_queries = inputs.spec, inputs.queries.shape[1]
    out = np.empty((n_queries, spec.n_q_heads, spec.value_dim), np.float32)
    uses = []
    for head in range(spec.n_kv_heads):
        group = slice(head * spec.group_size, (head + 1) * spec.group_size)
        sinks = None if inputs.sink_logits is None else inputs.sink_logits[group]
        plan = plans[Cell(spec.layer, head)]
        got, use = attend_cell(inputs.queries[group], inputs.keys[head], inputs.values[head], plan, spec, shared, sinks)
        out[:, group] = got.transpose(1, 0, 2)
        uses.append(use)
    return out, uses


def attend_cell(
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    plan: CellPlan,
    spec: LayerSpec,
    shared: int,
    sink_logits: np.ndarray | None = None,
) -> tuple[np.ndarray, CellUse]:
    """(out [group, query, value_dim] float32, use) of the query heads that share one KV head.

    queries [group, query, head_dim] of the last tokens, keys [token, head_dim], values [token,
    value_dim]; sink_logits [group] or None. candidate_k is each query head's own budget over the tokens that
    are neither sink nor recent; the mean of what it leaves out counts as no decoded value.
    """
    group, n_queries, width = queries.shape
    n_tokens = len(keys)
    first = n_tokens - n_queries
    encoded = encode_tiers(keys, values, plan.codecs, shared, plan.key_mean, plan.rotation)
    flat = queries.reshape(-1, width)
    coded = encoded.scores(flat).reshape(group, n_queries, n_tokens)
    apart = plan.key_mean is not None and plan.rotation is None
    offset = (flat @ plan.key_mean).reshape(group, n_queries, 1) if apart else None
    decoded = encoded.values()
    sums = _running_sums(decoded, plan.policy.sink_tokens) if plan.fills_unselected else None
    out = np.empty((group, n_queries, values.shape[1]), np.float32)
    counts = np.empty((3, n_queries), np.int64)
    for start in range(0, n_queries, QUERY_BLOCK):
        rows = slice(start, min(start + QUERY_BLOCK, n_queries))
        seen = slice(0, first + rows.stop)
        block = _Block(plan, spec, np.arange(first + rows.start, seen.stop), seen.stop)
        scores = coded[:, rows, seen]
        used = block.kept(scores)
        logits = block.logits(scores, queries[:, rows] @ keys[seen].T, None if offset is None else offset[:, rows])
        weights = softmax(logits, used if sums is None else block.visible, sink_logits)
        # two products, not one and a correction: a decoded value that a query does not use leaves no trace
        exactly = np.where(block.exact, weights, np.float32(0))
        out[:, rows] = exactly @ values[seen]
        weights[np.broadcast_to(block.exact, weights.shape)] = 0
        rest = None if sums is None else _take_rest(weights, used)
        out[:, rows] += weights @ decoded[seen]
        if rest is not None:
            np.add(out[:, rows], rest * block.candidate_means(sums), out=out[:, rows], where=rest > 0)
        counts[:, rows] = block.counts(used)
    return out, CellUse(plan.cell, encoded.nbytes(), *counts)


class _Block:
    """A run of queries: which tokens they see, attend exactly, and may decode ([query, token] bool)."""

    def __init__(self, plan: CellPlan, spec: LayerSpec, positions: np.ndarray, n_tokens: int) -> None:
        self.spec = spec
        self.budget = plan.candidate_k
        self.visible = visible_mask(positions, n_tokens, spec.sliding_window)
        policy = plan.policy
        self.exact = exact_token_mask(
            positions, n_tokens, spec.sliding_window, policy.sink_tokens, policy.recent_window
        )
        self.candidates = self.visible & ~self.exact

    def kept(self, scores: np.ndarray) -> np.ndarray:
        """[group, query, token] bool: exact tokens and the best candidate_k others by the codes' scores."""
        shape = scores.shape
        if self.budget is None:
            return np.broadcast_to(self.visible, shape)
        candidates = np.broadcast_to(self.candidates, shape).reshape(-1, shape[2])
        best = best_candidates(np.ascontiguousarray(scores).reshape(-1, shape[2]), candidates, self.budget)
        return best.reshape(shape) | self.exact

    def logits(self, coded: np.ndarray, exact: np.ndarray, offset: np.ndarray | None) -> np.ndarray:
        """[group, query, token] float32: exact q·k where the token is exact, the codec's estimate elsewhere."""
        raw = np.where(self.exact, exact, coded if offset is None else coded + offset)
        raw *= np.float32(self.spec.softmax_scale)
        cap = self.spec.logit_softcap
        return raw if cap is None else np.float32(cap) * np.tanh(raw / np.float32(cap))

    def candidate_means(self, sums: np.ndarray) -> np.ndarray:
        """[query, value_dim] float32 mean over each query's candidates, from `_running_sums`; 0 where it has none.

        Candidates lie in one run: after the sinks, within a sliding window, before the recent tokens.
        """
        start, count = self.candidates.argmax(axis=1), self.candidates.sum(axis=1)
        means = (sums[start + count] - sums[start]) / np.maximum(count, 1)[:, None]
        return means.astype(np.float32)

    def counts(self, used: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(decoded, exact, visible) values of each query, [query], summed over the group."""
        group = len(used)
        exact = group * self.exact.sum(axis=1)
        return used.sum(axis=(0, 2)) - exact, exact, group * self.visible.sum(axis=1)


def _running_sums(decoded: np.ndarray, sink_tokens: int) -> np.ndarray:
    """[token + 1, value_dim] float64: entry n is the sum of the first n decoded values, sinks left out.

    float64, so that the difference of two entries is good to float32 however long the passage is.
    """
    sums = np.zeros((len(decoded) + 1, decoded.shape[1]))
    np.cumsum(decoded[sink_tokens:], axis=0, dtype=np.float64, out=sums[sink_tokens + 1 :])
    return sums


def _take_rest(weights: np.ndarray, used: np.ndarray) -> np.ndarray:
    """[group, query, 1]: the weight of the tokens not in `used`, which becomes 0 in `weights`.

    Summed over those tokens: where all are used it is 0, and not what rounding leaves of 1 − Σ.
    """
    left = np.where(used, np.float32(0), weights)
    weights[~used] = 0
    return left.sum(axis=2, keepdims=True)


def softmax(logits: np.ndarray, mask: np.ndarray, sink_logits: np.ndarray | None = None) -> np.ndarray:
    """[group, query, token] float32 weights over the tokens in `mask`; sink_logits [group] take their share."""
    masked = np.where(mask, logits, np.float32(-np.inf))
    top = masked.max(axis=2, keepdims=True)
    if sink_logits is not None:
        sinks = sink_logits.astype(np.float32)[:, None, None]
        top = np.maximum(top, sinks)
    masked -= top
    weights = np.exp(masked, out=masked)
    total = weights.sum(axis=2, keepdims=True)
    if sink_logits is not None:
        total += np.exp(sinks - top)
    weights /= total
    return weights
