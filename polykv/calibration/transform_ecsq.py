"""Fitting transform_ecsq: one step for all coordinates; what neighbours say of a symbol, and how surely, from rows.

basis = fit_basis(rows, metric)
step = step_for_bits(basis, 120)           # 15 bytes a vector, were the rows Gaussian
expected_cost(basis, step)                 # what vectors so coded are expected to cost
arrays = fit_transform_ecsq(basis, rows, step)
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import entr, ndtr

from polykv.calibration.storing import ROUNDED_ROWS, smallest_dtype, stored_transforms, unit_of
from polykv.calibration.transform import Basis
from polykv.codecs.base import checked_vectors
from polykv.codecs.entropy import (
    MOST_LEVEL,
    MOST_SHARE,
    MOST_SYMBOL,
    N_WIDTHS,
    STRIDES,
    predicted,
    rounds,
    table_places,
    table_weights,
)
from polykv.codecs.trained import as_integers, from_integers
from polykv.codecs.transform_ecsq import TransformEcsqCodec
from polykv.errors import InputError

_MOST_ROWS = 65536
_BLOCK_TOKENS = TransformEcsqCodec.block_tokens
_LEAST_COST = 1e-12  # of the largest
_FINE_STEP = 0.05  # in standard deviations; below it the limits of fine steps hold to 1e-6
_REACH = 10.0  # standard deviations that are summed over
_HALVINGS = 100


def fit_transform_ecsq(basis: Basis, rows: np.ndarray, step: float) -> dict[str, np.ndarray]:
    """The arrays of a `TransformEcsqCodec` of `step` (in units of cost^½), fitted to rows [n, head_dim].

    Coordinates whose symbol is 0 in every row are dropped. A level stands for its middle, though least squares would
    have it nearer to the mean: attention sums over many tokens, where errors of either sign cancel and a
    shrunken size does not (on SmolLM2 the KL at equal bytes is a quarter lower). Transforms are stored as integers
    (`polykv.calibration.storing`). Rows stand in the order of their tokens, so that neighbours can tell of each other; at most 65,536 of them, in evenly
    spaced blocks, are counted. Raises InputError for no rows, or a step that is not above 0 or too
    small for symbols of 32 bits.
    """
    rows = checked_vectors(rows, len(basis.mean), "rows")
    if len(rows) == 0:
        raise InputError("no calibration vectors to count symbols of; capture passages of split calibrate")
    inner, used = np.float32(_checked_step(step) / unit_of(basis.costs)), rows[_spread_blocks(len(rows))]
    mean = basis.mean.astype(np.float32)
    analysis, synthesis = _live_transforms(basis)
    z = (used.astype(np.float64) - mean) @ from_integers(analysis, "analysis").T.astype(np.float64) / inner
    if not np.abs(z).max(initial=0.0) <= MOST_SYMBOL:
        raise InputError(
            f"a row lies {np.abs(z).max():.3g} steps from the mean, at most {MOST_SYMBOL} can be coded; raise step"
        )
    symbols = np.rint(z).astype(np.int64)
    kept = np.flatnonzero((symbols != 0).any(axis=0))
    symbols, synthesis = symbols[:, kept], synthesis[:, kept]
    sample = slice(None, None, -(-len(used) // ROUNDED_ROWS))

    def cost(dtype: type) -> float:
        rounded = from_integers(as_integers("synthesis", synthesis, 0, dtype), "synthesis")
        return basis.cost(inner * symbols[sample] @ rounded.T + mean, used[sample])

    dtype = smallest_dtype(cost, synthesis.size, len(mean))
    return {
        "mean": mean,
        **{name: array[kept] for name, array in analysis.items()},
        **as_integers("synthesis", synthesis, 0, dtype),
        "step": np.array([inner], np.float32),
        **fit_models(symbols),
    }


def fit_models(symbols: np.ndarray) -> dict[str, np.ndarray]:
    """widths and shares [round, coordinate] uint8 (`polykv.codecs.entropy`) of symbols [n, coordinate] in the order
    of their tokens: shares of least squares, then the widths that take the fewest bits."""
    n_columns = symbols.shape[1]
    shares = np.zeros((len(STRIDES), n_columns), np.uint8)
    widths = np.zeros((len(STRIDES), n_columns), np.uint8)
    gathered: list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = [[] for _ in STRIDES]
    for start in range(0, len(symbols), _BLOCK_TOKENS):
        block = symbols[start : start + _BLOCK_TOKENS]
        for i, rows, before, behind in rounds(len(block)):
            gathered[i].append((block[rows], block[before], block[behind]))
    for i, parts in enumerate(gathered):
        own, before, behind = (np.concatenate(part) for part in zip(*parts, strict=True))
        if i > 0:
            shares[i] = _least_squares_shares(own, before + behind)
        widths[i] = _cheapest_widths(own, *predicted(before, behind, shares[i].astype(np.int64)))
    return {"widths": widths, "shares": shares}


def _least_squares_shares(own: np.ndarray, around: np.ndarray) -> np.ndarray:
    """[column] uint8, in 64ths of the neighbours' sum [row, column]."""
    along = (own.astype(np.float64) * around).sum(axis=0)
    size = np.square(around.astype(np.float64)).sum(axis=0)
    return np.rint(np.clip(64 * along / np.maximum(size, 1.0), 0, MOST_SHARE)).astype(np.uint8)


def _cheapest_widths(own: np.ndarray, whole: np.ndarray, fraction: np.ndarray) -> np.ndarray:
    """[column] uint8: indices of the widths under which residuals own − whole [row, column] take the fewest bits."""
    n_columns = own.shape[1]
    if not len(own):
        return np.zeros(n_columns, np.uint8)
    residuals = own - whole
    most = int(min(np.abs(residuals).max(initial=1), MOST_LEVEL))
    weights = table_weights(np.arange(N_WIDTHS), most)
    price = np.log2(weights.sum(axis=-1, keepdims=True)) - np.log2(weights)
    n_places = weights.shape[1] * weights.shape[2]
    places = fraction * weights.shape[2] + table_places(residuals, most) + n_places * np.arange(n_columns)
    seen = np.bincount(places.ravel(), minlength=n_columns * n_places).reshape(n_columns, n_places)
    return (seen.astype(np.float64) @ price.reshape(N_WIDTHS, -1).T).argmin(axis=1).astype(np.uint8)


def _spread_blocks(n_rows: int) -> np.ndarray:
    """Indices of at most _MOST_ROWS rows: whole blocks, evenly spaced."""
    if n_rows <= _MOST_ROWS:
        return np.arange(n_rows)
    n_blocks = n_rows // _BLOCK_TOKENS
    blocks = np.linspace(0, n_blocks - 1, _MOST_ROWS // _BLOCK_TOKENS).round().astype(np.int64)
    return (blocks[:, None] * _BLOCK_TOKENS + np.arange(_BLOCK_TOKENS)).ravel()


def expected_bits(basis: Basis, step: float) -> np.ndarray:
    """[coordinate] float64: bits a vector takes in each, were coordinates Gaussian: the symbols' entropy."""
    ratio, live = _ratios(basis, step)
    bits = np.zeros(len(basis.costs))
    bits[live] = [_gaussian(one)[0] for one in ratio]
    return bits


def expected_cost(basis: Basis, step: float) -> float:
    """What vectors coded with this step are expected to cost, were their coordinates Gaussian."""
    ratio, live = _ratios(basis, step)
    return float((basis.costs[live] * [_gaussian(one)[1] for one in ratio]).sum())


def step_for_bits(basis: Basis, bits: float) -> float:
    """The step at which `expected_bits` add up to `bits` a vector.

    Raises InputError unless bits are above 0, or when no coordinate varies.
    """
    if not (math.isfinite(bits) and bits > 0):
        raise InputError(f"bits is {bits}, must be above 0 and finite")
    if not basis.costs[0] > 0:
        raise InputError("no coordinate varies: every step takes 0 bits a vector")
    high = 2.0 * _REACH * math.sqrt(basis.costs[0])  # nothing is left to code
    low = high
    while expected_bits(basis, low).sum() < bits:
        low /= 2
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if expected_bits(basis, middle).sum() > bits else (low, middle)
        if high / low < 1 + 1e-12:
            break
    return math.sqrt(low * high)


def _live_transforms(basis: Basis) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """(analysis as int8 arrays, synthesis float64) in units of cost^½ / `unit_of`, of those coordinates that vary
    enough to have a direction."""
    live = basis.costs > _LEAST_COST * basis.costs.max()
    spread = np.sqrt(basis.costs[live]) / unit_of(basis.costs)
    return stored_transforms(basis.analysis[live] * spread[:, None], basis.synthesis[:, live] / spread)


def _checked_step(step: float) -> float:
    if not (math.isfinite(step) and step > 0):
        raise InputError(f"step is {step}, must be above 0 and finite")
    return float(step)


def _ratios(basis: Basis, step: float) -> tuple[np.ndarray, np.ndarray]:
    """(step in standard deviations of those coordinates that vary, which those are [coordinate] bool)."""
    live = basis.costs > 0
    return _checked_step(step) / np.sqrt(basis.costs[live]), live


def _gaussian(ratio: float) -> tuple[float, float]:
    """(entropy in bits, mean squared error) of a standard Gaussian rounded to multiples of `ratio`."""
    if ratio < _FINE_STEP:
        # a level's mass is the mean density of its step: the next term of the entropy is Fisher's information / 24
        return math.log2(math.sqrt(2 * math.pi * math.e) / ratio) + ratio**2 / 24 / math.log(2), ratio**2 / 12
    levels = np.arange(1, math.ceil(_REACH / ratio) + 1)
    low, high = (levels - 0.5) * ratio, (levels + 0.5) * ratio
    mass = ndtr(-low) - ndtr(-high)
    zero = ndtr(0.5 * ratio) - ndtr(-0.5 * ratio)
    density = np.exp(-0.5 * np.square([low, high])) / math.sqrt(2 * math.pi)
    power = 2 * (np.square(levels) * mass).sum()
    shared = 2 * (levels * (density[0] - density[1])).sum()
    error = 1 - 2 * ratio * shared + ratio**2 * power
    return float(entr([zero, *mass, *mass]).sum() / math.log(2)), float(error)
