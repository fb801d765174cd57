"""residual_vq: a vector as a sum of codewords, one of every stage's trained codebook.

Each stage codes what the stages before it left over. Codeword 0 of every stage is zero, so one
more stage never makes a vector worse; the first `stages` of an artifact's codebooks are a codec of
their own, so one artifact serves all rates. Codes have a fixed size and any row decodes alone: 16
stages of 256 codewords are 16 bytes a vector. Residual quantisation: Juang & Gray 1982; the search
with several candidates: Chen, Guan & Wang 2010. Fitting: `polykv.calibration.residual_vq`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from polykv.codecs.arrays import (
    check_at_least,
    check_integer_head_dim,
    checked_codes,
    checked_rows,
    finite_scores,
    pairwise_dot,
    row_chunks,
    rows_times,
    stored_gains,
)
from polykv.codecs.base import Codes, checked_vectors
from polykv.codecs.trained import TrainedCodec
from polykv.errors import CodecError
from polykv.npz import npz_bytes
from polykv.receipts import digest_bytes

MAX_CODEWORDS = 256


@dataclass(frozen=True)
class ResidualVqCodec(TrainedCodec):
    """The first `stages` codebooks of the artifact; encoding keeps the `beam` best candidates at each.

    Artifact: codebooks [stage, codeword, head_dim], at most 256 codewords, the first of every stage
    zero, floats or integers with a scale (`as_integers`); mean [head_dim], taken off before coding;
    weights [head_dim] > 0, the metric Σ weight · error² that encoding makes small; has_gain [1], 0 or 1:
    rows are coded at unit norm with a gain each. Codes: indices [n, stages] uint8; gains [n] float16 if has_gain (float32
    where one does not fit, see `small_floats`), the least-squares ones of the metric.
    """

    stages: int = 16
    beam: int = 1

    codec_id: ClassVar[str] = "residual_vq"
    array_shapes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "codebooks": ("stage", "codeword", "head_dim"),
        "mean": ("head_dim",),
        "weights": ("head_dim",),
        "has_gain": ("1",),
    }
    scalable: ClassVar[tuple[str, ...]] = ("codebooks",)

    def __post_init__(self, arrays: Mapping[str, np.ndarray] | None) -> None:
        super().__post_init__(arrays)
        check_at_least(self.codec_id, "stages", self.stages, 1)
        check_at_least(self.codec_id, "beam", self.beam, 1)
        books = self.arrays["codebooks"]
        if self.stages > len(books):
            raise CodecError(f"residual_vq: stages {self.stages} > {len(books)}, the codebooks of the artifact")
        if not 2 <= books.shape[1] <= MAX_CODEWORDS:
            raise CodecError(f"residual_vq: {books.shape[1]} codewords a stage, must be 2 to {MAX_CODEWORDS}")
        if books[:, 0].any():
            raise CodecError("residual_vq: codeword 0 of every stage must be zero")
        if not (self.arrays["weights"] > 0).all():
            raise CodecError(f"residual_vq: the smallest weight is {self.arrays['weights'].min():.4g}, must be > 0")

    @classmethod
    def check_head_dim(cls, head_dim: int) -> None:
        check_integer_head_dim(head_dim, cls.codec_id)

    @property
    def codebooks(self) -> np.ndarray:
        """[stage, codeword, head_dim] float32 of the stages in use."""
        return np.asarray(self.arrays["codebooks"][: self.stages], np.float32)

    @property
    def mean(self) -> np.ndarray:
        """[head_dim] float32."""
        return np.asarray(self.arrays["mean"], np.float32)

    @property
    def has_gain(self) -> bool:
        return bool(self.arrays["has_gain"][0])

    @property
    def bits(self) -> int:
        """Bits of one index."""
        return int(self.arrays["codebooks"].shape[1] - 1).bit_length()

    def encode(self, vectors: np.ndarray) -> Codes:
        array = checked_vectors(vectors, self.head_dim)
        root = np.sqrt(self.arrays["weights"].astype(np.float64))
        books = self.codebooks.astype(np.float64) * root
        indices, gains = np.zeros((len(array), self.stages), np.uint8), np.zeros(len(array))
        for part in row_chunks(len(array)):
            rows = (array[part].astype(np.float64) - self.mean) * root
            if self.has_gain:
                rows, norms = _unit(rows)
            indices[part] = search(rows, books, self.beam)
            if self.has_gain:
                gains[part] = norms * _least_squares(rows, _sums(books, indices[part]))
        if not self.has_gain:
            return Codes(len(array), self.head_dim, {"indices": indices})
        stored = stored_gains(self.codec_id, gains)
        return Codes(len(array), self.head_dim, {"indices": indices, "gains": stored})

    def decode(self, codes: Codes, rows: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        checked_codes(codes, self.head_dim)
        chosen = checked_rows(rows, len(codes))
        with np.errstate(over="ignore"):
            decoded = _sums(self.codebooks, codes["indices"][chosen])
            if self.has_gain:
                decoded *= codes["gains"][chosen].astype(np.float32)[:, None]
            decoded += self.mean
        largest = np.finfo(np.float32).max
        return np.clip(decoded, -largest, largest, out=decoded)

    def scores(self, queries: np.ndarray, codes: Codes) -> np.ndarray:
        """A table of query · codeword for every stage, then `stages` look-ups a vector."""
        checked_codes(codes, self.head_dim)
        queries = checked_vectors(queries, self.head_dim, "queries")
        n_words = self.arrays["codebooks"].shape[1]
        words = self.codebooks.reshape(-1, self.head_dim)
        table = np.ascontiguousarray(pairwise_dot(queries, np.vstack([words, self.mean])))
        total = np.zeros((len(queries), len(codes)), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            for part in row_chunks(len(codes)):
                for stage in range(self.stages):
                    total[:, part] += table[:, stage * n_words + codes["indices"][part, stage].astype(np.intp)]
            if self.has_gain:
                total *= codes["gains"].astype(np.float32)
            total += table[:, -1:]
        return finite_scores(total)

    def nbytes(self, codes: Codes) -> int:
        """Indices bit-packed to whole bytes a row, so that any row can be read alone; then gains."""
        gains = codes["gains"].nbytes if self.has_gain else 0
        return len(codes) * packed_nbytes(self.stages, self.bits) + gains

    def side_nbytes(self) -> int:
        """Codebooks of the stages in use as stored, and the mean when there is one; decoding needs no weights."""
        books = self.stored_nbytes("codebooks") * self.stages // len(self.arrays["codebooks"])
        return books + (self.stored_nbytes("mean") if self.mean.any() else 0)


def packed_nbytes(stages: int, bits: int) -> int:
    """Bytes of one vector's indices, `bits` each."""
    return -(-stages * bits // 8)


def residual_vq_codec(arrays: Mapping[str, np.ndarray], stages: int | None = None, beam: int = 1) -> ResidualVqCodec:
    """The codec of an artifact's arrays, its digest computed; stages None: all."""
    n_stages, _, head_dim = np.shape(arrays["codebooks"])
    digest = digest_bytes(npz_bytes(arrays))
    return ResidualVqCodec(head_dim, digest, n_stages if stages is None else stages, beam, arrays=arrays)


def search(rows: np.ndarray, books: np.ndarray, beam: int) -> np.ndarray:
    """uint8 [n, stage]: the codewords whose sum comes nearest to each row, `beam` candidates kept a stage.

    rows [n, d] and books [stage, codeword, d] float64. Each row is searched by itself; of equal
    candidates the first one in order wins.
    """
    n, width = rows.shape
    left, errors, paths = rows[:, None, :], np.zeros((n, 1)), np.zeros((n, 1, len(books)), np.uint8)
    for stage, words in enumerate(books):
        kept, n_words = left.shape[1], len(words)
        # ‖r − c‖² − ‖r‖² = ‖c‖² − 2 r·c, added to what the candidate's own residual leaves
        cross = rows_times(left.reshape(-1, width), np.ascontiguousarray(words.T)).reshape(n, kept, n_words)
        cost = errors[:, :, None] - 2 * cross + np.einsum("kd,kd->k", words, words)
        best = _best(cost.reshape(n, kept * n_words), beam)
        parent, word = np.divmod(best, n_words)
        errors = np.take_along_axis(cost.reshape(n, -1), best, axis=1)
        left = np.take_along_axis(left, parent[:, :, None], axis=1) - words[word]
        paths = np.take_along_axis(paths, parent[:, :, None], axis=1)
        paths[:, :, stage] = word
    return paths[:, 0]


def _best(cost: np.ndarray, count: int) -> np.ndarray:
    """int [n, min(count, candidates)]: the columns of the lowest costs, lowest first, ties by column."""
    if count == 1:
        return cost.argmin(axis=1)[:, None]
    count = min(count, cost.shape[1])
    found = np.sort(np.argpartition(cost, count - 1, axis=1)[:, :count], axis=1)
    order = np.argsort(np.take_along_axis(cost, found, axis=1), axis=1, kind="stable")
    return np.take_along_axis(found, order, axis=1)


def _sums(books: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """[n, d] sums of the chosen codewords, stage by stage, in the books' dtype."""
    total = np.zeros((len(indices), books.shape[2]), books.dtype)
    for stage, words in enumerate(books):
        total += words[indices[:, stage]]
    return total


def _unit(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    norms = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    return np.divide(rows, norms[:, None], out=np.zeros_like(rows), where=norms[:, None] > 0), norms


def _least_squares(rows: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """[n] float64: the factor that brings each sum nearest to its row; 0 where the sum is zero."""
    size = np.einsum("nd,nd->n", sums, sums)
    return np.divide(np.einsum("nd,nd->n", rows, sums), size, out=np.zeros(len(rows)), where=size > 0)
