"""transform_pq: a trained transform to independent coordinates, then one byte for each group of them.

Coordinates come out of `analysis` in falling order of what an error in them costs, and are cut into
groups worth about 8 bits each: one coordinate where much is at stake, eight where little is. Every
group has 256 codewords of its own, so a vector of g groups takes g bytes, any row decodes alone, and
a score is g look-ups in an engine. Product quantisation: Jégou, Douze & Schmid 2011; with a trained transform and
bits given by eigenvalue: Ge, He, Ke & Sun 2013. Fitting: `polykv.calibration.transform`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from polykv.codecs.arrays import (
    check_integer_head_dim,
    checked_codes,
    checked_rows,
    finite_scores,
    pairwise_dot,
    row_chunks,
    rows_times,
)
from polykv.codecs.base import Codes, checked_vectors
from polykv.codecs.trained import TrainedCodec
from polykv.errors import CodecError
from polykv.npz import npz_bytes
from polykv.receipts import digest_bytes

CODEWORDS = 256


@dataclass(frozen=True)
class TransformPqCodec(TrainedCodec):
    """Artifact: mean [head_dim]; analysis [coordinate, head_dim] and synthesis [head_dim, coordinate];
    group [coordinate] uint8, 0, 0, 1 …, each coordinate's group; codewords [256, coordinate], the
    columns of a group being its codebook. Transforms and codewords may be floats, or integers with a scale
    (`as_integers`), which take one or two bytes a number. Codes: indices [n, group] uint8.

    A vector x is coded as z = analysis · (x − mean), decoded as synthesis · ẑ + mean.
    """

    codec_id: ClassVar[str] = "transform_pq"
    array_shapes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "mean": ("head_dim",),
        "analysis": ("coordinate", "head_dim"),
        "synthesis": ("head_dim", "coordinate"),
        "group": ("coordinate",),
        "codewords": (str(CODEWORDS), "coordinate"),
    }
    scalable: ClassVar[tuple[str, ...]] = ("analysis", "synthesis", "codewords")

    def __post_init__(self, arrays: Mapping[str, np.ndarray] | None) -> None:
        super().__post_init__(arrays)
        group = self.arrays["group"].astype(np.int64)
        if len(group) == 0 or group[0] != 0 or not np.isin(np.diff(group), (0, 1)).all():
            raise CodecError(f"transform_pq: groups must run 0, 0, 1, 1 … without a gap, got {group.tolist()}")

    @classmethod
    def check_head_dim(cls, head_dim: int) -> None:
        check_integer_head_dim(head_dim, cls.codec_id)

    @property
    def n_groups(self) -> int:
        """Bytes of a coded vector."""
        return int(self.arrays["group"][-1]) + 1

    @property
    def mean(self) -> np.ndarray:
        """[head_dim] float32."""
        return self.arrays["mean"].astype(np.float32)

    def books(self) -> list[tuple[slice, np.ndarray]]:
        """(coordinates, codewords [256, coordinate] float64) of every group."""
        edges = np.searchsorted(self.arrays["group"], np.arange(self.n_groups + 1))
        words = self.arrays["codewords"].astype(np.float64)
        places = [slice(int(low), int(high)) for low, high in zip(edges[:-1], edges[1:], strict=True)]
        return [(place, np.ascontiguousarray(words[:, place])) for place in places]

    def encode(self, vectors: np.ndarray) -> Codes:
        array = checked_vectors(vectors, self.head_dim)
        turn = np.ascontiguousarray(self.arrays["analysis"].T.astype(np.float64))
        indices, books = np.zeros((len(array), self.n_groups), np.uint8), self.books()
        for part in row_chunks(len(array)):
            z = rows_times(array[part].astype(np.float64) - self.mean, turn)
            for number, (place, words) in enumerate(books):
                indices[part, number] = nearest(np.ascontiguousarray(z[:, place]), words)
        return Codes(len(array), self.head_dim, {"indices": indices})

    def decode(self, codes: Codes, rows: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        checked_codes(codes, self.head_dim)
        chosen = codes["indices"][checked_rows(rows, len(codes))]
        z = np.empty((len(chosen), len(self.arrays["group"])), np.float32)
        for number, (place, words) in enumerate(self.books()):
            z[:, place] = words[chosen[:, number]]
        turn = np.ascontiguousarray(self.arrays["synthesis"].T.astype(np.float32))
        return rows_times(z, turn) + self.mean

    def scores(self, queries: np.ndarray, codes: Codes) -> np.ndarray:
        """Inner products with the decoded vectors: decoding is linear, so this is what g look-ups in a table
        of query · codeword add up to, and for many queries at once it is the faster way."""
        checked_codes(codes, self.head_dim)
        queries = checked_vectors(queries, self.head_dim, "queries")
        return finite_scores(pairwise_dot(queries, self.decode(codes)))

    def nbytes(self, codes: Codes) -> int:
        return len(codes) * self.n_groups

    def side_nbytes(self) -> int:
        """Mean, both transforms and codewords as stored."""
        return self.stored_nbytes("mean", "analysis", "synthesis", "codewords")


def transform_pq_codec(arrays: Mapping[str, np.ndarray]) -> TransformPqCodec:
    """The codec of an artifact's arrays, its digest computed."""
    return TransformPqCodec(len(arrays["mean"]), digest_bytes(npz_bytes(arrays)), arrays=arrays)


def nearest(rows: np.ndarray, words: np.ndarray) -> np.ndarray:
    """int [n]: the codeword nearest to each row, the first of equal ones; rows [n, d], words [k, d] float64."""
    cost = rows_times(rows, np.ascontiguousarray(-2.0 * words.T)) + np.einsum("kd,kd->k", words, words)
    return cost.argmin(axis=1)
