"""The contract every codec keeps.

A codec is a frozen dataclass whose constructor arguments are its configuration; the
configuration is JSON, and the JSON's digest is the codec's identity. Batches are the only
form: one call takes [n, head_dim] vectors. Scores are computed from the codes, never from
vectors decoded behind the caller's back, unless the codec's decode *is* its score (uniform).

    codes = codec.encode(vectors)            # vectors [n, head_dim] float32
    codec.decode(codes, rows=[3, 5])         # [2, head_dim] float32
    codec.scores(queries, codes)             # [q, n] float32, estimates of q·k
    codec.nbytes(codes)                      # bytes needed to keep these codes
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from polykv.errors import DimensionMismatch, NonFiniteError
from polykv.receipts import digest_json, to_plain


@dataclass(frozen=True, eq=False)
class Codes:
    """Encoded vectors, as a struct of arrays.

    `n_vectors` × `head_dim` is the shape that was encoded; every array's first axis is
    `n_vectors` unless the codec's docstring says otherwise.
    """

    n_vectors: int
    head_dim: int
    arrays: Mapping[str, np.ndarray]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def __len__(self) -> int:
        return self.n_vectors


@dataclass(frozen=True)
class Codec(ABC):
    """Base of all codecs. Subclasses add their arguments as dataclass fields, `head_dim` first."""

    head_dim: int

    codec_id: ClassVar[str]

    def __post_init__(self) -> None:
        self.check_head_dim(self.head_dim)

    @classmethod
    @abstractmethod
    def check_head_dim(cls, head_dim: int) -> None:
        """Raise CodecError, naming codec and number, when this head_dim cannot be coded."""

    @abstractmethod
    def encode(self, vectors: np.ndarray) -> Codes:
        """Encode [n, head_dim] finite vectors (n may be 0)."""

    @abstractmethod
    def decode(self, codes: Codes, rows: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        """[m, head_dim] float32: the chosen rows, all when `rows` is None."""

    @abstractmethod
    def scores(self, queries: np.ndarray, codes: Codes) -> np.ndarray:
        """[q, n] float32 estimates of query·vector, from the codes."""

    @abstractmethod
    def nbytes(self, codes: Codes) -> int:
        """Bytes really needed to keep these codes: indices bit-packed, norms and scales in."""

    def side_nbytes(self) -> int:
        """Bytes kept once for any number of vectors (codebooks, rotations not derivable from a seed)."""
        return 0

    def coupled_tokens(self) -> int:
        """How many consecutive rows are coded together: 1 when no row's code depends on another row."""
        return 1

    @classmethod
    def implied_arguments(cls, codec_id: str) -> dict[str, Any]:
        """Arguments that an id of this class already says (turbo_4bit: bits = 4)."""
        return {}

    def config(self) -> dict[str, Any]:
        """{"id": codec_id, …every constructor argument} as plain JSON."""
        return {"id": self.codec_id, **{f.name: to_plain(getattr(self, f.name)) for f in fields(self)}}

    def digest(self) -> str:
        """The codec's identity: blake3 of its canonical configuration."""
        return digest_json(self.config())


def checked_vectors(vectors: np.ndarray, head_dim: int, what: str = "vectors") -> np.ndarray:
    """[n, head_dim] float32, C order; refuses another width (both numbers) and NaN/inf (the place)."""
    # numbers beyond float32 become inf here and are refused below, with their place
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(vectors, dtype=np.float32)
    if array.ndim != 2 or array.shape[1] != head_dim:
        got = array.shape[1] if array.ndim == 2 else f"{array.ndim} axes"
        raise DimensionMismatch(f"{what}: dimension mismatch: expected {head_dim}, got {got}")
    finite = np.isfinite(array)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise NonFiniteError(
            f"{what}[{row}, {column}] is {array[row, column]}: only finite numbers can be encoded; "
            "find where the capture produced it (polykv verify STORE)"
        )
    return array
