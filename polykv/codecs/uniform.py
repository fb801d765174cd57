"""Uniform quantisation: integers on an even grid, per vector or per channel group.

symmetric   x̂ = scale · c, c in −L … L with L = 2^(bits−1) − 1 (zero is a code; int8 is bits = 8)
asymmetric  x̂ = low + step · c, c in 0 … 2^bits − 1: all levels between the minimum and maximum

Scales are rounded up and lows down to what is stored, so the grid always covers the data and
every number is off by at most half a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from polykv.codecs.arrays import (
    check_at_least,
    check_choice,
    check_integer_head_dim,
    checked_codes,
    checked_rows,
    finite_scores,
    pairwise_dot,
    row_chunks,
    small_floats,
)
from polykv.codecs.base import Codec, Codes, checked_vectors

_F32_MAX = np.finfo(np.float32).max


@dataclass(frozen=True)
class UniformCodec(Codec):
    """`bits` 2 to 8 a number; the grid belongs to a vector or to a channel of `group_tokens` vectors.

    axis "vector": one grid a row. axis "channel" (as KIVI does for keys): one grid for each
    channel of each run of `group_tokens` consecutive rows; the last run may be shorter.
    scale_dtype "float16" holds scale and low in 2 bytes each where that is faithful
    (`small_floats`), "float32" in 4.

    Codes: levels [n, head_dim] int8 (symmetric) or uint8; scale, and for asymmetric low:
    [n, 1] for axis "vector", [group, head_dim] for axis "channel".
    """

    bits: int = 8
    mode: str = "symmetric"
    axis: str = "vector"
    group_tokens: int = 32
    scale_dtype: str = "float16"

    codec_id: ClassVar[str] = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.codec_id, "bits", self.bits, range(2, 9))
        check_choice(self.codec_id, "mode", self.mode, ("symmetric", "asymmetric"))
        check_choice(self.codec_id, "axis", self.axis, ("vector", "channel"))
        check_choice(self.codec_id, "scale_dtype", self.scale_dtype, ("float16", "float32"))
        check_at_least(self.codec_id, "group_tokens", self.group_tokens, 1)

    @classmethod
    def check_head_dim(cls, head_dim: int) -> None:
        check_integer_head_dim(head_dim, cls.codec_id)

    def encode(self, vectors: np.ndarray) -> Codes:
        array = checked_vectors(vectors, self.head_dim)
        grid = self._symmetric_grid(array) if self.mode == "symmetric" else self._asymmetric_grid(array)
        levels = np.empty(array.shape, dtype=np.int8 if self.mode == "symmetric" else np.uint8)
        for chunk in row_chunks(len(array)):
            owner = self._owner(np.arange(chunk.start, chunk.stop))
            step = grid["scale"][owner].astype(np.float64)
            offset = array[chunk] - grid["low"][owner].astype(np.float64) if "low" in grid else array[chunk]
            # a step of 0 means that all numbers are equal: level 0 is exact
            level = np.rint(np.divide(offset, step, out=np.zeros(offset.shape), where=step > 0))
            levels[chunk] = np.clip(level, -self._top if self.mode == "symmetric" else 0, self._top)
        return Codes(len(array), self.head_dim, {"levels": levels, **grid})

    def decode(self, codes: Codes, rows: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        checked_codes(codes, self.head_dim)
        chosen = checked_rows(rows, len(codes))
        owner = self._owner(chosen)
        with np.errstate(over="ignore"):
            out = codes["levels"][chosen].astype(np.float32) * codes["scale"].astype(np.float32)[owner]
            if self.mode == "asymmetric":
                out += codes["low"].astype(np.float32)[owner]
        # rounding the scale up can push a number at the very end of float32's range over it
        return np.clip(out, -_F32_MAX, _F32_MAX, out=out)

    def scores(self, queries: np.ndarray, codes: Codes) -> np.ndarray:
        """Inner products with the decoded vectors: a uniform code's decode is its score."""
        return finite_scores(pairwise_dot(checked_vectors(queries, self.head_dim, "queries"), self.decode(codes)))

    def nbytes(self, codes: Codes) -> int:
        grid = sum(codes[name].nbytes for name in ("scale", "low") if name in codes.arrays)
        return len(codes) * -(-self.head_dim * self.bits // 8) + grid

    def coupled_tokens(self) -> int:
        return self.group_tokens if self.axis == "channel" else 1

    @property
    def _top(self) -> int:
        """The highest level."""
        return 2 ** (self.bits - 1) - 1 if self.mode == "symmetric" else 2**self.bits - 1

    def _owner(self, rows: np.ndarray) -> np.ndarray:
        """Which row of the grid arrays each vector belongs to."""
        return rows if self.axis == "vector" else rows // self.group_tokens

    def _symmetric_grid(self, array: np.ndarray) -> dict[str, np.ndarray]:
        largest = self._reduce(np.maximum, np.abs(array)).astype(np.float64)
        return {"scale": small_floats(largest / self._top, self.scale_dtype, "up")}

    def _asymmetric_grid(self, array: np.ndarray) -> dict[str, np.ndarray]:
        least = self._reduce(np.minimum, array).astype(np.float64)
        most = self._reduce(np.maximum, array).astype(np.float64)
        low = small_floats(least, self.scale_dtype, "down", span=most - least)
        step = (most - low.astype(np.float64)) / self._top
        return {"scale": small_floats(step, self.scale_dtype, "up"), "low": low}

    def _reduce(self, ufunc: np.ufunc, array: np.ndarray) -> np.ndarray:
        """[n, 1] over each vector, or [group, head_dim] over each run of group_tokens rows."""
        if self.axis == "vector":
            return ufunc.reduce(array, axis=1, keepdims=True)
        starts = np.arange(0, len(array), self.group_tokens)
        return ufunc.reduceat(array, starts, axis=0) if len(starts) else np.empty((0, self.head_dim), np.float32)


def int8(head_dim: int) -> UniformCodec:
    """8 bits symmetric per vector, float16 scale: 66 bytes for 64 dimensions."""
    return UniformCodec(head_dim)
