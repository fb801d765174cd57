"""FB1 (one fib vector) and FB2 (a batch): norm, then the indices of its blocks."""

from __future__ import annotations

import numpy as np

from polykv.codecs.arrays import checked_codes
from polykv.codecs.base import Codes
from polykv.codecs.fib import LARGEST_NORM, FibCodec
from polykv.codecs.wire.layout import (
    Layout,
    RowPlace,
    pack_rows,
    packed_nbytes,
    payload_rows,
    payload_view,
    unpack_rows,
)
from polykv.errors import WireError

FB1 = Layout("FB1", (("magic", "3s"), ("version", "B"), ("index_bits", "B"), ("blocks", "I"), ("norm_bytes", "H")))
FB2 = Layout(
    "FB2",
    (
        ("magic", "3s"),
        ("version", "B"),
        ("index_bits", "B"),
        ("reserved", "B"),
        ("blocks", "I"),
        ("vectors", "I"),
        ("norm_tag", "B"),
        ("norm_bytes", "H"),
        ("index_bytes", "H"),
    ),
)
_NORM_DTYPES = {0: np.dtype("<f2"), 1: np.dtype("<f4")}


def encode_fb1(codec: FibCodec, codes: Codes) -> list[bytes]:
    """One FB1 payload a vector: 23 bytes at head_dim 64. Raises WireError for a norm that is no float16."""
    checked_codes(codes, codec.head_dim)
    with np.errstate(over="ignore"):
        norms = codes["norms"].astype("<f2")
    wide = norms.astype(np.float32) != codes["norms"].astype(np.float32)
    if wide.any():
        row = int(wide.argmax())
        raise WireError(f"FB1: vector {row} has norm {codes['norms'][row]}, no float16; FB2 can hold it")
    header = FB1.pack({**_shared(codec, "FB1"), "norm_bytes": 2})
    return [header + row.tobytes() for row in _rows(codec, norms, codes["indices"])]


def decode_fb1(codec: FibCodec, data: bytes) -> Codes:
    """Codes of the one vector of an FB1 payload written by `codec`. Raises WireError."""
    view = payload_view(data, "FB1")
    FB1.read(view, {**_shared(codec, "FB1"), "norm_bytes": 2})
    return _codes(codec, view, "FB1", FB1.nbytes, 1, _NORM_DTYPES[0], allow_trailing=False)


def encode_fb2(codec: FibCodec, codes: Codes) -> bytes:
    """The whole batch: 19 bytes and 12 a vector at head_dim 64 (14 where norms are float32)."""
    checked_codes(codes, codec.head_dim)
    tag = 0 if codes["norms"].dtype == np.float16 else 1
    norms = codes["norms"].astype(_NORM_DTYPES[tag])
    header = {**_shared(codec, "FB2"), **_fb2_sizes(codec, tag), "vectors": len(codes)}
    return FB2.pack(header) + _rows(codec, norms, codes["indices"]).tobytes()


def decode_fb2(codec: FibCodec, data: bytes, allow_trailing: bool = False) -> Codes:
    """Codes of an FB2 payload written by `codec`. Raises WireError.

    `allow_trailing` accepts bytes after the last vector, as the reference's reader does. The
    reference's older format of the same magic (15-byte header) is refused.
    """
    view = payload_view(data, "FB2")
    tag = FB2.read(view, _shared(codec, "FB2"))["norm_tag"]
    if tag not in _NORM_DTYPES:
        raise WireError(f"FB2: offset 14: norm_tag is {tag}, expected 0 (float16) or 1 (float32)")
    n = FB2.read(view, _fb2_sizes(codec, tag))["vectors"]
    return _codes(codec, view, "FB2", FB2.nbytes, n, _NORM_DTYPES[tag], allow_trailing)


def _shared(codec: FibCodec, name: str) -> dict[str, object]:
    """Header fields that the codec decides."""
    blocks = codec.head_dim // codec.block_dim
    return {"magic": name.encode(), "version": 1, "reserved": 0, "index_bits": codec.index_bits, "blocks": blocks}


def _fb2_sizes(codec: FibCodec, tag: int) -> dict[str, int]:
    return {"norm_tag": tag, "norm_bytes": _NORM_DTYPES[tag].itemsize, "index_bytes": _index_nbytes(codec)}


def _index_nbytes(codec: FibCodec) -> int:
    return packed_nbytes(codec.head_dim // codec.block_dim, codec.index_bits)


def _rows(codec: FibCodec, norms: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """uint8 [n, bytes]: norm and packed indices of each vector."""
    norm_bytes = norms.reshape(-1, 1).view(np.uint8).reshape(len(norms), norms.itemsize)
    return np.concatenate([norm_bytes, pack_rows(indices, codec.index_bits)], axis=1)


def _codes(
    codec: FibCodec, view: memoryview, what: str, start: int, n: int, norm: np.dtype, allow_trailing: bool
) -> Codes:
    row_nbytes = norm.itemsize + _index_nbytes(codec)
    rows = payload_rows(view, what, start, n, row_nbytes, allow_trailing)
    norms = np.ascontiguousarray(rows[:, : norm.itemsize]).view(norm).reshape(n, 1)
    wide = norms.astype(np.float64)
    zero_ok = codec.zero_vectors == "encode"
    held = (wide <= LARGEST_NORM) & (wide >= 0 if zero_ok else wide > 0) & ~np.signbit(wide)
    RowPlace(what, start, row_nbytes, 0).check(norms, held, f"a finite norm {'≥' if zero_ok else '>'} 0")
    place = RowPlace(what, start, row_nbytes, norm.itemsize)
    indices = unpack_rows(rows[:, norm.itemsize :], codec.head_dim // codec.block_dim, codec.index_bits, place)
    return Codes(n, codec.head_dim, {"indices": indices, "norms": norms[:, 0].astype(norm.newbyteorder("="))})
