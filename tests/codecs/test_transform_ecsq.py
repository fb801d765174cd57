"""transform_ecsq: the contract, real bytes, blocks that are read alone, damage and bad artifacts refused."""

import hashlib
from functools import partial

import codec_contract
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.codecs import transform_ecsq
from polykv.codecs.base import Codes
from polykv.codecs.entropy import MOST_SYMBOL, table_widths
from polykv.codecs.registry import build_codec
from polykv.codecs.transform_ecsq import transform_ecsq_codec
from polykv.errors import CodecError, DimensionMismatch


def make_arrays(seed=0, head_dim=16, n_coordinates=8, width=20, step=0.5, mean=0.5, dtype=np.float16):
    """A rotation's first rows as the transform; symbols of one width, neighbours that tell a little."""
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(head_dim, head_dim)))[0][:n_coordinates]
    return {
        "mean": np.full(head_dim, mean, np.float32),
        "analysis": turn.astype(dtype),
        "synthesis": turn.T.astype(dtype),
        "step": np.array([step], np.float32),
        "widths": np.full((3, n_coordinates), width, np.uint8),
        "shares": np.repeat(np.array([[0], [5], [9]], np.uint8), n_coordinates, axis=1),
    }


def bell_rows(n, spreads, seed=1):
    return (np.random.default_rng(seed).normal(size=(n, len(spreads))) * spreads).astype(np.float32)


@pytest.mark.parametrize("head_dim", [16, 80])
@pytest.mark.parametrize("block_tokens", [1, 8, 64])
def test_contract(head_dim, block_tokens, monkeypatch):
    arrays = make_arrays(head_dim=head_dim, n_coordinates=head_dim, mean=0.0)
    codec = transform_ecsq_codec(arrays, block_tokens)
    monkeypatch.setattr(codec_contract, "build_codec", partial(build_codec, artifacts=lambda digest: arrays))
    for check in codec_contract.CHECKS:
        check(codec, codec_contract.Case(codec.config(), rowwise=False))


@pytest.mark.parametrize("block_tokens", [2**31, 2**62])
def test_a_block_longer_than_any_context_takes_the_memory_of_its_rows(block_tokens):
    codec = transform_ecsq_codec(make_arrays(), block_tokens)
    rows = bell_rows(10, np.ones(16))
    whole = transform_ecsq_codec(make_arrays(), 16)
    np.testing.assert_array_equal(codec.decode(codec.encode(rows), [7, 2]), whole.decode(whole.encode(rows), [7, 2]))
    assert codec.decode(codec.encode(rows[:0])).shape == (0, 16)


def test_a_zero_vector_decodes_to_zero_where_the_mean_is():
    codec = transform_ecsq_codec(make_arrays(mean=0.0))
    assert (codec.decode(codec.encode(np.zeros((3, 16)))) == 0).all()


def test_what_a_vector_decodes_to_depends_on_it_alone():
    rows = bell_rows(150, np.ones(16))
    codec = transform_ecsq_codec(make_arrays(), block_tokens=32)
    whole = codec.decode(codec.encode(rows))
    order = np.random.default_rng(0).permutation(150)
    np.testing.assert_array_equal(codec.decode(codec.encode(rows[order])), whole[order])
    np.testing.assert_array_equal(codec.decode(codec.encode(rows[60:67])), whole[60:67])
    later = rows.copy()
    later[71:] *= 50
    np.testing.assert_array_equal(codec.decode(codec.encode(later))[:71], whole[:71])
    assert codec.coupled_tokens() == 1


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 40), st.integers(1, 17), st.integers(0, 63), st.sampled_from([0.01, 1.0, 300.0]))
def test_decoding_reads_the_symbols_back(n, block_tokens, width, size):
    codec = transform_ecsq_codec(make_arrays(width=width, dtype=np.float32), block_tokens)
    rows = bell_rows(n, np.full(16, size))
    codes = codec.encode(rows)
    arrays = codec.arrays
    wanted = (codec.symbols(rows) * codec.step) @ arrays["synthesis"].T.astype(np.float64) + arrays["mean"]
    np.testing.assert_allclose(codec.decode(codes), wanted, rtol=1e-5, atol=1e-4 * size)
    assert len(codes["offsets"]) == -(-n // block_tokens) + 1
    assert codec.nbytes(codes) == 4 * len(codes["words"]) + 4 * -(-n // block_tokens)


def test_an_error_is_at_most_half_a_step_in_every_coordinate():
    codec = transform_ecsq_codec(make_arrays(n_coordinates=16, dtype=np.float32))
    rows = bell_rows(100, np.full(16, 3.0))
    z = (codec.decode(codec.encode(rows)) - rows) @ codec.arrays["analysis"].T
    assert 0.2 < np.abs(z).max() <= 0.25 + 1e-5


def test_rows_are_read_from_their_own_blocks(monkeypatch):
    codec = transform_ecsq_codec(make_arrays(), block_tokens=16)
    codes = codec.encode(bell_rows(100, np.ones(16)))
    sizes, plain = [], transform_ecsq.decode_block
    monkeypatch.setattr(
        transform_ecsq, "decode_block", lambda words, n, models: sizes.append(n) or plain(words, n, models)
    )
    codec.decode(codes, [99, 3, 98])
    assert sizes == [16, 4]


def test_bytes_are_those_of_the_cross_entropy_bound():
    """256 rows of 64 dims: words, seals and offsets add at most 3 %."""
    spreads = np.geomspace(8, 0.3, 64)
    eye = np.eye(64, dtype=np.float16)
    arrays = {"mean": np.zeros(64, np.float32), "analysis": eye, "synthesis": eye, "step": np.ones(1, np.float32)}
    widths = np.searchsorted(table_widths(), spreads).astype(np.uint8)
    codec = transform_ecsq_codec(arrays | {"widths": np.tile(widths, (3, 1)), "shares": np.zeros((3, 64), np.uint8)})
    rows = bell_rows(256, spreads)
    bound = codec.entropy_bytes(rows)
    taken = codec.nbytes(codec.encode(rows))
    assert bound <= taken <= 1.03 * bound
    assert 1.03 * 256 * 64 / 8 < bound < 256 * 64 / 2  # between 1 and 4 bits a coordinate


def test_everything_kept_once_is_charged():
    arrays = make_arrays()
    assert transform_ecsq_codec(arrays).side_nbytes() == sum(array.nbytes for array in arrays.values())


def test_the_bitstream_stays_what_it_was():
    eye = np.eye(8, dtype=np.float16)
    arrays = make_arrays(head_dim=8) | {"analysis": eye, "synthesis": eye}
    rows = (np.arange(80 * 8) * 37 % 101 - 50).reshape(80, 8).astype(np.float32) / 16
    rows[5, 2] = 4e6
    codes = transform_ecsq_codec(arrays).encode(rows)
    digest = hashlib.sha256(codes["words"].astype("<u4").tobytes()).hexdigest()
    assert (codes["offsets"].tolist(), digest[:16]) == ([0, 99, 124], "a0a106793b6ae7fb")


def test_without_coordinates_every_vector_is_the_mean():
    codec = transform_ecsq_codec(make_arrays(n_coordinates=0))
    codes = codec.encode(bell_rows(70, np.ones(16)))
    assert (codec.decode(codes) == 0.5).all()
    assert codec.nbytes(codes) == 2 * 4 + 2 * 4


def test_vectors_too_far_out_are_refused_by_row():
    codec = transform_ecsq_codec(make_arrays())
    rows = np.zeros((1100, 16), np.float32)
    rows[1050] = 3e38
    with pytest.raises(CodecError, match=rf"vectors\[1050\] lies .* steps .* at most {MOST_SYMBOL}"):
        codec.encode(rows)


def test_damaged_codes_are_refused():
    codec = transform_ecsq_codec(make_arrays(), block_tokens=16)
    codes = codec.encode(bell_rows(50, np.ones(16)))
    words, offsets = codes["words"], codes["offsets"]
    crossed = offsets.copy()
    crossed[1], crossed[2] = offsets[2], offsets[1]
    shifted = offsets.copy()
    shifted[1] += 1
    damaged = {
        "must rise": [(words[:-1], offsets), (words, crossed), (words, offsets + np.uint32(1))],
        "need 5 offsets": [(words, offsets[:-1])],
        "axis of uint32": [(words.astype(np.int64), offsets), (words[None], offsets), (words, offsets[None])],
        "is damaged": [(words, shifted), (np.roll(words, 1), offsets)],
    }
    for text, pairs in damaged.items():
        for torn_words, torn_offsets in pairs:
            torn = Codes(50, 16, {"words": torn_words, "offsets": torn_offsets})
            with pytest.raises(CodecError, match=text):
                codec.decode(torn)
    with pytest.raises(CodecError, match="need 6 offsets"):
        codec.decode(Codes(70, 16, codes.arrays))


@pytest.mark.parametrize("name", ["analysis", "synthesis", "widths", "shares", "mean"])
def test_arrays_that_do_not_fit_are_refused(name):
    arrays = make_arrays()
    with pytest.raises((CodecError, DimensionMismatch)):
        transform_ecsq_codec(arrays | {name: arrays[name][:-1]})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"widths": np.ones((3, 8))}, "widths are float64"),
        ({"widths": np.full((3, 8), 64, np.uint8)}, "up to 64, must be uint8 of 3 rounds up to 63"),
        ({"shares": np.full((3, 8), 33, np.uint8)}, "up to 33, must be uint8 of 3 rounds up to 32"),
        ({"widths": np.ones((4, 8), np.uint8), "shares": np.ones((4, 8), np.uint8)}, "of 4 rounds"),
        ({"shares": np.ones((3, 8), np.uint8)}, "first round must be 0"),
        ({"shares": np.ones((3, 8), np.int64)}, "shares are int64"),
        ({"step": np.zeros(1, np.float32)}, "step is 0.0"),
        ({"step": np.full(1, -1.0)}, "step is -1.0"),
    ],
)
def test_bad_artifacts_are_refused(change, text):
    with pytest.raises(CodecError, match=text):
        transform_ecsq_codec(make_arrays() | change)


@pytest.mark.parametrize("block_tokens", [0, -1, 8.0, True, 2**63])
def test_bad_blocks_are_refused(block_tokens):
    with pytest.raises(CodecError, match="block_tokens"):
        transform_ecsq_codec(make_arrays(), block_tokens)
