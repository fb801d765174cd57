"""The bitstream: its bits are the documented ones, what it costs is what the tables say, damage is seen."""

import builtins

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from polykv.codecs.entropy import (
    MOST_LEVEL,
    MOST_SYMBOL,
    N_WIDTHS,
    block_models,
    decode_block,
    encode_block,
    stream_bits,
    table_level,
    table_weights,
    table_widths,
)
from polykv.errors import CodecError, MissingExtraError


def models_of(n_columns, widest=N_WIDTHS, seed=0):
    """Models of any widths below `widest` and any shares."""
    rng = np.random.default_rng(seed)
    widths, shares = (rng.integers(0, most, (3, n_columns)).astype(np.uint8) for most in (widest, 33))
    shares[0] = 0
    return widths, shares, block_models(widths, shares)


def fixed_point(weights):
    """The documented 24-bit table: [symbol + 1] cumulative."""
    scale = (2**24 - len(weights)) / weights.sum()
    below = np.concatenate([[0.0], np.cumsum(weights)[:-1]])
    return [*(np.floor(below * scale).astype(int) + np.arange(len(weights))).tolist(), 2**24]


def residuals_in_order(symbols, widths, shares):
    """(residual, fixed-point table, largest residual in it), by the definition: round by round, by size of table."""
    n_rows, n_columns = symbols.shape
    levels = [table_level(int(widths[:, column].max())) for column in range(n_columns)]
    for i, (first, stride, apart) in enumerate([(0, 4, 0), (2, 4, 2), (1, 2, 1)]):
        for level in sorted(set(levels)):
            for row in range(first, n_rows, stride):
                for column in (c for c in range(n_columns) if levels[c] == level):
                    before = int(symbols[row - apart, column])
                    behind = int(symbols[row + apart, column]) if row + apart < n_rows else before
                    eighths = (int(shares[i, column]) * (before + behind) + 4) // 8 if i else 0
                    whole = (eighths + 4) // 8
                    weights = table_weights(widths[i : i + 1, column].astype(int), level)[0, eighths - 8 * whole + 4]
                    yield int(symbols[row, column]) - whole, fixed_point(weights), level


def written_out(symbols, widths, shares):
    """The same bits from the definition of asymmetric numeral systems: symbols [n, column] without escapes."""
    state, words = 1, []
    for residual, table, level in reversed(list(residuals_in_order(symbols, widths, shares))):
        place = residual + level
        low, size = table[place], table[place + 1] - table[place]
        if state >> 40 >= size:
            words.append(state & 0xFFFFFFFF)
            state >>= 32
        state = (state // size << 24) + state % size + low
    while state:
        words.append(state & 0xFFFFFFFF)
        state >>= 32
    return np.array(words, np.uint32)


@pytest.mark.parametrize(
    ("n_columns", "widest", "n_rows"), [(1, 1, 5), (5, 20, 40), (12, 40, 64), (3, 30, 1), (3, 30, 2)]
)
def test_bits_are_those_of_the_definition_on_any_machine(n_columns, widest, n_rows):
    widths, shares, models = models_of(n_columns, widest)
    rng = np.random.default_rng(1)
    spread = table_widths()[widths.max(axis=0)]
    symbols = np.rint(np.clip(rng.normal(size=(n_rows, n_columns)), -1, 1) * spread).astype(np.int64)
    words = encode_block(symbols, models)
    np.testing.assert_array_equal(words, written_out(symbols, widths, shares))


@pytest.mark.parametrize("width", [0, 12, 30, 63])
def test_chances_are_those_of_a_student_t(width):
    most, sigma = 31, table_widths()[width]
    weights = table_weights(np.array([width]), most)[0]
    for eighth in (0, 4, 7):
        edges = (np.arange(-most, most + 2) - 0.5 - (eighth - 4) / 8) / sigma
        chances = np.diff(stats.t(8).cdf(edges))
        np.testing.assert_allclose(weights[eighth, :-1] - 1, 2**20 * chances, atol=0.6)
        assert weights[eighth, -1] - 1 == pytest.approx(2**20 * (1 - chances.sum()), abs=0.6)
    assert (weights == np.rint(weights)).all()
    assert (weights >= 1).all()


def test_every_table_holds_four_widths_or_all_it_can_and_none_is_twice_as_large():
    for width, size in enumerate(table_widths()):
        level, wanted = table_level(width), min(1 + 4 * size, MOST_LEVEL)
        assert level in (3, 7, 15, 31, 63, 127, 255)
        assert wanted <= level
        assert level == 3 or (level - 1) / 2 < wanted
        weights = table_weights(np.array([width]), level)
        assert (weights >= 1).all()
        assert (weights == np.rint(weights)).all()


def test_neighbours_that_tell_save_bits():
    """Slow columns: half of the bits of columns that know nothing of each other."""
    rng = np.random.default_rng(0)
    slow = np.rint(np.cumsum(rng.normal(size=(64, 8)), axis=0)).astype(np.int64)
    told, alone = np.repeat(np.array([[0], [32], [32]], np.uint8), 8, axis=1), np.zeros((3, 8), np.uint8)
    wide = int(np.searchsorted(table_widths(), slow.std()))
    narrow = int(np.searchsorted(table_widths(), 0.8))
    widths = np.array([[wide] * 8, [narrow + 2] * 8, [narrow] * 8], np.uint8)
    bits = [
        stream_bits(slow, block_models(w, s)).sum()
        for w, s in ((widths, told), (np.full((3, 8), wide, np.uint8), alone))
    ]
    assert bits[0] < 0.75 * bits[1]


symbols_drawn = st.one_of(
    st.integers(-4, 4),
    st.integers(-70000, 70000),
    st.sampled_from([MOST_SYMBOL, -MOST_SYMBOL, 2**15, 2**16 + 2, -(2**30)]),
)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, N_WIDTHS), st.lists(st.tuples(symbols_drawn, symbols_drawn, symbols_drawn), max_size=30))
def test_any_symbols_come_back_and_cost_what_the_tables_say(widest, rows):
    _, _, models = models_of(3, widest, seed=widest)
    symbols = np.array(rows, np.int64).reshape(-1, 3)
    words = encode_block(symbols, models)
    words.setflags(write=False)
    np.testing.assert_array_equal(decode_block(words, len(symbols), models), symbols)
    assert 32 * len(words) <= stream_bits(symbols, models).sum() * 1.001 + 64


def test_bits_that_were_priced_are_needed():
    """Rows a table is made for; single symbols at a table's low end are free while the state is 1."""
    widths, _, models = models_of(8, 40)
    symbols = np.rint(np.random.default_rng(3).normal(size=(64, 8)) * table_widths()[widths[0]]).astype(np.int64)
    bits = stream_bits(symbols, models).sum()
    assert bits - 1 < 32 * len(encode_block(symbols, models)) <= bits + 64


def test_a_block_without_columns_or_rows_is_its_seal():
    for shape in ((5, 0), (0, 4)):
        _, _, models = models_of(shape[1])
        words = encode_block(np.zeros(shape, np.int64), models)
        assert words.tolist() == [1]
        assert decode_block(words, shape[0], models).shape == shape


@pytest.mark.parametrize("damage", ["front", "back", "all", "longer", "zero", "swapped", "bit"])
def test_torn_blocks_are_refused(damage):
    _, _, models = models_of(8, 30)
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
    _, _, models = models_of(4, 30)
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

    _, _, models = models_of(1)
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtraError, match=r"pip install 'polykv\[entropy\]'"):
        encode_block(np.zeros((3, 1), np.int64), models)
    assert stream_bits(np.zeros((3, 1), np.int64), models).shape == (1,)
