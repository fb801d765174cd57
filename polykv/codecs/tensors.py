"""Arrays with metadata as bytes: the safetensors layout, written the same way every time.

Layout (facts of the format): u64 little-endian header length, a JSON header
{name: {dtype, shape, data_offsets}, "__metadata__": {str: str}}, then raw little-endian
C-order data. No pickle, no time stamps, names sorted: equal arrays give equal bytes, so the
file's blake3 identifies its content.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np

from polykv.errors import InputError, WireError
from polykv.receipts import canonical_json, parse_json

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I8": "|i1", "U8": "|u1"}
_NAMES = {np.dtype(code): name for name, code in DTYPES.items()}


def pack_tensors(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> bytes:
    """The bytes of a safetensors file; raises InputError naming an array whose dtype it cannot hold."""
    header, body, offset = {"__metadata__": dict(metadata)}, [], 0
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        if little.dtype not in _NAMES:
            raise InputError(f"array {name!r} is {array.dtype}; an artifact holds {', '.join(DTYPES)}")
        data = little.tobytes()
        header[name] = {
            "dtype": _NAMES[little.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(data)],
        }
        body.append(data)
        offset += len(data)
    text = canonical_json(header)
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(body)


def unpack_tensors(data: bytes, what: str = "artifact") -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """(arrays, metadata) of `pack_tensors` bytes, or of any plain safetensors file.

    Raises WireError naming `what` and the place for bytes that are truncated or foreign.
    """
    if len(data) < 8:
        raise WireError(f"{what} has {len(data)} bytes, a safetensors file has at least 8")
    (length,) = struct.unpack_from("<Q", data)
    if length > len(data) - 8:
        raise WireError(f"{what}: the header claims {length} bytes at offset 8, only {len(data) - 8} follow")
    try:
        header = parse_json(bytes(data[8 : 8 + length]), f"{what} header")
    except InputError as error:
        raise WireError(f"{what} is not a safetensors file: {error}") from error
    if not isinstance(header, dict):
        raise WireError(f"{what} is not a safetensors file: its header is not an object")
    metadata = header.pop("__metadata__", {})
    body = memoryview(data)[8 + length :]
    return {name: _tensor(body, entry, f"{what} array {name!r}") for name, entry in header.items()}, metadata


def _tensor(body: memoryview, entry: Mapping, what: str) -> np.ndarray:
    try:
        dtype, shape = np.dtype(DTYPES[entry["dtype"]]), tuple(int(n) for n in entry["shape"])
        start, stop = (int(n) for n in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(f"{what}: its header entry cannot be read ({error!r})") from error
    needed = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if min(shape, default=0) < 0 or not 0 <= start <= stop <= len(body) or stop - start != needed:
        raise WireError(f"{what}: bytes {start}…{stop} of {len(body)} do not hold {shape} {dtype}, {needed} bytes")
    return np.frombuffer(body[start:stop], dtype).reshape(shape).copy()
