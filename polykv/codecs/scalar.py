"""rotated_scalar: a random rotation, then Lloyd-Max levels of a normal, and one gain a vector.

After the rotation every coordinate of a vector is nearly normal with the vector's own deviation,
so one set of levels serves all (Zandieh et al., "TurboQuant", 2025). The gain is the
least-squares one in place of the norm, at the same cost. bits / number + 2 bytes: 34 bytes for 64
dimensions at 4 bits. Rotation and levels follow from the seed and the normal law: nothing else is
stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from polykv.codecs.arrays import (
    check_choice,
    check_integer_head_dim,
    checked_codes,
    checked_rows,
    finite_scores,
    pairwise_dot,
    row_chunks,
    rows_times,
    stored_gains,
)
from polykv.codecs.base import Codec, Codes, checked_vectors
from polykv.codecs.chacha import check_seed
from polykv.codecs.lloyd_max import lloyd_max_levels
from polykv.codecs.rotation import dense_rotation


@dataclass(frozen=True)
class RotatedScalarCodec(Codec):
    """`bits` 1 to 8 a number; the rotation is that of (head_dim, seed).

    Codes: levels [n, head_dim] uint8; gains [n] float16 (float32 when one does not fit, see
    `small_floats`). A zero vector has gain 0.
    """

    seed: int = 0
    bits: int = 4

    codec_id: ClassVar[str] = "rotated_scalar"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_seed(self.seed)
        check_choice(self.codec_id, "bits", self.bits, range(1, 9))

    @classmethod
    def check_head_dim(cls, head_dim: int) -> None:
        check_integer_head_dim(head_dim, cls.codec_id)

    def encode(self, vectors: np.ndarray) -> Codes:
        array = checked_vectors(vectors, self.head_dim)
        levels = np.empty(array.shape, np.uint8)
        gains = np.empty(len(array))
        for chunk in row_chunks(len(array)):
            levels[chunk], gains[chunk] = self._fit(array[chunk].astype(np.float64))
        stored = stored_gains(self.codec_id, gains)
        return Codes(len(array), self.head_dim, {"levels": levels, "gains": stored})

    def decode(self, codes: Codes, rows: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        checked_codes(codes, self.head_dim)
        chosen = checked_rows(rows, len(codes))
        unit = rows_times(self._table()[codes["levels"][chosen]], self._rotation().astype(np.float32))
        with np.errstate(over="ignore"):
            decoded = unit * codes["gains"][chosen].astype(np.float32)[:, None]
        largest = np.finfo(np.float32).max
        return np.clip(decoded, -largest, largest, out=decoded)

    def scores(self, queries: np.ndarray, codes: Codes) -> np.ndarray:
        checked_codes(codes, self.head_dim)
        array = checked_vectors(queries, self.head_dim, "queries")
        turned = rows_times(array, np.ascontiguousarray(self._rotation().T, dtype=np.float32))
        with np.errstate(over="ignore", invalid="ignore"):
            scores = pairwise_dot(turned, self._table()[codes["levels"]]) * codes["gains"].astype(np.float32)
        return finite_scores(scores)

    def nbytes(self, codes: Codes) -> int:
        return len(codes) * -(-self.head_dim * self.bits // 8) + codes["gains"].nbytes

    def _rotation(self) -> np.ndarray:
        return dense_rotation(self.head_dim, self.seed)

    def _table(self) -> np.ndarray:
        """[2^bits] float32: the value of each level, in deviations."""
        return lloyd_max_levels(self.bits).astype(np.float32)

    def _fit(self, array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(levels [n, head_dim] uint8, gains [n] float64) of [n, head_dim] float64."""
        turned = rows_times(array, np.ascontiguousarray(self._rotation().T))
        deviation = np.sqrt(np.mean(np.square(turned), axis=1))
        unit = np.divide(turned, deviation[:, None], out=np.zeros_like(turned), where=deviation[:, None] > 0)
        table = self._table().astype(np.float64)
        levels = np.searchsorted((table[1:] + table[:-1]) / 2, unit)
        chosen = table[levels]
        gains = np.einsum("nd,nd->n", turned, chosen) / np.einsum("nd,nd->n", chosen, chosen)
        return levels.astype(np.uint8), gains
