"""What a passage must be before any of it is written: shapes, finite numbers, and the cast (pure)."""

from __future__ import annotations

import numpy as np

from polykv.errors import DimensionMismatch, InputError, NonFiniteError
from polykv.storage.layout import STREAM_ARRAYS, ArrayLayout
from polykv.types import CaptureMeta, LayerSpec, PassageCapture, PassageLogits


def check_passage(meta: CaptureMeta, passage: PassageCapture) -> None:
    """Refuse a passage that the store's layout cannot hold as it is.

    Raises InputError, DimensionMismatch (both numbers) or NonFiniteError, naming passage,
    layer and head. Nothing is copied but one array at a time.
    """
    where = f"passage {passage.index}"
    if not 0 <= passage.index < meta.n_passages:
        raise InputError(f"{where} is not in the capture, which has passages 0 to {meta.n_passages - 1}")
    _check_tokens(meta, passage, where)
    expected, given = {spec.layer for spec in meta.layers}, set(passage.layers)
    if expected != given:
        raise InputError(
            f"{where}: layers missing {sorted(expected - given)}, not announced {sorted(given - expected)}"
        )
    for spec in meta.layers:
        layer = passage.layers[spec.layer]
        shapes = stream_shapes(spec, passage.length, len(passage.query_position))
        for stream in STREAM_ARRAYS:
            values = np.asarray(getattr(layer, stream))
            place = f"{where}, layer {spec.layer}, {stream}"
            _check_shape(values, shapes[stream], place)
            cast_finite(values, meta.store_dtype, place, "kv_head" if stream in ("k", "v") else "q_head")
    _check_logits(meta, passage, where)


def stream_shapes(spec: LayerSpec, length: int, n_queries: int) -> dict[str, tuple[int, ...]]:
    """Shape of k, v [kv_head, token, ·] and q, out [q_head, query, ·] of one unpadded passage."""
    return {
        "k": (spec.n_kv_heads, length, spec.head_dim),
        "v": (spec.n_kv_heads, length, spec.value_dim),
        "q": (spec.n_q_heads, n_queries, spec.head_dim),
        "out": (spec.n_q_heads, n_queries, spec.value_dim),
    }


def cast_finite(values: np.ndarray, dtype: str, place: str, first_axis: str = "head") -> np.ndarray:
    """`values` in the stored dtype; raises NonFiniteError for NaN, inf, or a cast that overflows to inf."""
    with np.errstate(over="ignore"):
        cast = np.asarray(values).astype(dtype, copy=False)
    finite = np.isfinite(cast)
    if finite.all():
        return cast
    index = tuple(int(i) for i in np.argwhere(~finite)[0])
    value = np.asarray(values)[index]
    spot = f"{place}, {first_axis} {index[0]}, index {list(index[1:])}"
    if np.isfinite(value):
        raise NonFiniteError(
            f"{spot}: {value} overflows {dtype}, whose largest value is {np.finfo(dtype).max}. Store as float32"
        )
    raise NonFiniteError(f"{spot}: {value} is not a finite number")


def padded(values: np.ndarray, layout: ArrayLayout) -> np.ndarray:
    """One passage's array at its full stored size, the fill value in the padding."""
    whole = np.full(layout.shape[1:], layout.fill, dtype=layout.dtype)
    whole[tuple(slice(0, n) for n in values.shape)] = values
    return whole


def _check_tokens(meta: CaptureMeta, passage: PassageCapture, where: str) -> None:
    for name in ("token_ids", "query_position"):
        values = np.asarray(getattr(passage, name))
        if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
            raise InputError(f"{where}: {name} must be one row of integers, got {values.ndim} axes of {values.dtype}")
    if not 1 <= passage.length <= meta.n_tokens:
        raise DimensionMismatch(f"{where}: {passage.length} tokens, the store holds 1 to {meta.n_tokens}")
    if min(passage.token_ids) < 0:
        raise InputError(f"{where}: token id {min(passage.token_ids)} is negative")
    positions = np.asarray(passage.query_position)
    if len(positions) > meta.n_queries:
        raise DimensionMismatch(f"{where}: {len(positions)} queries, the store holds {meta.n_queries}")
    if len(positions) and not (0 <= positions.min() and positions.max() < passage.length):
        bad = next(int(p) for p in positions if not 0 <= p < passage.length)
        raise InputError(f"{where}: query position {bad} lies outside its {passage.length} tokens")


def _check_logits(meta: CaptureMeta, passage: PassageCapture, where: str) -> None:
    logits = passage.logits
    if (logits is None) != (meta.n_labels == 0):
        given = "no logits" if logits is None else f"{len(logits.label_set)} labels"
        raise InputError(f"{where}: {given} given, the store was laid out for {meta.n_labels} labels")
    if logits is None:
        return
    n_queries = len(passage.query_position)
    shapes = {
        "label_set": (meta.n_labels,),
        "full": (n_queries, meta.n_labels),
        "final_rms": (n_queries,),
        "label_token": (n_queries,),
    }
    for name, shape in shapes.items():
        _check_shape(np.asarray(getattr(logits, name)), shape, f"{where}, logits {name}")
    for name in ("full", "final_rms"):
        cast_finite(getattr(logits, name), "float32", f"{where}, logits {name}", "query")
    _check_labels(logits, meta.n_labels, where)


def _check_labels(logits: PassageLogits, n_labels: int, where: str) -> None:
    labels, counts = np.unique(logits.label_set, return_counts=True)
    if counts.max() > 1:
        raise InputError(f"{where}: label {labels[counts > 1][0]} stands {counts.max()} times in label_set")
    if labels[0] < 0:
        raise InputError(f"{where}: label {labels[0]} is negative")
    outside = [int(t) for t in logits.label_token if not 0 <= t < n_labels]
    if outside:
        raise InputError(
            f"{where}: label_token {outside[0]} lies outside the label set: it is an index 0 to {n_labels - 1} into label_set"
        )
    if len(logits.final_rms) and min(logits.final_rms) <= 0:
        raise InputError(f"{where}: final_rms {min(logits.final_rms)} is not positive")


def _check_shape(values: np.ndarray, shape: tuple[int, ...], place: str) -> None:
    if values.shape != shape:
        raise DimensionMismatch(f"{place}: shape {list(values.shape)}, expected {list(shape)}")
