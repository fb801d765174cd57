"""No compression: float32 kept as it is. The control every other codec is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from polykv.codecs.arrays import check_integer_head_dim, checked_codes, checked_rows, finite_scores, pairwise_dot
from polykv.codecs.base import Codec, Codes, checked_vectors


@dataclass(frozen=True)
class ExactCodec(Codec):
    """Codes: vectors [n, head_dim] float32. Any head_dim ≥ 1; 4 bytes a number."""

    codec_id: ClassVar[str] = "exact_f32_fallback"

    @classmethod
    def check_head_dim(cls, head_dim: int) -> None:
        check_integer_head_dim(head_dim, cls.codec_id)

    def encode(self, vectors: np.ndarray) -> Codes:
        array = checked_vectors(vectors, self.head_dim)
        return Codes(len(array), self.head_dim, {"vectors": array.copy()})

    def decode(self, codes: Codes, rows: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        checked_codes(codes, self.head_dim)
        return codes["vectors"][checked_rows(rows, len(codes))]

    def scores(self, queries: np.ndarray, codes: Codes) -> np.ndarray:
        checked_codes(codes, self.head_dim)
        return finite_scores(pairwise_dot(checked_vectors(queries, self.head_dim, "queries"), codes["vectors"]))

    def nbytes(self, codes: Codes) -> int:
        return codes["vectors"].nbytes
