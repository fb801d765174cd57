"""The rotation a model puts on its keys, measured: no formula of any architecture is believed.

Attention is relative, so the same text at later positions has the same keys, turned further. A
passage is run at its own positions and shifted; the angle by which each pair of a key's numbers
has turned is its frequency, and the shifted keys must be the first ones rotated, or the model is
refused (learned positions, rotations that depend on the length, or on content).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from polykv.capture.adapter import AttentionCall, check_calls, tapped, to_numpy
from polykv.capture.forward import pad_left, run
from polykv.capture.models import LoadedModel
from polykv.errors import InputError, NonFiniteError, UnsupportedModelError
from polykv.rotation import Rotation, pair_places
from polykv.types import LayerSpec

# Tokens the keys are moved by. Each is at most 8 times the one before: the angle measured so far
# tells how many whole turns the next one has made, and the last one gives the precision.
SHIFTS = (1, 8, 64, 512)
N_TOKENS = 64
RESIDUAL_LIMIT = 1e-3
_PARTS = (4, 2, 1)
# Where several fit alike (a single pair is half and neighbours, and pairs that do not turn may be
# left out), the first that is no worse than this many times the best is taken.
_ALIKE = 2.0
_REMEDY = 'use key_rotation "keep"'


T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class _Fit:
    """A layer's rotation and the relative residual it leaves in the worst of the shifted runs."""

    rotation: Rotation
    residual: float


def measured_rotation(
    loaded: LoadedModel, specs: Mapping[int, LayerSpec], token_ids: np.ndarray
) -> dict[int, Rotation]:
    """{layer: rotation} of every layer in `specs`, from `token_ids` [token] (the first 64 are used, two at least).

    Pairs are halves or neighbours, over all of a key, its first half or its first quarter. A
    layer whose keys do not turn gets frequencies of zero. Raises UnsupportedModelError, with layer
    and both numbers, when no rotation explains the shifted keys to 1e-3 (relative Frobenius norm).
    """
    ids = np.asarray(token_ids)[:N_TOKENS]
    if len(ids) < 2:
        raise InputError(f"a rotation is measured on at least 2 tokens, got {len(ids)}")
    if "position_ids" not in inspect.signature(loaded.model.forward).parameters:
        raise UnsupportedModelError(
            f"{type(loaded.model).__name__} takes no position_ids, so its rotation cannot be measured; {_REMEDY}"
        )
    shifts = _shifts_within(loaded.model, len(ids))
    runs = {shift: _keys_at(loaded.model, ids, shift) for shift in (0, *shifts)}
    missing = sorted(set(specs) - set(runs[0]))
    if missing:
        raise InputError(f"layer {missing[0]} is not in the model, which has {len(runs[0])} layers")
    layers = sorted(specs)
    keys = {layer: [runs[shift][layer] for shift in (0, *shifts)] for layer in layers}
    # one pairing for the whole model: it is the architecture's
    pairings = [{layer: _best(keys[layer], shifts, flag) for layer in layers} for flag in (False, True)]
    found = _first_alike(pairings, lambda fits: max(fit.residual for fit in fits.values()))
    for layer, fit in found.items():
        if not fit.residual <= RESIDUAL_LIMIT:
            raise UnsupportedModelError(
                f"{type(loaded.model).__name__}, layer {layer}: keys of a shifted text are no rotation of the unshifted "
                f"ones (relative residual {fit.residual:.2g}, limit {RESIDUAL_LIMIT:g}); {_REMEDY}"
            )
    return {layer: fit.rotation for layer, fit in found.items()}


def _shifts_within(model: Any, n_tokens: int) -> tuple[int, ...]:
    """The shifts that stay within the positions the model was made for; beyond them many rotate differently."""
    text = model.config.get_text_config(decoder=True)
    limit = getattr(text, "max_position_embeddings", None)
    within = tuple(shift for shift in SHIFTS if not limit or shift + n_tokens <= limit)
    if not within:
        raise UnsupportedModelError(
            f"{type(model).__name__} has {limit} positions, too few to shift {n_tokens} tokens; {_REMEDY}"
        )
    return within


def _keys_at(model: Any, token_ids: np.ndarray, shift: int) -> dict[int, np.ndarray]:
    """{layer: keys [kv_head · token, head_dim] float64} of the text `shift` positions later.

    The first token is left out: many models give it a norm that drowns all others.
    """
    found: dict[int, np.ndarray] = {}

    def receive(call: AttentionCall) -> None:
        keys = to_numpy(call.key[0, :, 1:])
        if not np.isfinite(keys).all():
            raise NonFiniteError(
                f"layer {call.spec.layer}: the model's keys are not finite at shift {shift}; {_REMEDY}"
            )
        found[call.spec.layer] = keys.reshape(-1, keys.shape[-1]).astype(np.float64)

    batch = pad_left(model, [token_ids])
    with tapped(model, receive) as calls:
        run(model, replace(batch, position_ids=batch.position_ids + shift), keep=[-1])
    check_calls(model, calls)
    return found


def _best(keys: Sequence[np.ndarray], shifts: Sequence[int], interleaved: bool) -> _Fit:
    """The rotation that leaves least, of no rotation at all and one of each width a key allows."""
    width = keys[0].shape[1]
    widths = [width // part for part in _PARTS if width % (2 * part) == 0]
    if not widths:
        raise UnsupportedModelError(f"keys of {width} numbers cannot be rotated in pairs; {_REMEDY}")
    still = _fit(keys, shifts, Rotation(np.zeros(widths[-1] // 2), interleaved))
    if still.residual <= RESIDUAL_LIMIT:
        return still
    turned = [Rotation(_frequencies(keys, shifts, each // 2, interleaved), interleaved) for each in widths]
    return _first_alike([_fit(keys, shifts, rotation) for rotation in turned], lambda fit: fit.residual)


def _first_alike(found: Sequence[T], residual: Callable[[T], float]) -> T:
    """The first of `found` that is about as good as the best."""
    least = min(residual(one) for one in found)
    return next(one for one in found if residual(one) <= _ALIKE * least)


def _frequencies(keys: Sequence[np.ndarray], shifts: Sequence[int], n_pairs: int, interleaved: bool) -> np.ndarray:
    """[pair] float64 radians per token; the angle of each shift is unwrapped by the shorter ones."""
    first, second = pair_places(n_pairs, interleaved)
    x, y = keys[0][:, first], keys[0][:, second]
    found = np.zeros(n_pairs)
    for shift, moved in zip(shifts, keys[1:], strict=True):
        u, v = moved[:, first], moved[:, second]
        angle = np.arctan2((x * v - y * u).sum(axis=0), (x * u + y * v).sum(axis=0))
        turns = np.round((found * shift - angle) / (2 * np.pi))
        found = (angle + 2 * np.pi * turns) / shift
    return found


def _fit(keys: Sequence[np.ndarray], shifts: Sequence[int], rotation: Rotation) -> _Fit:
    least = np.finfo(np.float64).tiny  # keys of nothing but zeros are any rotation of themselves
    missed = [
        np.linalg.norm(rotation.apply(keys[0], np.full(len(keys[0]), shift)) - moved)
        / max(np.linalg.norm(moved), least)
        for shift, moved in zip(shifts, keys[1:], strict=True)
    ]
    return _Fit(rotation, float(max(missed)))
