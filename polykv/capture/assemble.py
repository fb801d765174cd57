"""From recorded sessions to checked passages: nothing leaves here that does not say what the model did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from polykv.capture.forward import Row, record_batch
from polykv.capture.labels import choose_labels, label_index
from polykv.capture.recompute import (
    check_attention,
    check_finite,
    check_storable,
    recorded_heads,
    same_rules,
)
from polykv.capture.residual import (
    LIMIT,
    Projections,
    ResidualTap,
    linear_projection,
    logits_error,
    residual_rms,
    residuals,
)
from polykv.capture.session import CaptureSession
from polykv.errors import NonFiniteError
from polykv.types import LayerCapture, LayerSpec, PassageCapture, PassageLogits


@dataclass(frozen=True, eq=False)
class Recipe:
    """What to record and how strictly to check it; the same for every passage of a capture.

    `specs` has the captured layers only. `projections` None: no logit data is wanted.
    """

    model: Any
    specs: Mapping[int, LayerSpec]
    store_dtype: str
    n_labels: int
    n_token_ids: int
    projections: Projections | None


@dataclass(frozen=True, eq=False)
class CheckedPassage:
    """A passage, the largest relative error of its recomputed attention, and why its logit data is
    missing (None: it is there, or was not wanted)."""

    passage: PassageCapture
    worst_error: float
    logits_failure: str | None = None


def capture_rows(recipe: Recipe, rows: Sequence[Row]) -> list[CheckedPassage]:
    """Run and check one batch. Raises CaptureError, NonFiniteError or InputError naming the place."""
    layers, model = sorted(recipe.specs), recipe.model
    longest = max(len(row.token_ids) for row in rows)
    places = [row.positions + longest - len(row.token_ids) for row in rows]
    wanted = recipe.projections is not None
    with residuals(model, layers, places) if wanted else nullcontext() as tap:
        sessions, logits = record_batch(model, rows, recipe.specs)
    return [_checked(recipe, row, i, sessions[i], logits[i], tap) for i, row in enumerate(rows)]


def _checked(
    recipe: Recipe, row: Row, i: int, session: CaptureSession, logits: np.ndarray, tap: ResidualTap | None
) -> CheckedPassage:
    place = f"passage {row.index}"
    worst, layers = 0.0, {}
    for layer, spec in recipe.specs.items():
        capture = layer_capture(session, spec, len(row.token_ids), place)
        check_finite(capture, layer, place)
        worst = max(worst, check_attention(capture, session.attention(layer), row.positions, place))
        check_storable(capture, layer, recipe.store_dtype, place)
        layers[layer] = capture
    exact, failure = (None, None) if tap is None else _logit_data(recipe, row, i, layers, logits, tap)
    return CheckedPassage(PassageCapture(row.index, row.token_ids, row.positions, layers, exact), worst, failure)


def layer_capture(session: CaptureSession, spec: LayerSpec, n_tokens: int, place: str) -> LayerCapture:
    """One layer out of a session; raises CaptureError when it is not complete or attends otherwise."""
    record = session.attention(spec.layer)
    same_rules(record.spec, spec, place)
    keys, values = (
        recorded_heads(
            session.vectors(spec.layer, k_not_v), spec.n_kv_heads, n_tokens, f"{place}, layer {spec.layer}, {stream}"
        )
        for k_not_v, stream in ((True, "keys"), (False, "values"))
    )
    return LayerCapture(keys, values, np.ascontiguousarray(record.q), np.ascontiguousarray(record.out))


def _logit_data(
    recipe: Recipe, row: Row, i: int, layers: Mapping[int, LayerCapture], logits: np.ndarray, tap: ResidualTap
) -> tuple[PassageLogits | None, str | None]:
    """(logit data, None), or (None, why the model cannot have any)."""
    if not np.isfinite(logits).all():
        query, token = np.argwhere(~np.isfinite(logits))[0]
        raise NonFiniteError(
            f"passage {row.index}: the logit of token {token} at query {query} is {logits[query, token]}"
        )
    reason = linear_projection(tap, i, {layer: capture.out for layer, capture in layers.items()}, recipe.projections)
    if reason:
        return None, reason
    next_tokens = row.token_ids[row.positions + 1]
    label_set = choose_labels(logits, next_tokens, recipe.n_labels, recipe.n_token_ids)
    full, final = np.ascontiguousarray(logits[:, label_set]), tap.at[("final",)][i]
    rms = residual_rms(final, recipe.projections.epsilon)
    error = logits_error(recipe.projections.wlm_gamma(label_set), final, rms, full)
    if not error <= LIMIT:
        return None, f"W_lm·γ·residual / rms misses the model's logits by {error:.3g} (relative), more than {LIMIT:.3g}"
    return PassageLogits(label_set, full, rms, label_index(label_set, next_tokens)), None
