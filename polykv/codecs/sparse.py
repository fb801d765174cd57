"""Sparse dictionary codec: a vector as a few atoms of a learned dictionary.

Learned by `polykv.calibration` on calibration data; here are only the dictionary as an
artifact and the codec. What is charged is what decoding uses: atom indices packed to
ceil(log2 atoms) bits, and coefficients as float16, or as integers with one float16 scale
per vector. Source: seed document 000 names the method; pursuit in `polykv.codecs.omp`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from polykv.codecs.base import Codec, Codes, checked_vectors
from polykv.codecs.omp import batch_omp
from polykv.codecs.tensors import pack_tensors, unpack_tensors
from polykv.errors import CodecError, DimensionMismatch, InputError
from polykv.receipts import digest_bytes

ARTIFACT_KIND = "polykv_dictionary_v1"
COEFFICIENT_BITS = {"float16": 16, "int8": 8, "int4": 4}
FLOAT16_MAX = float(np.finfo(np.float16).max)


@dataclass(frozen=True, eq=False)
class SparseDictionary:
    """atoms [atom, head_dim] float32, unit norm (or zero); mean [head_dim] float32, subtracted before coding.

    provenance: text pairs kept with it (how it was learned).
    """

    atoms: np.ndarray
    mean: np.ndarray
    provenance: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        atoms = checked_vectors(self.atoms, self.atoms.shape[-1], "atoms")
        mean = checked_vectors(self.mean[None, :], atoms.shape[1], "mean")[0]
        object.__setattr__(self, "atoms", atoms)
        object.__setattr__(self, "mean", mean)
        norms = np.linalg.norm(atoms.astype(np.float64), axis=1)
        wrong = np.flatnonzero((np.abs(norms - 1.0) > 1e-3) & (norms > 0))
        if len(atoms) == 0 or len(wrong):
            place = f"atom {wrong[0]} has norm {norms[wrong[0]]:.4g}, must be 1" if len(wrong) else "there are no atoms"
            raise InputError(f"not a dictionary: {place}")

    @cached_property
    def digest(self) -> str:
        """blake3 of `to_bytes()`: what a policy's `artifacts` and the codec's `artifact` hold."""
        return digest_bytes(self.to_bytes())

    def to_bytes(self) -> bytes:
        """The artifact file: safetensors, the same bytes for the same dictionary and provenance."""
        return pack_tensors({"atoms": self.atoms, "mean": self.mean}, {"kind": ARTIFACT_KIND, **self.provenance})

    @classmethod
    def from_bytes(cls, data: bytes, digest: str | None = None, what: str = "dictionary artifact") -> SparseDictionary:
        """Read `to_bytes()`; raises InputError when the kind, or the blake3 when `digest` is given, disagrees."""
        if digest is not None and digest_bytes(data) != digest:
            raise InputError(f"{what} is damaged: its blake3 is {digest_bytes(data)}, expected {digest}")
        arrays, metadata = unpack_tensors(data, what)
        kind = metadata.pop("kind", None)
        if kind != ARTIFACT_KIND or set(arrays) != {"atoms", "mean"}:
            raise InputError(f"{what} is of kind {kind!r} with arrays {sorted(arrays)}, expected {ARTIFACT_KIND}")
        return cls(arrays["atoms"], arrays["mean"], metadata)


@dataclass(frozen=True)
class SparseCodec(Codec):
    """`sparsity` atoms of a dictionary per vector; build it with `SparseCodec.of(dictionary, …)`.

    artifact is the dictionary's digest and stands for it in the configuration; coefficients is
    "float16", or "int8" / "int4" with one float16 scale a vector. Codes: indices [n, sparsity]
    int32, coefficients [n, sparsity] float16 or int8, scales [n] float16 (integers only).
    """

    n_atoms: int
    sparsity: int
    coefficients: str
    artifact: str
    dictionary: SparseDictionary = field(repr=False, compare=False)

    codec_id: ClassVar[str] = "sparse"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.coefficients not in COEFFICIENT_BITS:
            raise CodecError(f"sparse: unknown coefficients {self.coefficients!r}; known: {', '.join(COEFFICIENT_BITS)}")
        if self.dictionary.atoms.shape != (self.n_atoms, self.head_dim):
            raise DimensionMismatch(
                f"sparse: expected a dictionary of {self.n_atoms} × {self.head_dim}, got {self.dictionary.atoms.shape}"
            )
        if not 1 <= self.sparsity <= self.n_atoms:
            raise CodecError(f"sparse: sparsity {self.sparsity} is outside 1 … {self.n_atoms} (the number of atoms)")
        if self.artifact != self.dictionary.digest:
            raise CodecError(f"sparse: the policy names dictionary {self.artifact}, the one given is {self.dictionary.digest}")

    @classmethod
    def of(cls, dictionary: SparseDictionary, sparsity: int = 4, coefficients: str = "int8") -> SparseCodec:
        """The codec of a dictionary."""
        n_atoms, head_dim = dictionary.atoms.shape
        return cls(head_dim, n_atoms, sparsity, coefficients, dictionary.digest, dictionary)

    @classmethod
    def check_head_dim(cls, head_dim: int) -> None:
        if head_dim < 1:
            raise CodecError(f"sparse: head_dim {head_dim} must be at least 1")

    def config(self) -> dict[str, Any]:
        return {
            "id": self.codec_id,
            "head_dim": self.head_dim,
            "n_atoms": self.n_atoms,
            "sparsity": self.sparsity,
            "coefficients": self.coefficients,
            "artifact": self.artifact,
        }

    @property
    def bits_per_vector(self) -> int:
        """Bits of one vector's codes: indices, coefficients and, for integers, the scale."""
        per_pick = (self.n_atoms - 1).bit_length() + COEFFICIENT_BITS[self.coefficients]
        return self.sparsity * per_pick + (0 if self.coefficients == "float16" else 16)

    def encode(self, vectors: np.ndarray) -> Codes:
        rows = checked_vectors(vectors, self.head_dim)
        found = batch_omp(rows - self.dictionary.mean, self.dictionary.atoms, self.sparsity)
        return self.quantise(found.indices, found.coefficients)

    def quantise(self, indices: np.ndarray, coefficients: np.ndarray) -> Codes:
        """Codes of a pursuit's result: indices and coefficients [n, sparsity]."""
        top = np.abs(coefficients).max(axis=1, initial=0.0)
        levels = 1.0 if self.coefficients == "float16" else float(2 ** (COEFFICIENT_BITS[self.coefficients] - 1) - 1)
        too_big = np.flatnonzero(top / levels > FLOAT16_MAX)
        if len(too_big):
            row = too_big[0]
            raise CodecError(
                f"sparse: vector {row} has coefficient {top[row]:.4g}; float16 holds at most {FLOAT16_MAX:.0f} "
                f"({self.coefficients} here at most {FLOAT16_MAX * levels:.4g}): scale the vectors"
            )
        if self.coefficients == "float16":
            arrays = {"indices": indices, "coefficients": coefficients.astype(np.float16)}
        else:
            scales = (top / levels).astype(np.float16)
            wide = scales.astype(np.float32)[:, None]
            codes = np.divide(coefficients, wide, out=np.zeros_like(coefficients), where=wide > 0)
            arrays = {
                "indices": indices,
                "coefficients": np.clip(np.rint(codes), -levels, levels).astype(np.int8),
                "scales": scales,
            }
        return Codes(len(indices), self.head_dim, arrays)

    def weights(self, codes: Codes) -> np.ndarray:
        """[n, sparsity] float32: the coefficients as decoding uses them."""
        weights = codes["coefficients"].astype(np.float32)
        return weights if self.coefficients == "float16" else weights * codes["scales"].astype(np.float32)[:, None]

    def decode(self, codes: Codes, rows: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        chosen = slice(None) if rows is None else np.asarray(rows, dtype=np.int64)
        indices, weights = codes["indices"][chosen], self.weights(codes)[chosen]
        decoded = np.broadcast_to(self.dictionary.mean, (len(indices), self.head_dim)).copy()
        for slot in range(self.sparsity):
            decoded += weights[:, slot, None] * self.dictionary.atoms[indices[:, slot]]
        return decoded

    def scores(self, queries: np.ndarray, codes: Codes) -> np.ndarray:
        """[q, n] float32: one product of the queries with the atoms, then `sparsity` look-ups per vector."""
        queries = checked_vectors(queries, self.head_dim, "queries")
        table, weights = queries @ self.dictionary.atoms.T, self.weights(codes)
        total = np.repeat((queries @ self.dictionary.mean)[:, None], len(codes), axis=1)
        for slot in range(self.sparsity):
            total += table[:, codes["indices"][:, slot]] * weights[:, slot]
        return total

    def nbytes(self, codes: Codes) -> int:
        """Whole bytes of all codes together, bit-packed across vectors."""
        return (len(codes) * self.bits_per_vector + 7) // 8

    def side_nbytes(self) -> int:
        """The dictionary: atoms and, when it is not zero, the mean, float32."""
        return self.dictionary.atoms.nbytes + (self.dictionary.mean.nbytes if self.dictionary.mean.any() else 0)
