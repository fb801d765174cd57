"""sparse: a vector as a few atoms of a learned dictionary.

The dictionary is learned by `polykv.calibration` on calibration data and lives in an artifact.
What is charged is what decoding uses: atom indices packed to ceil(log2 atoms) bits, and
coefficients as float16, or as integers with one scale a vector. 256 atoms, 4 a vector, int8:
10 bytes for 64 dimensions. Source: seed document 000 names the method; the pursuit is `polykv.codecs.omp`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from polykv.codecs.base import Codes, checked_vectors
from polykv.codecs.omp import batch_omp
from polykv.codecs.trained import TrainedCodec
from polykv.errors import CodecError, NonFiniteError
from polykv.npz import npz_bytes
from polykv.receipts import digest_bytes

COEFFICIENT_BITS = {"float16": 16, "int8": 8, "int4": 4}


@dataclass(frozen=True)
class SparseCodec(TrainedCodec):
    """`sparsity` atoms a vector; coefficients "float16", or "int8" / "int4" with one scale a vector.

    Artifact: atoms [atom, head_dim], unit norm or zero; mean [head_dim], taken off before coding
    (zeros: none). Codes: indices [n, sparsity] int32 (unused slots: atom 0, coefficient 0);
    coefficients [n, sparsity] float16 or int8 (float32 where a coefficient does not fit float16,
    see `small_floats`); scales [n] float16 (integers only, rounded up so that nothing is clipped).
    """

    sparsity: int = 4
    coefficients: str = "int8"

    codec_id: ClassVar[str] = "sparse"
    array_shapes: ClassVar[Mapping[str, tuple[str, ...]]] = {"atoms": ("atom", "head_dim"), "mean": ("head_dim",)}

    def __post_init__(self, arrays: Mapping[str, np.ndarray] | None) -> None:
        super().__post_init__(arrays)
        check_choice(self.codec_id, "coefficients", self.coefficients, tuple(COEFFICIENT_BITS))
        check_at_least(self.codec_id, "sparsity", self.sparsity, 1)
        if self.sparsity > self.n_atoms:
            raise CodecError(f"sparse: sparsity {self.sparsity} > {self.n_atoms}, the number of atoms")
        norms = np.linalg.norm(self.atoms.astype(np.float64), axis=1)
        wrong = np.flatnonzero((np.abs(norms - 1.0) > 1e-3) & (norms > 0))
        if len(wrong):
            raise CodecError(f"sparse: atom {wrong[0]} has norm {norms[wrong[0]]:.6g}, must be 1 (or 0: unused)")

    @classmethod
    def check_head_dim(cls, head_dim: int) -> None:
        check_integer_head_dim(head_dim, cls.codec_id)

    @property
    def atoms(self) -> np.ndarray:
        """[atom, head_dim] float32."""
        return np.asarray(self.arrays["atoms"], np.float32)

    @property
    def mean(self) -> np.ndarray:
        """[head_dim] float32."""
        return np.asarray(self.arrays["mean"], np.float32)

    @property
    def n_atoms(self) -> int:
        return len(self.arrays["atoms"])

    def encode(self, vectors: np.ndarray) -> Codes:
        rows = checked_vectors(vectors, self.head_dim)
        with np.errstate(over="ignore"):
            shifted = checked_vectors(rows - self.mean, self.head_dim, "vectors − mean")
        found = batch_omp(shifted, self.atoms, self.sparsity)
        return self.quantise(found.indices, found.coefficients)

    def quantise(self, indices: np.ndarray, coefficients: np.ndarray) -> Codes:
        """Codes of a pursuit's result, indices and coefficients [n, sparsity].

        Raises NonFiniteError naming the vector whose coefficients are beyond float32.
        """
        largest = np.abs(coefficients).max(axis=1, initial=0.0).astype(np.float64)
        if not np.isfinite(largest).all():
            row = int(np.argmin(np.isfinite(largest)))
            raise NonFiniteError(f"vectors[{row}] has coefficients beyond float32 (3.4e38): scale the vectors down")
        arrays = {"indices": np.asarray(indices, np.int32)}
        if self.coefficients == "float16":
            arrays["coefficients"] = small_floats(
                coefficients.astype(np.float64), "float16", span=np.broadcast_to(largest[:, None], coefficients.shape)
            )
        else:
            scales = small_floats(largest / self._top, "float16", "up")
            step = scales.astype(np.float64)[:, None]
            levels = np.rint(np.divide(coefficients, step, out=np.zeros(coefficients.shape), where=step > 0))
            arrays |= {"coefficients": np.clip(levels, -self._top, self._top).astype(np.int8), "scales": scales}
        return Codes(len(indices), self.head_dim, arrays)

    def decode(self, codes: Codes, rows: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        checked_codes(codes, self.head_dim)
        chosen = checked_rows(rows, len(codes))
        weights, indices, atoms = self._weights(codes)[chosen], codes["indices"][chosen], self.atoms
        decoded = np.tile(self.mean, (len(chosen), 1))
        for slot in range(self.sparsity):
            decoded += weights[:, slot, None] * atoms[indices[:, slot]]
        return decoded

    def scores(self, queries: np.ndarray, codes: Codes) -> np.ndarray:
        """One product of the queries with the atoms, then `sparsity` look-ups a vector."""
        checked_codes(codes, self.head_dim)
        queries = checked_vectors(queries, self.head_dim, "queries")
        table = pairwise_dot(queries, np.vstack([self.atoms, self.mean]))
        weights, total = self._weights(codes), np.empty((len(queries), len(codes)), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            for part in row_chunks(len(codes)):
                total[:, part] = table[:, -1:]
                for slot in range(self.sparsity):
                    total[:, part] += table[:, codes["indices"][part, slot]] * weights[part, slot]
        return finite_scores(total)

    def nbytes(self, codes: Codes) -> int:
        """Whole bytes: all indices and integer coefficients bit-packed, then scales or float coefficients."""
        index_bits = (self.n_atoms - 1).bit_length()
        packed = index_bits + (0 if self.coefficients == "float16" else COEFFICIENT_BITS[self.coefficients])
        floats = codes["coefficients" if self.coefficients == "float16" else "scales"].nbytes
        return -(-len(codes) * self.sparsity * packed // 8) + floats

    def side_nbytes(self) -> int:
        """The dictionary: atoms in float32, and the mean when there is one."""
        return self.atoms.nbytes + (self.mean.nbytes if self.mean.any() else 0)

    @property
    def _top(self) -> int:
        """The highest integer coefficient."""
        return 2 ** (COEFFICIENT_BITS[self.coefficients] - 1) - 1

    def _weights(self, codes: Codes) -> np.ndarray:
        """[n, sparsity] float32: the coefficients as decoding uses them."""
        weights = codes["coefficients"].astype(np.float32)
        if self.coefficients == "float16":
            return weights
        with np.errstate(over="ignore"):
            return weights * codes["scales"].astype(np.float32)[:, None]


def sparse_codec(arrays: Mapping[str, np.ndarray], sparsity: int = 4, coefficients: str = "int8") -> SparseCodec:
    """The codec of an artifact's arrays (atoms, mean, and whatever else it holds), its digest computed."""
    head_dim = int(np.shape(arrays["atoms"])[1])
    return SparseCodec(head_dim, digest_bytes(npz_bytes(arrays)), sparsity, coefficients, arrays=arrays)
