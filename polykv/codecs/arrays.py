"""Array helpers every codec shares: checked arguments, batch-independent products, small floats.

A code must not depend on which other vectors were in its batch: a cell cut into two jobs has to
give the same bytes. BLAS picks its kernel by shape, so the products here always hand it tiles of
one fixed shape (padded with zeros); a row's result is then the same in any batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from polykv.codecs.base import Codes
from polykv.errors import CodecError, DimensionMismatch, InputError, NonFiniteError

ROWS_PER_CHUNK = 1024
_TILE_ROWS, _TILE_QUERIES = 64, 8
_F16_TOLERANCE = 2.0**-6
_MOST = 2**63 - 1  # counts meet 64-bit array arithmetic


def row_chunks(n_rows: int) -> Iterator[slice]:
    """Slices of at most ROWS_PER_CHUNK rows: float64 working copies stay small."""
    return (slice(start, min(start + ROWS_PER_CHUNK, n_rows)) for start in range(0, n_rows, ROWS_PER_CHUNK))


def checked_codes(codes: Codes, head_dim: int) -> None:
    """Raise DimensionMismatch when the codes are of vectors of another width than the codec's."""
    if codes.head_dim != head_dim:
        raise DimensionMismatch(f"codes: dimension mismatch: expected {head_dim}, got {codes.head_dim}")


def checked_rows(rows: Sequence[int] | np.ndarray | None, n_vectors: int) -> np.ndarray:
    """int [m] of the chosen rows, all when None; raises InputError for a row outside [0, n_vectors)."""
    if rows is None:
        return np.arange(n_vectors)
    chosen = np.asarray(rows)
    if chosen.size == 0:
        return np.empty(0, dtype=np.intp)
    if chosen.ndim != 1 or not np.issubdtype(chosen.dtype, np.integer):
        raise InputError(f"rows must be a list of integers, got {chosen.ndim} axes of {chosen.dtype}")
    outside = (chosen < 0) | (chosen >= n_vectors)
    if outside.any():
        raise InputError(f"row {chosen[outside][0]} is asked for, but the codes hold rows 0 to {n_vectors - 1}")
    return chosen.astype(np.intp)


def check_integer_head_dim(head_dim: int, codec_id: str) -> None:
    """Raise CodecError unless head_dim is an integer ≥ 1."""
    if isinstance(head_dim, bool) or not isinstance(head_dim, (int, np.integer)) or head_dim < 1:
        raise CodecError(f"{codec_id}: head_dim is {head_dim!r}, must be an integer of at least 1")


def check_choice(codec_id: str, name: str, value: object, known: Sequence[object]) -> None:
    """Raise CodecError unless `value` is one of `known`, and of its type (8.0 is not 8)."""
    if not any(value == one and type(value) is type(one) for one in known):
        raise CodecError(f"{codec_id}: {name} is {value!r}; known: {', '.join(map(str, known))}")


def check_at_least(codec_id: str, name: str, value: int, least: int) -> None:
    """Raise CodecError unless `value` is an integer ≥ `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise CodecError(f"{codec_id}: {name} is {value!r}, must be an integer of at least {least}")
    if value > _MOST:
        raise CodecError(f"{codec_id}: {name} is {value!r}, beyond {_MOST}")


def rows_times(rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """rows [n, d] @ matrix [d, e], each row's result independent of the others in the batch.

    Overflow comes back as an infinity, for the caller to refuse.
    """
    n, width = rows.shape
    padded = _tiled(rows, _TILE_ROWS)
    tiles = padded.reshape(len(padded) // _TILE_ROWS, _TILE_ROWS, width)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.matmul(tiles, matrix).reshape(len(padded), matrix.shape[1])[:n]


def pairwise_dot(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """[q, n] inner products of queries [q, d] and keys [n, d], each independent of the others."""
    (n_queries, width), n_keys = queries.shape, len(keys)
    left = _tiled(queries, _TILE_QUERIES).reshape(-1, 1, _TILE_QUERIES, width)
    right = _tiled(keys, _TILE_ROWS).reshape(1, -1, _TILE_ROWS, width)
    with np.errstate(over="ignore", invalid="ignore"):
        tiles = np.matmul(left, right.transpose(0, 1, 3, 2))
    whole = tiles.transpose(0, 2, 1, 3).reshape(left.shape[0] * _TILE_QUERIES, right.shape[1] * _TILE_ROWS)
    return whole[:n_queries, :n_keys]


def finite_scores(scores: np.ndarray) -> np.ndarray:
    """`scores` [q, n] as contiguous float32; raises NonFiniteError naming the pair that overflowed."""
    scores = np.ascontiguousarray(scores, dtype=np.float32)
    finite = np.isfinite(scores)
    if not finite.all():
        query, row = np.argwhere(~finite)[0]
        raise NonFiniteError(
            f"the score of query {query} and vector {row} is beyond float32 (3.4e38): scale queries or keys down"
        )
    return scores


def small_floats(
    values: np.ndarray, dtype: str, rounding: str = "nearest", span: np.ndarray | float = 0.0
) -> np.ndarray:
    """Norms, scales and offsets as they are stored: `dtype` float16 where that is faithful.

    values float64 [...]; rounding "nearest", "up" or "down". Float16 is faithful to v when it
    moves v by at most 2^-6 · max(|v|, span). If every value is, the array is float16. If one is
    not (beyond 65504, or too small), the whole array is float32 and costs 4 bytes a value, but
    the faithful ones keep their float16 value: no row's decoding depends on its neighbours.
    Infinities come back where even float32 cannot hold a value; callers refuse them by row.
    """
    single = _rounded(values, np.float32, rounding)
    if dtype == "float32":
        return single
    half = _rounded(values, np.float16, rounding)
    with np.errstate(invalid="ignore", over="ignore"):
        moved = np.abs(half.astype(np.float64) - values)
        faithful = np.isfinite(half) & (moved <= _F16_TOLERANCE * np.maximum(np.abs(values), span))
    return half if faithful.all() else np.where(faithful, half.astype(np.float32), single)


def stored_gains(codec_id: str, gains: np.ndarray) -> np.ndarray:
    """Gains float64 [n] as `small_floats` keeps them; raises CodecError naming the vector beyond float32."""
    stored = small_floats(gains, "float16")
    if not np.isfinite(stored).all():
        row = int(np.argmin(np.isfinite(stored)))
        raise CodecError(
            f"{codec_id}: vectors[{row}] needs a gain of {gains[row]:.4g}, beyond float32 (3.4e38); "
            "scale the vectors down"
        )
    return stored


def _rounded(values: np.ndarray, dtype: type, rounding: str) -> np.ndarray:
    with np.errstate(over="ignore", under="ignore"):
        out = np.asarray(values, dtype=np.float64).astype(dtype)
        if rounding == "up":
            return np.where(out < values, np.nextafter(out, dtype(np.inf)), out).astype(dtype)
        if rounding == "down":
            return np.where(out > values, np.nextafter(out, dtype(-np.inf)), out).astype(dtype)
    return out


def _tiled(rows: np.ndarray, tile: int) -> np.ndarray:
    """A fresh copy of `rows` with zero rows added up to a multiple of `tile`."""
    padded = np.zeros((-(-len(rows) // tile) * tile, rows.shape[1]), dtype=rows.dtype)
    padded[: len(rows)] = rows
    return padded
