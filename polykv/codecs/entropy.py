"""A block of integers as a bitstream: asymmetric numeral systems with one frequency table a column.

Tables hold counts of the symbols −L … L and of an escape for all beyond; ½ is added to each count,
so that whatever was not seen can still be coded. A column is coded after the other, its escapes
right behind it: the bit length of |symbol| − L with the sign, then the bits below the leading one
(Exp-Golomb, Teuhola 1978). The coder is `constriction` (Bamler 2022, arXiv:2201.01741), 32-bit
words and a 64-bit state (Duda 2013, arXiv:1311.2540).

The same table gives the same bits on every machine: weights 2 · count + 1 go in as float64 with
`perfect=False`, whose fixed-point steps are floor(cumulative · (2²⁴ − n) / total) + place: integers
that float64 holds exactly, one division and one product rounded by IEEE 754, and no logarithm.
`perfect=True` searches with logarithms, which differ from one mathematics library to the next.

The state starts at 1, not 0: reading a whole block must come back to it, which tells a torn stream
from a whole one but for a chance of about 2⁻³².

models = table_models(counts)                  # counts [column, 2 · L + 2] uint16
words = encode_block(symbols, models)          # symbols [n, column] → uint32 words
symbols = decode_block(words, n, models)
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from polykv.errors import CodecError, MissingExtraError

# Symbols are at most this far from 0; 2³¹ steps are beyond what float32 vectors resolve.
MOST_SYMBOL = 2**31 - 1
_CLASSES = 62  # bit lengths 1 … 31, two signs
_LOW_BITS = 15  # a uniform model has at most 2²⁴ values, so remainders go in two parts
_SEAL = np.array([1], np.uint32)


@dataclass(frozen=True, eq=False)
class TableModels:
    """Coding models of a block's columns; symbols beyond ± most_level are escaped."""

    columns: tuple[Any, ...]
    most_level: int


def table_models(counts: np.ndarray) -> TableModels:
    """Models of counts [column, 2 · L + 2], the last place of a row being the escape.

    Raises MissingExtraError without constriction.
    """
    categorical = _stream().model.Categorical
    weights = table_weights(counts)
    return TableModels(tuple(categorical(row, perfect=False) for row in weights), most_level(counts))


def table_weights(counts: np.ndarray) -> np.ndarray:
    """[column, symbol] float64, whole numbers: twice the count and ½ added to it."""
    return 2.0 * counts.astype(np.float64) + 1.0


def most_level(counts: np.ndarray) -> int:
    """L of tables [column, 2 · L + 2]."""
    return counts.shape[1] // 2 - 1


def table_places(symbols: np.ndarray, most: int) -> np.ndarray:
    """int32 in the shape of symbols: where each stands in a table of levels − most … most, then the escape."""
    return np.where(np.abs(symbols) > most, 2 * most + 1, symbols + most).astype(np.int32)


def stream_bits(symbols: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """[column] float64: bits that symbols [n, column] take under tables counts [column, 2 · L + 2].

    The cross entropy with the escapes' bits; what a block rounds up to whole words comes on top.
    Needs no constriction.
    """
    most, weights = most_level(counts), table_weights(counts)
    price = np.log2(weights.sum(axis=1, keepdims=True)) - np.log2(weights)
    places = table_places(symbols, most)
    bits = np.take_along_axis(price.T, places.astype(np.int64), axis=0)
    beyond = np.maximum(np.abs(symbols) - most, 1)
    escaped = np.where(places == 2 * most + 1, np.log2(_CLASSES) + _bit_length(beyond) - 1, 0.0)
    return (bits + escaped).sum(axis=0)


def encode_block(symbols: np.ndarray, models: TableModels) -> np.ndarray:
    """uint32 words of symbols [n, column] int64, each within ± MOST_SYMBOL; never none."""
    stream = _stream()
    coder = stream.stack.AnsCoder(_SEAL)
    places = np.ascontiguousarray(table_places(symbols, models.most_level).T)
    # what is written last is read first
    for column in range(len(places) - 1, -1, -1):
        beyond = symbols[places[column] == 2 * models.most_level + 1, column]
        if len(beyond):
            _write_escapes(coder, stream.model.Uniform, beyond, models.most_level)
        coder.encode_reverse(places[column], models.columns[column])
    return coder.get_compressed()


def decode_block(words: np.ndarray, n_rows: int, models: TableModels) -> np.ndarray:
    """int64 [n_rows, column] of a block's words. Raises CodecError unless they are whole and end where they should."""
    stream = _stream()
    try:
        coder = stream.stack.AnsCoder(np.ascontiguousarray(words))
    except ValueError as error:
        raise CodecError(f"a block of {len(words)} words is damaged: it ends in a zero word, as none does") from error
    symbols = np.empty((n_rows, len(models.columns)), np.int64)
    for column, model in enumerate(models.columns):
        places = coder.decode(model, n_rows).astype(np.int64)
        found = places - models.most_level
        escapes = np.flatnonzero(places == 2 * models.most_level + 1)
        if len(escapes):
            found[escapes] = _read_escapes(coder, stream.model.Uniform, len(escapes), models.most_level)
        symbols[:, column] = found
    if not np.array_equal(coder.get_compressed(), _SEAL):
        raise CodecError(
            f"a block of {len(words)} words is damaged: reading its {n_rows} vectors does not end where their "
            "writing began; encode the vectors again"
        )
    return symbols


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
