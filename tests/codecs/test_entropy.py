"""The bitstream: its bits are the documented ones, what it costs is what the tables say, damage is seen."""

import builtins

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.codecs.entropy import MOST_SYMBOL, decode_block, encode_block, stream_bits, table_models, table_weights
from polykv.errors import CodecError, MissingExtraError


def counts_of(n_columns, most, seed=0):
    return np.random.default_rng(seed).integers(0, 400, (n_columns, 2 * most + 2)).astype(np.uint16)


def fixed_point(weights):
    """The documented 24-bit table of one column: [symbol + 1] cumulative."""
    scale = (2**24 - len(weights)) / weights.sum()
    below = np.concatenate([[0.0], np.cumsum(weights)[:-1]])
    return [*(np.floor(below * scale).astype(int) + np.arange(len(weights))).tolist(), 2**24]


def written_out(places, counts):
    """The same bits from the definition of asymmetric numeral systems: places [n, column] without escapes."""
    tables = [fixed_point(row) for row in table_weights(counts)]
    state, words = 1, []
    for column in range(places.shape[1] - 1, -1, -1):
        for place in places[::-1, column].tolist():
            low, size = tables[column][place], tables[column][place + 1] - tables[column][place]
            if state >> 40 >= size:
                words.append(state & 0xFFFFFFFF)
                state >>= 32
            state = (state // size << 24) + state % size + low
    while state:
        words.append(state & 0xFFFFFFFF)
        state >>= 32
    return np.array(words, np.uint32)


@pytest.mark.parametrize(("n_columns", "most", "n_rows"), [(1, 0, 5), (5, 3, 40), (12, 15, 64)])
def test_bits_are_those_of_the_definition_on_any_machine(n_columns, most, n_rows):
    counts = counts_of(n_columns, most)
    symbols = np.random.default_rng(1).integers(-most, most + 1, (n_rows, n_columns))
    words = encode_block(symbols, table_models(counts))
    np.testing.assert_array_equal(words, written_out(symbols + most, counts))


symbols_drawn = st.one_of(
    st.integers(-4, 4),
    st.integers(-70000, 70000),
    st.sampled_from([MOST_SYMBOL, -MOST_SYMBOL, 2**15, 2**16 + 2, -(2**30)]),
)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 3), st.lists(st.tuples(symbols_drawn, symbols_drawn, symbols_drawn), max_size=30))
def test_any_symbols_come_back_and_cost_what_the_tables_say(most, rows):
    counts = counts_of(3, most, seed=most)
    symbols = np.array(rows, np.int64).reshape(-1, 3)
    models = table_models(counts)
    words = encode_block(symbols, models)
    words.setflags(write=False)
    np.testing.assert_array_equal(decode_block(words, len(symbols), models), symbols)
    bits = stream_bits(symbols, counts).sum()
    assert bits - 1 < 32 * len(words) <= bits * 1.001 + 64


def test_a_block_without_columns_or_rows_is_its_seal():
    for shape, counts in (((5, 0), counts_of(0, 3)), ((0, 4), counts_of(4, 3))):
        models = table_models(counts)
        words = encode_block(np.zeros(shape, np.int64), models)
        assert words.tolist() == [1]
        assert decode_block(words, shape[0], models).shape == shape


def test_symbols_never_seen_can_be_coded():
    counts = np.zeros((2, 8), np.uint16)
    counts[:, 3] = 65535
    symbols = np.array([[0, 3], [-3, 0], [9, -9]])
    models = table_models(counts)
    np.testing.assert_array_equal(decode_block(encode_block(symbols, models), 3, models), symbols)


@pytest.mark.parametrize("damage", ["front", "back", "all", "longer", "zero", "swapped", "bit"])
def test_torn_blocks_are_refused(damage):
    counts = counts_of(8, 7)
    models = table_models(counts)
    words = encode_block(np.random.default_rng(2).integers(-9, 10, (64, 8)), models)
    torn = {
        "front": words[1:],
        "back": words[:-1],
        "all": words[:0],
        "longer": np.append(words, np.uint32(7)),
        "zero": np.append(words, np.uint32(0)),
        "swapped": words[::-1],
        "bit": np.where(np.arange(len(words)) == len(words) // 2, words ^ np.uint32(16), words),
    }[damage]
    with pytest.raises(CodecError, match="damaged"):
        decode_block(torn, 64, models)


def test_another_number_of_rows_is_refused():
    models = table_models(counts_of(4, 7))
    words = encode_block(np.random.default_rng(2).integers(-7, 8, (64, 4)), models)
    for n_rows in (0, 63, 65):
        with pytest.raises(CodecError, match=f"its {n_rows} vectors"):
            decode_block(words, n_rows, models)


def test_without_the_library_the_remedy_is_named(monkeypatch):
    plain = builtins.__import__

    def absent(name, *rest, **more):
        if name.split(".")[0] == "constriction":
            raise ImportError(name)
        return plain(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtraError, match=r"pip install 'polykv\[entropy\]'"):
        table_models(counts_of(1, 1))
    assert stream_bits(np.zeros((3, 1), np.int64), counts_of(1, 1)).shape == (1,)
