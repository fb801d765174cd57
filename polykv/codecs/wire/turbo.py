"""TQW1 (one turbo vector) and TQB1 (a batch): radii, packed angles, packed signs.

Neither format has room for residual norms or says where in its bin an angle is decoded: codes
with qjl="residual_norm" are refused, and `angle_point` is the reading codec's. A codec without
a sketch writes 0 projections and no signs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from polykv.codecs.arrays import checked_codes
from polykv.codecs.base import Codes
from polykv.codecs.radii import LEAST_LOG
from polykv.codecs.rotation import is_power_of_two
from polykv.codecs.turbo import LARGEST_RADIUS, TurboCodec
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

_START = (("magic", "4s"), ("version", "H"), ("rotation", "H"), ("variant", "B"), ("reserved", "B"))
TQW1 = Layout(
    "TQW1",
    (
        *_START,
        ("head_dim", "I"),
        ("angle_bits", "B"),
        ("padding", "3s"),
        ("projections", "I"),
        ("seed", "Q"),
        ("pairs", "I"),
        ("signs", "I"),
        ("payload_bytes", "Q"),
    ),
)
TQB1 = Layout(
    "TQB1",
    (
        *_START,
        ("head_dim", "I"),
        ("angle_bits", "B"),
        ("radii_codec", "B"),
        ("padding", "2s"),
        ("projections", "I"),
        ("seed", "Q"),
        ("vectors", "I"),
        ("payload_bytes", "I"),
    ),
)
_HADAMARD, _DENSE = 1, 2
# a last bit of room for the logarithms of other processors
_LEAST_LOG, _LARGEST_LOG = LEAST_LOG - 2.0**-16, float(np.log(LARGEST_RADIUS)) + 2.0**-16


def encode_tqw1(codec: TurboCodec, codes: Codes) -> list[bytes]:
    """One TQW1 payload a vector: 206 bytes at head_dim 64, 8 bits. Needs radii="float32"."""
    header = TQW1.pack(_tqw1_header(codec))
    return [header + row.tobytes() for row in _rows(codec, codes)]


def decode_tqw1(codec: TurboCodec, data: bytes) -> Codes:
    """Codes of the one vector of a TQW1 payload written by `codec`. Raises WireError."""
    view = payload_view(data, "TQW1")
    TQW1.read(view, _tqw1_header(codec))
    return _codes(codec, view, TQW1, 1)


def encode_tqb1(codec: TurboCodec, codes: Codes) -> bytes:
    """The whole batch: 38 bytes and, at head_dim 64, 8 bits, 160 a vector with float32 radii, 72 with log-u8."""
    return TQB1.pack({**_tqb1_header(codec), "vectors": len(codes)}) + _rows(codec, codes).tobytes()


def decode_tqb1(codec: TurboCodec, data: bytes) -> Codes:
    """Codes of a TQB1 payload written by `codec`. Raises WireError."""
    view = payload_view(data, "TQB1")
    header = TQB1.read(view, _tqb1_header(codec))
    return _codes(codec, view, TQB1, header["vectors"])


def _shared(codec: TurboCodec, name: str) -> dict[str, object]:
    """Header fields of both formats that the codec decides."""
    if codec.qjl == "residual_norm":
        raise WireError(f'{name} has no place for residual norms; use qjl="off" or "unit_norm"')
    return {
        "magic": name.encode(),
        "version": 1,
        "rotation": _HADAMARD if is_power_of_two(codec.head_dim) else _DENSE,
        "reserved": 0,
        "head_dim": codec.head_dim,
        "angle_bits": codec.angle_bits,
        "projections": _n_signs(codec),
        "seed": codec.seed,
        "payload_bytes": sum(_columns(codec)),
    }


def _tqw1_header(codec: TurboCodec) -> dict[str, object]:
    if codec.radii != "float32":
        raise WireError(f"TQW1 holds float32 radii, the codec's are {codec.radii}; TQB1 can hold them")
    own = {"variant": 1, "padding": bytes(3), "pairs": codec.head_dim // 2, "signs": _n_signs(codec)}
    return {**_shared(codec, "TQW1"), **own}


def _tqb1_header(codec: TurboCodec) -> dict[str, object]:
    radii_codec = 0 if codec.radii == "float32" else 1
    return {**_shared(codec, "TQB1"), "variant": 2, "padding": bytes(2), "radii_codec": radii_codec}


def _n_signs(codec: TurboCodec) -> int:
    return 0 if codec.qjl == "off" else codec.projections


def _columns(codec: TurboCodec) -> tuple[int, int, int]:
    """Bytes of (radii, angles, signs) of one vector."""
    pairs = codec.head_dim // 2
    radii = 4 * pairs if codec.radii == "float32" else pairs + 8
    return radii, packed_nbytes(pairs, codec.angle_bits), packed_nbytes(_n_signs(codec), 1)


def _rows(codec: TurboCodec, codes: Codes) -> np.ndarray:
    """uint8 [n, bytes]: radii, angles and signs of each vector."""
    checked_codes(codes, codec.head_dim)
    if codec.radii == "float32":
        columns = [_as_bytes(codes["radii"])]
    else:
        columns = [codes["log_radii"], _as_bytes(codes["log_range"])]
    columns.append(pack_rows(codes["angles"], codec.angle_bits))
    if codec.qjl != "off":
        columns.append(pack_rows((codes["signs"] > 0).astype(np.uint8), 1))
    return np.concatenate(columns, axis=1)


def _as_bytes(floats: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(floats, dtype="<f4").view(np.uint8).reshape(len(floats), 4 * floats.shape[1])


def _codes(codec: TurboCodec, view: memoryview, layout: Layout, n: int) -> Codes:
    radii_nbytes, angle_nbytes, _ = widths = _columns(codec)
    rows = payload_rows(view, layout.name, layout.nbytes, n, sum(widths), allow_trailing=False)

    def place(column: int) -> RowPlace:
        return RowPlace(layout.name, layout.nbytes, sum(widths), column)

    arrays = _read_radii(codec, rows[:, :radii_nbytes], place)
    ends = radii_nbytes + angle_nbytes
    angles = rows[:, radii_nbytes:ends]
    arrays["angles"] = unpack_rows(angles, codec.head_dim // 2, codec.angle_bits, place(radii_nbytes))
    if codec.qjl != "off":
        bits = unpack_rows(rows[:, ends:], codec.projections, 1, place(ends))
        arrays["signs"] = np.where(bits == 1, np.int8(1), np.int8(-1))
    return Codes(n, codec.head_dim, arrays)


def _read_radii(codec: TurboCodec, columns: np.ndarray, place: Callable[[int], RowPlace]) -> dict[str, np.ndarray]:
    pairs = codec.head_dim // 2
    if codec.radii == "float32":
        radii = np.ascontiguousarray(columns).view("<f4").astype(np.float32)
        place(0).check(radii, (radii >= 0) & ~np.signbit(radii) & (radii <= LARGEST_RADIUS), "a radius from 0 to 2^110")
        return {"radii": radii}
    log_range = np.ascontiguousarray(columns[:, pairs:]).view("<f4").astype(np.float32)
    held = (log_range >= _LEAST_LOG) & (log_range <= _LARGEST_LOG)
    place(pairs).check(log_range, held, "the logarithm of a radius from 2^-126 to 2^110")
    place(pairs + 4).check(log_range[:, 1:], log_range[:, 1:] >= log_range[:, :1], "at least the lowest logarithm")
    return {"log_radii": columns[:, :pairs].copy(), "log_range": log_range}
