"""A block of integers as a bitstream: asymmetric numeral systems, tokens predicted from those around them.

Every fourth row of a block comes first, then the rows in the middle of two of them, then all the rest (as pictures
of a video are, between pictures already read). A row that lies between two others is expected where a share of
their sum lies, column by column; what is left is coded by the chances of a Student t of 8 degrees of freedom, of
a width for each column and round. Escapes for what lies beyond a table stand right behind its rows: the bit length
of the rest with the sign, then the bits below the leading one (Exp-Golomb, Teuhola 1978). The coder is `constriction`
(Bamler 2022, arXiv:2201.01741), 32-bit words and a 64-bit state (Duda 2013, arXiv:1311.2540).

The same models give the same bits on every machine: predictions are integers, and chances are made of the four
operations and the square root, which IEEE 754 rounds alike everywhere, then rounded to integers. With
`perfect=False` the coder's fixed-point steps are floor(cumulative · (2²⁴ − n) / total) + place: one division and one
product more. `perfect=True` searches with logarithms, which differ from one mathematics library to the next.

The state starts at 1, not 0: reading a whole block must come back to it, which tells a torn stream
from a whole one but for a chance of about 2⁻³². It is no checksum: a bit that flipped within an escape's own bits
changes that value, and nothing tells. Who keeps codes on a disk has to check their digest.

models = block_models(widths, shares)          # both [round, column]
words = encode_block(symbols, models)          # symbols [n, column] → uint32 words
symbols = decode_block(words, n, models)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from polykv.errors import CodecError, MissingExtraError

# Symbols are at most this far from 0; 2³¹ steps are beyond what float32 vectors resolve.
MOST_SYMBOL = 2**31 - 1
# How far from a row its neighbours are, round by round; rows of the first have none.
STRIDES = (4, 2, 1)
N_WIDTHS = 64
MOST_SHARE = 32  # in 64ths of the neighbours' sum: their mean
_LEAST_WIDTH, _WIDTH_RATIO = 0.06, 1.15  # in steps
_FRACTIONS = 8  # a prediction is a whole number of eighths
MOST_LEVEL = 255  # the largest residual that any table holds
_UNIT = float(2**20)  # the sum of a table's chances, before each gets one more
_CLASSES = 66  # bit lengths 1 … 33, two signs
_LOW_BITS = 15  # a uniform model has at most 2²⁴ values, so remainders go in two parts
_SEAL = np.array([1], np.uint32)


@dataclass(frozen=True, eq=False)
class ColumnGroup:
    """Columns whose tables hold the residuals −most_level … most_level and an escape for all beyond.

    columns [c]: which. shares [round, c] int64, 64ths of the neighbours' sum; tables [round, c] int64: the first of a
    column's eight rows (one an eighth of a step) in weights [table, 2 · most_level + 2], whole numbers as float64.
    """

    columns: np.ndarray
    most_level: int
    shares: np.ndarray
    tables: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True, eq=False)
class BlockModels:
    """What coding a block of `n_columns` takes."""

    n_columns: int
    groups: tuple[ColumnGroup, ...]


def block_models(widths: np.ndarray, shares: np.ndarray) -> BlockModels:
    """Models of widths (indices below N_WIDTHS) and shares (at most MOST_SHARE, the first round's 0), [round, column]."""
    widths, shares = widths.astype(np.int64), shares.astype(np.int64)
    widest, place_of = np.unique(widths.max(axis=0), return_inverse=True)
    most = np.array([table_level(one) for one in widest.tolist()], np.int64)[place_of]
    groups = []
    for level in np.unique(most).tolist():
        columns = np.flatnonzero(most == level)
        used, place = np.unique(widths[:, columns], return_inverse=True)
        tables = place.reshape(len(STRIDES), len(columns)) * _FRACTIONS
        weights = table_weights(used, level).reshape(-1, 2 * level + 2)
        groups.append(ColumnGroup(columns, level, shares[:, columns], tables, weights))
    return BlockModels(widths.shape[1], tuple(groups))


def table_level(width: int) -> int:
    """The largest residual that a table of this width (its index) holds: 2ᵏ − 1, beyond four widths where it can be."""
    reach, most = 1 + 4 * table_widths()[width], 3
    while most < min(reach, MOST_LEVEL):
        most = 2 * most + 1
    return most


def table_widths() -> np.ndarray:
    """[N_WIDTHS] float64: widths, in steps."""
    return np.multiply.accumulate([_LEAST_WIDTH, *[_WIDTH_RATIO] * (N_WIDTHS - 1)])


def table_weights(widths: np.ndarray, most: int) -> np.ndarray:
    """[width, fraction, 2 · most + 2] float64, whole numbers above 0: chances of residuals − most … most and of
    all beyond, of widths (indices), where the prediction lies −4 … 3 eighths of a step above a whole number."""
    edges = np.arange(-most, most + 2) - 0.5
    ahead = np.arange(-(_FRACTIONS // 2), _FRACTIONS // 2) / _FRACTIONS
    x = (edges - ahead[:, None]) / table_widths()[widths][:, None, None]
    below = _student_below(x)
    inside = np.rint(_UNIT * (below[..., 1:] - below[..., :-1]))
    beyond = np.rint(_UNIT * (1 - (below[..., -1:] - below[..., :1])))
    return np.concatenate([inside, beyond], axis=-1) + 1


def _student_below(x: np.ndarray) -> np.ndarray:
    """Chance that a Student t of 8 degrees of freedom is below x: a polynomial in x / √(8 + x²)."""
    sine = x / np.sqrt(8 + x * x)
    u = 1 - sine * sine
    return 0.5 + 0.5 * (sine * (1 + u * (0.5 + u * (0.375 + u * 0.3125))))


def table_places(residuals: np.ndarray, most: int) -> np.ndarray:
    """int32 in the shape of residuals: where each stands in a table of − most … most, then the escape."""
    return np.where(np.abs(residuals) > most, 2 * most + 1, residuals + most).astype(np.int32)


def rounds(n_rows: int) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """(round, its rows, the rows before and behind them) of a block, in the order of coding.

    Rows of the first round have no neighbours (row 0 stands for them); at the end of a block the one behind is the
    one before.
    """
    rows = np.arange(0, n_rows, STRIDES[0])
    yield 0, rows, np.zeros_like(rows), np.zeros_like(rows)
    for i, stride in enumerate(STRIDES[1:], start=1):
        rows = np.arange(stride, n_rows, 2 * stride)
        behind = np.where(rows + stride < n_rows, rows + stride, rows - stride)
        yield i, rows, rows - stride, behind


def predicted(before: np.ndarray, behind: np.ndarray, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(whole number, eighths above it + 4), both int64 [row, column]: where symbols between neighbours should lie."""
    eighths = (shares * (before + behind) + 4) >> 3
    whole = (eighths + _FRACTIONS // 2) >> 3
    return whole, eighths - _FRACTIONS * whole + _FRACTIONS // 2


def encode_block(symbols: np.ndarray, models: BlockModels) -> np.ndarray:
    """uint32 words of symbols [n, column] int64, each within ± MOST_SYMBOL; never none."""
    stream = _stream()
    coder, family = stream.stack.AnsCoder(_SEAL), stream.model.Categorical(perfect=False)
    # what is written last is read first
    for group, residuals, tables in reversed(list(_parts(symbols, models))):
        places = table_places(residuals, group.most_level)
        beyond = residuals[places == 2 * group.most_level + 1]
        if len(beyond):
            _write_escapes(coder, stream.model.Uniform, beyond, group.most_level)
        coder.encode_reverse(places.ravel(), family, group.weights[tables.ravel()])
    return coder.get_compressed()


def decode_block(words: np.ndarray, n_rows: int, models: BlockModels) -> np.ndarray:
    """int64 [n_rows, column] of a block's words. Raises CodecError unless they are whole and end where they should."""
    stream = _stream()
    try:
        coder = stream.stack.AnsCoder(np.ascontiguousarray(words))
    except ValueError as error:
        raise CodecError(f"a block of {len(words)} words is damaged: it ends in a zero word, as none does") from error
    family = stream.model.Categorical(perfect=False)
    symbols = np.zeros((n_rows, models.n_columns), np.int64)
    for i, rows, before, behind in rounds(n_rows):
        for group in models.groups:
            own = symbols[:, group.columns]
            whole, fraction = predicted(own[before], own[behind], group.shares[i])
            tables = (group.tables[i] + fraction).ravel()
            places = coder.decode(family, group.weights[tables]).astype(np.int64)
            found = places - group.most_level
            escapes = np.flatnonzero(places == 2 * group.most_level + 1)
            if len(escapes):
                found[escapes] = _read_escapes(coder, stream.model.Uniform, len(escapes), group.most_level)
            symbols[np.ix_(rows, group.columns)] = whole + found.reshape(whole.shape)
    if not np.array_equal(coder.get_compressed(), _SEAL):
        raise CodecError(
            f"a block of {len(words)} words is damaged: reading its {n_rows} vectors does not end where their "
            "writing began; encode the vectors again"
        )
    return symbols


def stream_bits(symbols: np.ndarray, models: BlockModels) -> np.ndarray:
    """[column] float64: bits that one block of symbols [n, column] takes.

    The cross entropy with the escapes' bits; what a block rounds up to whole words comes on top.
    Needs no constriction.
    """
    bits = np.zeros(models.n_columns)
    for group, residuals, tables in _parts(symbols, models):
        places = table_places(residuals, group.most_level)
        beyond = np.maximum(np.abs(residuals) - group.most_level, 1)
        escaped = np.where(places == 2 * group.most_level + 1, np.log2(_CLASSES) + _bit_length(beyond) - 1, 0.0)
        price = np.log2(group.weights.sum(axis=1, keepdims=True)) - np.log2(group.weights)
        bits[group.columns] += (price[tables, places] + escaped).sum(axis=0)
    return bits


def _parts(symbols: np.ndarray, models: BlockModels) -> Iterator[tuple[ColumnGroup, np.ndarray, np.ndarray]]:
    """(group, residuals [row, c], rows of its weights they are coded by), in the order of reading."""
    for i, rows, before, behind in rounds(len(symbols)):
        for group in models.groups:
            own = symbols[:, group.columns]
            whole, fraction = predicted(own[before], own[behind], group.shares[i])
            yield group, own[rows] - whole, group.tables[i] + fraction


def _write_escapes(coder: Any, uniform: Any, symbols: np.ndarray, most: int) -> None:
    beyond = np.abs(symbols) - most
    n_bits = _bit_length(beyond) - 1
    rest = beyond - (np.int64(1) << n_bits)
    low = np.minimum(n_bits, _LOW_BITS)
    for part, width in ((rest >> low, n_bits - low), (rest & ((1 << low) - 1), low)):
        coded = width > 0
        if coded.any():
            coder.encode_reverse(part[coded].astype(np.int32), uniform(), (1 << width[coded]).astype(np.int32))
    coder.encode_reverse((2 * n_bits + (symbols < 0)).astype(np.int32), uniform(_CLASSES))


def _read_escapes(coder: Any, uniform: Any, n: int, most: int) -> np.ndarray:
    classes = coder.decode(uniform(_CLASSES), n).astype(np.int64)
    n_bits, negative = classes >> 1, classes & 1
    low = np.minimum(n_bits, _LOW_BITS)
    rest = np.zeros(n, np.int64)
    for width, shift in ((low, 0), (n_bits - low, low)):
        coded = width > 0
        if coded.any():
            part = np.zeros(n, np.int64)
            part[coded] = coder.decode(uniform(), (1 << width[coded]).astype(np.int32))
            rest += part << shift
    beyond = most + (np.int64(1) << n_bits) + rest
    return np.where(negative == 1, -beyond, beyond)


def _bit_length(numbers: np.ndarray) -> np.ndarray:
    """int64: bits of each number ≥ 1 (below 2⁵³)."""
    return np.frexp(numbers.astype(np.float64))[1].astype(np.int64)


def _stream() -> ModuleType:
    """constriction.stream; raises MissingExtraError naming the command that installs it."""
    try:
        from constriction import stream
    except ImportError as error:
        raise MissingExtraError(
            "entropy-coded codes need constriction, which is not installed: pip install 'polykv[entropy]'"
        ) from error
    return stream
