"""Which softmax scale a fixture's exact outputs were made with, when it is not the one it names."""

from __future__ import annotations

import warnings

import numpy as np

from polykv.attention import relative_error
from polykv.replay.fixtures import CapturedReplayFixture, CapturedReplayQuery

AGREES = 1e-3
_QUERIES_LOOKED_AT = 4
_GRID = np.geomspace(2.0**-8, 2.0**4, 49)


class SoftmaxScaleWarning(UserWarning):
    """The exact attention outputs of a fixture show another softmax scale than the replay uses."""


def warn_of_other_scale(fixture: CapturedReplayFixture) -> None:
    """Warn (SoftmaxScaleWarning) when another scale explains the exact outputs and the one in use does not."""
    shown = shown_scale(fixture)
    if shown is not None:
        named = "no softmax_scale" if fixture.softmax_scale is None else f"softmax_scale {fixture.scale:g}"
        warnings.warn(
            f"fixture {fixture.model_id!r} has {named}, so q·k is multiplied by {fixture.scale:g}, but its exact "
            f"attention outputs were made with about {shown:.6g}: set softmax_scale, or scale the queries",
            SoftmaxScaleWarning,
            stacklevel=3,
        )


def shown_scale(fixture: CapturedReplayFixture) -> float | None:
    """The scale the first queries' exact outputs show, to about 1e-4; None when the one in use fits, or none does."""
    queries = fixture.queries[:_QUERIES_LOOKED_AT]
    if _misfit(queries, fixture.scale) <= AGREES:
        return None
    root = 1.0 / np.sqrt(fixture.head_dim)
    if _misfit(queries, root) <= AGREES:
        return float(root)
    best = int(np.argmin([_misfit(queries, scale) for scale in _GRID]))
    low, high = _GRID[max(best - 1, 0)], _GRID[min(best + 1, len(_GRID) - 1)]
    found = _refined(queries, low, high)
    return found if _misfit(queries, found) <= AGREES else None


def _refined(queries: tuple[CapturedReplayQuery, ...], low: float, high: float) -> float:
    """The scale of least misfit in [low, high], by thirds."""
    for _ in range(40):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        if _misfit(queries, left) <= _misfit(queries, right):
            high = right
        else:
            low = left
    return float((low + high) / 2)


def _misfit(queries: tuple[CapturedReplayQuery, ...], scale: float) -> float:
    """Largest relative error of attention recomputed at this scale, float64; inf where it cannot be computed."""
    worst = 0.0
    for query in queries:
        logits = (query.keys.astype(np.float64) @ query.query.astype(np.float64)) * scale
        weights = np.exp(logits - logits.max())
        output = (weights / weights.sum()) @ query.values.astype(np.float64)
        worst = max(worst, relative_error(output, query.exact_attention_output))
    return worst
