"""The order in which compressed candidates are decoded.

The order is total: score descending (IEEE total order, −0.0 below 0.0), then pool before
shell, then the lower token (seed document 003). Where token indices run through the pool
first and the shell after it, the last two rules are one: the lower index wins.
"""

from __future__ import annotations

import numpy as np

from polykv.errors import NonFiniteError


def descending_key(scores: np.ndarray) -> np.ndarray:
    """int32 keys whose ascending order is the descending IEEE total order of float32 `scores`.

    Negative floats sort backwards as integers, so their payload bits are flipped:
    [1.0, −0.0, 0.0] → keys that put 1.0 first, then 0.0, then −0.0.
    """
    bits = np.ascontiguousarray(scores, dtype=np.float32).view(np.int32)
    ascending = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
    return ~ascending


def rank_candidates(scores: np.ndarray, candidates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Order every query's candidates best first.

    scores [query, token] float32; candidates [query, token] bool. Returns (order
    [query, token] int64: candidate tokens best first, the others after them in token order,
    and count [query] int64: how many candidates there are). Every budget is a prefix of the
    order. Raises NonFiniteError for a candidate whose score is NaN or infinite.
    """
    _refuse_unrankable(scores, candidates)
    key = np.where(candidates, descending_key(scores).astype(np.int64), np.iinfo(np.int64).max)
    return np.argsort(key, axis=1, kind="stable"), candidates.sum(axis=1)


def best_candidates(scores: np.ndarray, candidates: np.ndarray, budget: int) -> np.ndarray:
    """[query, token] bool: each query's best `budget` candidates, the prefix `rank_candidates` would give.

    A partial sort of keys that are all different (score, then token), so it costs a fraction of
    a full ranking. Raises NonFiniteError as `rank_candidates` does.
    """
    _refuse_unrankable(scores, candidates)
    if budget >= candidates.sum(axis=1).max(initial=0):
        return candidates
    key = (descending_key(scores).astype(np.int64) << 32) | np.arange(scores.shape[1])
    key = np.where(candidates, key, np.iinfo(np.int64).max)
    last = np.partition(key, budget - 1, axis=1)[:, budget - 1, None]
    return candidates & (key <= last)


def _refuse_unrankable(scores: np.ndarray, candidates: np.ndarray) -> None:
    bad = candidates & ~np.isfinite(scores)
    if bad.any():
        query, token = np.argwhere(bad)[0]
        raise NonFiniteError(f"score of query {query}, token {token} is {scores[query, token]}: nothing can be ranked")
