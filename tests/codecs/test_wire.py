"""FB1, FB2, TQW1, TQB1: golden bytes, and refusal of everything else with the offset."""

import json
import re
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from codec_contract import assert_same_codes, sample_vectors
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.codecs.base import Codec, Codes
from polykv.codecs.fib import FibCodec
from polykv.codecs.turbo import TurboCodec
from polykv.codecs.wire.fib import decode_fb1, decode_fb2, encode_fb1, encode_fb2
from polykv.codecs.wire.layout import pack_rows
from polykv.codecs.wire.turbo import decode_tqb1, decode_tqw1, encode_tqb1, encode_tqw1
from polykv.errors import DimensionMismatch, WireError

GOLDEN = Path(__file__).parents[1] / "golden"
SETUPS = [(16, 7), (64, 42)]


@dataclass(frozen=True)
class Format:
    """A wire format under one codec; FB1 and TQW1 are tested on the first vector of the codes."""

    codec: Codec
    encode: Callable[[Codec, Codes], bytes]
    decode: Callable[..., Codes]
    n_vectors: int
    header_nbytes: int

    def codes(self) -> Codes:
        return self.codec.encode(sample_vectors(5, self.codec.head_dim, seed=8)[: self.n_vectors])

    def payload(self) -> bytes:
        return self.encode(self.codec, self.codes())


def first(encode):
    return lambda codec, codes: encode(codec, codes)[0]


REFERENCE = {"qjl": "unit_norm", "radii": "float32", "angle_point": "lower_edge"}
FIB, FIB_REFERENCE = FibCodec(20, 3), FibCodec(20, 3, query_mode="gram", zero_vectors="refuse")
FORMATS = {
    "FB1": Format(FIB, first(encode_fb1), decode_fb1, 1, 11),
    "FB1_reference": Format(FIB_REFERENCE, first(encode_fb1), decode_fb1, 1, 11),
    "FB2": Format(FIB, encode_fb2, decode_fb2, 3, 19),
    "FB2_reference": Format(FIB_REFERENCE, encode_fb2, decode_fb2, 3, 19),
    "FB2_n256": Format(FibCodec(20, 3, codebook_size=256, restarts=1), encode_fb2, decode_fb2, 3, 19),
    "TQW1": Format(TurboCodec(16, 3, **REFERENCE), first(encode_tqw1), decode_tqw1, 1, 46),
    "TQW1_dense": Format(TurboCodec(10, 3, bits=4, **REFERENCE), first(encode_tqw1), decode_tqw1, 1, 46),
    "TQW1_no_sketch": Format(TurboCodec(16, 3, radii="float32"), first(encode_tqw1), decode_tqw1, 1, 46),
    "TQB1": Format(TurboCodec(16, 3, projections=13, **REFERENCE), encode_tqb1, decode_tqb1, 3, 38),
    "TQB1_log_u8": Format(TurboCodec(10, 3, bits=4), encode_tqb1, decode_tqb1, 3, 38),
}
every_format = pytest.mark.parametrize("name", FORMATS)


def golden(head_dim, seed):
    stem = f"codec_d{head_dim}_seed{seed}"
    vectors = np.array(json.loads((GOLDEN / f"{stem}.in.json").read_text())["vectors"], np.float32)
    return vectors, json.loads((GOLDEN / f"{stem}.out.json").read_text())


@pytest.mark.parametrize(("head_dim", "seed"), SETUPS)
@pytest.mark.parametrize("zero_vectors", ["encode", "refuse"])
def test_fib_bytes_are_the_references(head_dim, seed, zero_vectors):
    vectors, out = golden(head_dim, seed)
    codec = FibCodec(head_dim, seed, zero_vectors=zero_vectors)
    codes, wanted = codec.encode(vectors), out["fib_k4_n32"]
    assert [payload.hex() for payload in encode_fb1(codec, codes)] == wanted["fb1_hex"]
    assert encode_fb2(codec, codes).hex() == wanted["fb2_hex"]
    assert_same_codes(decode_fb2(codec, bytes.fromhex(wanted["fb2_hex"])), codes)
    for row, payload in enumerate(wanted["fb1_hex"]):
        assert_same_codes(decode_fb1(codec, bytes.fromhex(payload)), codes, np.array([row]))
    assert len(wanted["fb1_hex"][0]) // 2 == {16: 16, 64: 23}[head_dim]


@pytest.mark.parametrize(("head_dim", "seed"), SETUPS)
@pytest.mark.parametrize("bits", [8, 4])
def test_turbo_bytes_are_the_references(head_dim, seed, bits):
    vectors, out = golden(head_dim, seed)
    wanted = out["turbo"][f"{bits}bit"]
    codec = TurboCodec(head_dim, seed, bits=bits, **REFERENCE)
    codes = codec.encode(vectors)
    assert [payload.hex() for payload in encode_tqw1(codec, codes)] == wanted["tqw1_hex"]
    assert encode_tqb1(codec, codes).hex() == wanted["tqb1_hex"]
    assert_same_codes(decode_tqb1(codec, bytes.fromhex(wanted["tqb1_hex"])), codes)
    for row, payload in enumerate(wanted["tqw1_hex"]):
        assert_same_codes(decode_tqw1(codec, bytes.fromhex(payload)), codes, np.array([row]))
    lossy = TurboCodec(head_dim, seed, bits=bits, **{**REFERENCE, "radii": "log_u8"})
    assert encode_tqb1(lossy, lossy.encode(vectors)).hex() == wanted["tqb1_lossy_hex"]
    assert_same_codes(decode_tqb1(lossy, bytes.fromhex(wanted["tqb1_lossy_hex"])), lossy.encode(vectors))


@every_format
def test_round_trip_also_from_other_buffers(name):
    form = FORMATS[name]
    payload, codes = form.payload(), form.codes()
    for data in (payload, bytearray(payload), memoryview(payload)):
        read = form.decode(form.codec, data)
        assert_same_codes(read, codes)
        assert (len(read), read.head_dim) == (len(codes), codes.head_dim)
    np.testing.assert_array_equal(form.codec.decode(form.decode(form.codec, payload)), form.codec.decode(codes))
    # what is read can be changed without touching the payload
    for array in form.decode(form.codec, payload).arrays.values():
        assert array.flags.writeable


@pytest.mark.parametrize("name", ["FB2", "TQB1", "TQB1_log_u8"])
def test_empty_batch_is_its_header(name):
    form = FORMATS[name]
    empty = form.codec.encode(np.empty((0, form.codec.head_dim), np.float32))
    payload = form.encode(form.codec, empty)
    assert len(payload) == form.header_nbytes
    assert_same_codes(form.decode(form.codec, payload), empty)


@every_format
def test_every_truncation_is_refused_with_its_offset(name):
    form = FORMATS[name]
    payload = form.payload()
    for length in range(len(payload)):
        with pytest.raises(WireError, match=f"truncated at offset {length}:"):
            form.decode(form.codec, payload[:length])


@every_format
def test_trailing_bytes_are_refused_unless_fb2_is_told_otherwise(name):
    form = FORMATS[name]
    payload = form.payload()
    with pytest.raises(WireError, match=f"offset {len(payload)}: 2 bytes after the end"):
        form.decode(form.codec, payload + b"\0\0")
    if form.decode is decode_fb2:
        assert_same_codes(decode_fb2(form.codec, payload + b"xyz", allow_trailing=True), form.codes())


@every_format
def test_every_flipped_bit_is_refused_or_is_another_valid_payload(name):
    form = FORMATS[name]
    payload = form.payload()
    refusals = {}
    for position in range(8 * len(payload)):
        flipped = bytearray(payload)
        flipped[position // 8] ^= 1 << position % 8
        try:
            codes = form.decode(form.codec, bytes(flipped))
        except WireError as error:
            refusals[position] = int(re.search(r"offset (\d+)", str(error))[1])
        else:
            # nothing was ignored: the codes say exactly what the bytes say, and they decode
            assert form.encode(form.codec, codes) == bytes(flipped)
            assert np.isfinite(form.codec.decode(codes)).all()
    assert set(range(8 * form.header_nbytes)) <= set(refusals)
    assert all(0 <= offset <= len(payload) for offset in refusals.values())


@pytest.mark.parametrize(
    ("name", "offset", "value", "text"),
    [
        ("FB1", 0, b"XB1", "offset 0: magic is b'XB1', expected b'FB1'"),
        ("FB1", 3, b"\x02", "offset 3: version is 2, expected 1"),
        ("FB1", 4, b"\x06", "offset 4: index_bits is 6, expected 5"),
        ("FB1", 5, struct.pack("<I", 2**32 - 1), "offset 5: blocks is 4294967295, expected 5"),
        ("FB1", 9, b"\x04\x00", "offset 9: norm_bytes is 4, expected 2"),
        ("FB1", 11, struct.pack("<e", float("nan")), "offset 11, vector 0: nan is not a finite norm ≥ 0"),
        ("FB1", 11, struct.pack("<e", -1.0), "offset 11, vector 0: -1.0 is not a finite norm"),
        ("FB1", 11, struct.pack("<e", -0.0), "offset 11, vector 0: -0.0 is not a finite norm"),
        ("FB1_reference", 11, b"\0\0", "offset 11, vector 0: 0.0 is not a finite norm > 0"),
        ("FB1", 16, b"\xff", "offset 16, vector 0: the padding bits are not zero"),
        ("FB2", 5, b"\x01", "offset 5: reserved is 1, expected 0"),
        ("FB2", 10, struct.pack("<I", 4), "4 vectors of 6 bytes"),
        ("FB2", 10, struct.pack("<I", 2), "offset 31: 6 bytes after the end"),
        ("FB2", 14, b"\x02", "offset 14: norm_tag is 2"),
        ("FB2", 14, b"\x01", "offset 15: norm_bytes is 2, expected 4"),
        ("FB2", 17, b"\x05\x00", "offset 17: index_bytes is 5, expected 4"),
        ("FB2", 19 + 6, struct.pack("<e", float("inf")), "offset 25, vector 1: inf is not"),
        ("TQW1", 6, b"\x02\x00", "offset 6: rotation is 2, expected 1"),
        ("TQW1", 8, b"\x02", "offset 8: variant is 2, expected 1"),
        ("TQW1", 15, b"\x01", "offset 15: padding"),
        ("TQW1", 22, struct.pack("<Q", 4), "offset 22: seed is 4, expected 3"),
        ("TQW1", 34, struct.pack("<I", 31), "offset 34: signs is 31, expected 32"),
        ("TQW1", 38, struct.pack("<Q", 2**63), "offset 38: payload_bytes is 9223372036854775808, expected 43"),
        ("TQW1", 46 + 8, struct.pack("<f", -0.5), "offset 54, vector 0: -0.5 is not a radius"),
        ("TQW1", 46 + 8, struct.pack("<f", -0.0), "offset 54, vector 0: -0.0 is not a radius"),
        ("TQB1", 38 + 41 + 4, struct.pack("<f", float("nan")), "offset 83, vector 1: nan is not a radius"),
        ("TQB1", 15, b"\x01", "offset 15: radii_codec is 1, expected 0"),
        ("TQB1", 38 + 40, b"\xff", "offset 78, vector 0: the padding bits"),
        ("TQB1_log_u8", 38 + 5, struct.pack("<f", 90.0), "offset 43, vector 0: 90.0 is not the logarithm"),
        ("TQB1_log_u8", 38 + 5, struct.pack("<ff", 2.0, 1.0), "offset 47, vector 0: 1.0 is not at least"),
    ],
)
def test_damage_is_named_with_its_offset(name, offset, value, text):
    form = FORMATS[name]
    payload = bytearray(form.payload())
    payload[offset : offset + len(value)] = value
    with pytest.raises(WireError, match=re.escape(text)):
        form.decode(form.codec, bytes(payload))


@every_format
@pytest.mark.parametrize("data", [None, "FB1", 3, [1, 2], np.zeros(4)])
def test_what_is_not_bytes_is_refused(name, data):
    with pytest.raises(WireError, match="a payload is bytes, got"):
        FORMATS[name].decode(FORMATS[name].codec, data)


def test_payloads_of_other_codecs_are_refused():
    for name, form in FORMATS.items():
        for other_name, other in FORMATS.items():
            if name.split("_")[0] != other_name.split("_")[0]:
                with pytest.raises(WireError):
                    other.decode(other.codec, form.payload())
    with pytest.raises(WireError, match="seed is 3, expected 4"):
        decode_tqw1(TurboCodec(16, 4, **REFERENCE), FORMATS["TQW1"].payload())
    with pytest.raises(WireError, match="blocks is 5, expected 6"):
        decode_fb2(FibCodec(24, 3), FORMATS["FB2"].payload())
    legacy = b"FB2" + struct.pack("<BIBIH", 1, 1, 5, 5, 2) + bytes(6)
    with pytest.raises(WireError, match="offset 4"):
        decode_fb2(FIB, legacy)


def test_codes_that_a_format_cannot_hold_are_refused():
    vectors = sample_vectors(4, 16)
    residual = TurboCodec(16, 3, qjl="residual_norm", radii="float32")
    for encode in (encode_tqw1, encode_tqb1):
        with pytest.raises(WireError, match="no place for residual norms"):
            encode(residual, residual.encode(vectors))
    with pytest.raises(WireError, match="TQW1 holds float32 radii"):
        encode_tqw1(TurboCodec(16, 3), TurboCodec(16, 3).encode(vectors))
    with pytest.raises(DimensionMismatch, match="expected 20, got 16"):
        encode_fb2(FIB, FibCodec(16, 3).encode(vectors))


def test_norms_beyond_float16_travel_in_fb2_only():
    vectors = sample_vectors(4, 20)
    vectors[2] *= 1e6
    codes = FIB.encode(vectors)
    assert codes["norms"].dtype == np.float32
    payload = encode_fb2(FIB, codes)
    assert (payload[14], len(payload)) == (1, 19 + 4 * (4 + 4))
    assert_same_codes(decode_fb2(FIB, payload), codes)
    with pytest.raises(WireError, match="vector 2 has norm"):
        encode_fb1(FIB, codes)
    kept = Codes(1, 20, {name: array[:1] for name, array in codes.arrays.items()})
    np.testing.assert_array_equal(decode_fb1(FIB, encode_fb1(FIB, kept)[0])["norms"].astype(np.float32), kept["norms"])


def test_bits_are_packed_from_the_low_end():
    assert pack_rows(np.array([[3, 6]], np.uint8), 5).tobytes() == bytes([0b11000011, 0])
    assert pack_rows(np.array([[1, 0, 1]], np.uint8), 1).tobytes() == bytes([0b101])


def test_lying_headers_allocate_nothing_and_honest_ones_little():
    form = FORMATS["FB2"]
    lie = bytearray(form.payload())
    lie[10:14] = struct.pack("<I", 2**32 - 1)
    big = form.codec.encode(np.tile(sample_vectors(64, 20), (500, 1)))
    honest = encode_fb2(form.codec, big)
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="truncated"):
            decode_fb2(form.codec, bytes(lie))
        assert tracemalloc.get_traced_memory()[1] < 100_000
        tracemalloc.reset_peak()
        decode_fb2(form.codec, honest)
        assert tracemalloc.get_traced_memory()[1] < 30 * len(honest)
    finally:
        tracemalloc.stop()


def check_any_bytes(form: Format, data: bytes) -> None:
    """A reader refuses with WireError, or reads codes that write back the very same bytes."""
    try:
        codes = form.decode(form.codec, data)
    except WireError:
        return
    assert form.encode(form.codec, codes) == data
    assert np.isfinite(form.codec.decode(codes)).all()


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(FORMATS)), st.data())
def test_damaged_payloads(name, data):
    payload = bytearray(FORMATS[name].payload())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(payload)))
        payload[at : at + data.draw(st.integers(0, 5))] = data.draw(st.binary(max_size=5))
    check_any_bytes(FORMATS[name], bytes(payload))


@pytest.mark.slow
def test_fuzz_twenty_thousand_payloads():
    rng = np.random.default_rng(0)
    payloads = {name: form.payload() for name, form in FORMATS.items()}
    for case in range(20_000):
        name = list(FORMATS)[case % len(FORMATS)]
        damaged = bytearray(payloads[name])
        for _ in range(rng.integers(1, 4)):
            at, width = rng.integers(0, len(damaged) + 1), rng.integers(0, 4)
            damaged[at : at + width] = rng.bytes(rng.integers(0, 4))
        check_any_bytes(FORMATS[name], bytes(damaged))
