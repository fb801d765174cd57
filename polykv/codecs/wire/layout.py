"""Headers as tables of fields, and bits packed from the low end up."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from polykv.errors import WireError


@dataclass(frozen=True)
class Layout:
    """A fixed header: `fields` are (name, struct code) pairs in order, little-endian, unaligned."""

    name: str
    fields: tuple[tuple[str, str], ...]

    @property
    def nbytes(self) -> int:
        return struct.calcsize("<" + "".join(code for _, code in self.fields))

    def pack(self, values: Mapping[str, Any]) -> bytes:
        return b"".join(struct.pack("<" + code, values[name]) for name, code in self.fields)

    def read(self, data: memoryview, expected: Mapping[str, Any]) -> dict[str, Any]:
        """All fields; raises WireError for a short header or a field that differs from `expected`."""
        values, offset = {}, 0
        for name, code in self.fields:
            width = struct.calcsize("<" + code)
            if offset + width > len(data):
                raise WireError(
                    f"{self.name}: truncated at offset {len(data)}: the header takes {self.nbytes} bytes, "
                    f"the payload has {len(data)}"
                )
            (values[name],) = struct.unpack_from("<" + code, data, offset)
            if name in expected and values[name] != expected[name]:
                raise WireError(
                    f"{self.name}: offset {offset}: {name} is {values[name]!r}, expected {expected[name]!r}"
                )
            offset += width
        return values


def payload_view(data: bytes, what: str) -> memoryview:
    """The payload as a flat view of bytes; raises WireError for anything that is not bytes."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise WireError(f"{what}: offset 0: a payload is bytes, got {type(data).__name__}")
    return memoryview(data).cast("B")


def payload_rows(data: memoryview, what: str, start: int, n: int, row_nbytes: int, allow_trailing: bool) -> np.ndarray:
    """uint8 [n, row_nbytes]: a view of the `n` equal rows from `start` on.

    Raises WireError when the payload is shorter, or longer unless `allow_trailing`.
    """
    end = start + n * row_nbytes
    if end > len(data):
        raise WireError(
            f"{what}: truncated at offset {len(data)}: {n} vectors of {row_nbytes} bytes after {start} take {end} bytes"
        )
    if end < len(data) and not allow_trailing:
        raise WireError(f"{what}: offset {end}: {len(data) - end} bytes after the end of the payload")
    return np.frombuffer(data[start:end], dtype=np.uint8).reshape(n, row_nbytes)


def packed_nbytes(n_values: int, bits: int) -> int:
    """Bytes that `n_values` values of `bits` bits take."""
    return -(-n_values * bits // 8)


def pack_rows(values: np.ndarray, bits: int) -> np.ndarray:
    """values [n, m] unsigned → uint8 [n, ceil(m·bits/8)]: bit b of value i at bit i·bits + b of its row.

    Example, 5 bits: values 3, 6 give the bits 11000 01100 and the bytes 0xC3, 0x00.
    """
    n, m = values.shape
    planes = (values[:, :, None] >> np.arange(bits, dtype=values.dtype)) & 1
    return np.packbits(planes.reshape(n, m * bits).astype(np.uint8), axis=1, bitorder="little")


def unpack_rows(rows: np.ndarray, n_values: int, bits: int, place: RowPlace) -> np.ndarray:
    """The inverse: rows uint8 [n, bytes] → uint8 [n, n_values]; raises WireError for a padding bit that is set."""
    planes = np.unpackbits(rows, axis=1, bitorder="little")
    used = n_values * bits
    padded = planes[:, used:].any(axis=1)
    if padded.any():
        place.refuse(int(padded.argmax()), rows.shape[1] - 1, "the padding bits are not zero")
    weights = (1 << np.arange(bits)).astype(np.uint8)
    return (planes[:, :used].reshape(len(rows), n_values, bits) * weights).sum(axis=2, dtype=np.uint8)


@dataclass(frozen=True)
class RowPlace:
    """Where a column of a table of equal rows lies in its payload."""

    what: str
    start: int
    row_nbytes: int
    column: int

    def refuse(self, row: int, byte: int, why: str) -> None:
        """Raise WireError naming the offset of byte `byte` of this column in row `row`."""
        offset = self.start + row * self.row_nbytes + self.column + byte
        raise WireError(f"{self.what}: offset {offset}, vector {row}: {why}")

    def check(self, values: np.ndarray, held: np.ndarray, why: str) -> None:
        """Raise WireError for the first of `values` [n, m] that is not `held`."""
        if not held.all():
            row, column = np.argwhere(~held)[0]
            self.refuse(int(row), int(column) * values.itemsize, f"{values[row, column]} is not {why}")
