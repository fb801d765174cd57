"""fib: a vector as its norm and, after a random rotation, the nearest codeword of each block of 4.

1.25 bits a number with 32 codewords: 12 bytes for 64 dimensions. The codebook depends on
(head_dim, seed) only and is never sent. Codewords are conditional means, so a decoded vector is
shorter than the original (‖x̂‖ ≈ 0.86 ‖x‖ at head_dim 64).

The reference system is query_mode="gram", zero_vectors="refuse": its scores replace the query's
blocks by codewords as well (correlation with q·k .74), the default keeps the query exact (.86).
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
    rows_times,
    small_floats,
)
from polykv.codecs.base import Codec, Codes, checked_vectors
from polykv.codecs.chacha import check_seed
from polykv.codecs.codebook import codebook, gram_matrix
from polykv.codecs.rotation import dense_rotation
from polykv.errors import CodecError

BLOCK_DIM = 4
# the first is the default and what "fib" is taken to mean
CODEBOOK_SIZES = (32, 16, 64, 128, 256)
LARGEST_NORM = 2.0**126
_BLOCKS_AT_ONCE = 1024


@dataclass(frozen=True)
class FibCodec(Codec):
    """Codes: indices [n, block] uint8, norms [n] float16 (float32 when one does not fit).

    codebook_size N gives log2(N)/4 bits a number and the id fib_k4_nN. training_samples,
    restarts and lloyd_iterations are those of the codebook's training.

    query_mode: "asymmetric" scores exact query blocks against codewords; "gram" replaces each
    query block by its nearest codeword first.
    zero_vectors: "encode" gives a zero vector norm 0, and stores the batch's norms in float32
    when one does not fit float16 (see `small_floats`); only a norm above 2^126 is a CodecError.
    "refuse" raises CodecError naming the row for a norm that is zero, above 65504 or so small
    that float16 makes it 0.
    single_threshold: a batch of fewer vectors is rotated from float64 directions, a larger one
    from directions rounded to float32 first; indices can differ in rare near-ties. 4 is the
    reference's; 0 makes every vector's code independent of the size of its batch.
    """

    seed: int = 0
    block_dim: int = BLOCK_DIM
    codebook_size: int = 32
    training_samples: int = 2048
    restarts: int = 4
    lloyd_iterations: int = 8
    query_mode: str = "asymmetric"
    zero_vectors: str = "encode"
    single_threshold: int = 4

    codec_ids: ClassVar[tuple[str, ...]] = tuple(f"fib_k4_n{size}" for size in CODEBOOK_SIZES)

    @property
    def codec_id(self) -> str:  # type: ignore[override]
        return f"fib_k{self.block_dim}_n{self.codebook_size}"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_seed(self.seed)
        check_choice("fib", "block_dim", self.block_dim, (BLOCK_DIM,))
        check_choice("fib", "codebook_size", self.codebook_size, CODEBOOK_SIZES)
        check_at_least(self.codec_id, "training_samples", self.training_samples, self.codebook_size)
        check_at_least(self.codec_id, "restarts", self.restarts, 1)
        check_at_least(self.codec_id, "lloyd_iterations", self.lloyd_iterations, 1)
        check_choice(self.codec_id, "query_mode", self.query_mode, ("asymmetric", "gram"))
        check_choice(self.codec_id, "zero_vectors", self.zero_vectors, ("encode", "refuse"))
        check_at_least(self.codec_id, "single_threshold", self.single_threshold, 0)

    @classmethod
    def check_head_dim(cls, head_dim: int) -> None:
        check_integer_head_dim(head_dim, "fib")
        if head_dim % BLOCK_DIM or head_dim < 2 * BLOCK_DIM:
            raise CodecError(f"fib: head_dim is {head_dim}, must be a multiple of {BLOCK_DIM} and at least 8")

    @classmethod
    def implied_arguments(cls, codec_id: str) -> dict[str, int]:
        return {"codebook_size": int(codec_id.rpartition("_n")[2])}

    @property
    def index_bits(self) -> int:
        """Bits of one index: 5 for 32 codewords."""
        return (self.codebook_size - 1).bit_length()

    def codewords(self) -> np.ndarray:
        """[codebook_size, block_dim] float32, read-only."""
        return codebook(*self._training)

    def encode(self, vectors: np.ndarray) -> Codes:
        array = checked_vectors(vectors, self.head_dim)
        lengths = _lengths(array)
        norms = self._stored_norms(lengths)
        indices = np.empty((len(array), self.head_dim // self.block_dim), dtype=np.uint8)
        round_first = len(array) >= self.single_threshold
        for chunk in row_chunks(len(array)):
            indices[chunk] = self._indices(self._rotated_directions(array[chunk], lengths[chunk], round_first))
        return Codes(len(array), self.head_dim, {"indices": indices, "norms": norms})

    def decode(self, codes: Codes, rows: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        checked_codes(codes, self.head_dim)
        chosen = checked_rows(rows, len(codes))
        directions = rows_times(self._directions(codes["indices"][chosen]), self._rotation().astype(np.float32))
        return directions * codes["norms"][chosen].astype(np.float32)[:, None]

    def scores(self, queries: np.ndarray, codes: Codes) -> np.ndarray:
        checked_codes(codes, self.head_dim)
        array = checked_vectors(queries, self.head_dim, "queries")
        norms = codes["norms"].astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            if self.query_mode == "gram":
                return finite_scores(self._gram_scores(array, codes["indices"]) * norms)
            rotated = rows_times(array, np.ascontiguousarray(self._rotation().T, dtype=np.float32))
            return finite_scores(pairwise_dot(rotated, self._directions(codes["indices"])) * norms)

    def nbytes(self, codes: Codes) -> int:
        index_bytes = -(-codes["indices"].shape[1] * self.index_bits // 8)
        return len(codes) * index_bytes + codes["norms"].nbytes

    @property
    def _training(self) -> tuple[int, ...]:
        sizes = (self.block_dim, self.codebook_size, self.training_samples, self.restarts, self.lloyd_iterations)
        return (self.head_dim, self.seed, *sizes)

    def _rotation(self) -> np.ndarray:
        return dense_rotation(self.head_dim, self.seed)

    def _directions(self, indices: np.ndarray) -> np.ndarray:
        """[n, head_dim] float32: the codewords side by side, still rotated."""
        return self.codewords()[indices].reshape(len(indices), self.head_dim)

    def _rotated_directions(self, array: np.ndarray, lengths: np.ndarray, round_first: bool) -> np.ndarray:
        """[n, head_dim] float32: Π x/‖x‖, computed in float64; a zero vector stays zero."""
        unit = array / np.where(lengths > 0, lengths, 1.0)[:, None]
        if round_first:
            unit = unit.astype(np.float32).astype(np.float64)
        return rows_times(unit, self._rotation().T).astype(np.float32)

    def _indices(self, rotated: np.ndarray) -> np.ndarray:
        """uint8 [n, block]: nearest codeword of each block in float32, the lowest index on ties."""
        blocks = rotated.reshape(-1, self.block_dim)
        return nearest_codewords(blocks, self.codewords()).reshape(len(rotated), self.head_dim // self.block_dim)

    def _stored_norms(self, lengths: np.ndarray) -> np.ndarray:
        if self.zero_vectors == "refuse":
            return _reference_norms(lengths)
        norms = small_floats(lengths, "float16")
        _refuse_row(lengths > LARGEST_NORM, lengths, "decoding could overflow float32; scale the vectors down")
        return norms

    def _gram_scores(self, queries: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """[q, n] float32: Σ over blocks, in order, of G[query codeword, key codeword], times ‖q‖."""
        lengths = _lengths(queries)
        query_indices = self._indices(self._rotated_directions(queries, lengths, round_first=False))
        gram = gram_matrix(*self._training)
        total = np.zeros((len(queries), len(indices)), dtype=np.float32)
        for block in range(indices.shape[1]):
            total += gram[query_indices[:, block]][:, indices[:, block]]
        return total * lengths.astype(np.float32)[:, None]


def nearest_codewords(blocks: np.ndarray, codewords: np.ndarray) -> np.ndarray:
    """uint8 [block]: nearest of codewords [codeword, 4] to blocks [block, 4], float32.

    The lowest index wins a tie.
    """
    index = np.empty(len(blocks), dtype=np.uint8)
    columns, words = blocks.T[:, None, :], codewords.T[:, :, None]
    for start in range(0, len(blocks), _BLOCKS_AT_ONCE):
        part = slice(start, start + _BLOCKS_AT_ONCE)
        squares = []
        for column, word in zip(columns, words, strict=True):
            difference = np.ascontiguousarray(column[:, part]) - word
            difference *= difference
            squares.append(difference)
        # summed pairwise, as the reference's vector unit does
        squares[0] += squares[1]
        squares[2] += squares[3]
        squares[0] += squares[2]
        index[part] = squares[0].argmin(axis=0)
    return index


def _lengths(array: np.ndarray) -> np.ndarray:
    """Euclidean norms [n] float64 of [n, d] float32."""
    squares = [np.square(array[chunk], dtype=np.float64).sum(axis=1) for chunk in row_chunks(len(array))]
    return np.sqrt(np.concatenate(squares)) if squares else np.empty(0)


def _reference_norms(lengths: np.ndarray) -> np.ndarray:
    """float16 [n], refusing what float16 cannot hold."""
    with np.errstate(over="ignore", under="ignore"):
        norms = lengths.astype(np.float32).astype(np.float16)
    _refuse_row(lengths == 0, lengths, 'a zero vector has no direction (zero_vectors="encode" takes it)')
    _refuse_row(~np.isfinite(norms), lengths, 'above 65504, the largest float16 (zero_vectors="encode" takes it)')
    _refuse_row(norms == 0, lengths, 'too small for float16 (zero_vectors="encode" takes it)')
    return norms


def _refuse_row(bad: np.ndarray, lengths: np.ndarray, why: str) -> None:
    if bad.any():
        row = int(bad.argmax())
        raise CodecError(f"fib: vectors[{row}] has norm {lengths[row]:.6g}: {why}")
