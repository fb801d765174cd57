"""How finely a fitted codec's own numbers are stored: a byte each, where that does not show.

What a policy keeps once is charged to its tokens: at 4,096 tokens of context half of transform_pq's bytes are
codewords and transforms when these take two bytes a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from polykv.codecs.trained import as_integers, from_integers

# Rows that two ways to store are compared on: the same rows for both, so that few tell them apart.
ROUNDED_ROWS = 512
# The context that a second byte a number has to pay for itself in.
CONTEXT_TOKENS = 32_768


def smallest_dtype(cost: Callable[[type], float], n_numbers: int, head_dim: int) -> type:
    """int8, or int16 where that is worth its bytes for n_numbers stored: cost(dtype) is what coded rows cost.

    What rounding adds to the cost, finer codes would take away again in ½ log₂(cost(int8) / cost(int16)) bits a
    number of a vector [head_dim]; int16 is chosen where these, over CONTEXT_TOKENS vectors, are more than n_numbers bytes.
    """
    worth_bits = 8 * n_numbers / (head_dim * CONTEXT_TOKENS)
    return np.int8 if cost(np.int8) <= 2.0 ** (2 * worth_bits) * cost(np.int16) else np.int16


def stored_transforms(analysis: np.ndarray, synthesis: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """(analysis [coordinate, head_dim] as int8, the synthesis [head_dim, coordinate] float64 that undoes just that).

    analysis · synthesis = 1, before and after: what rounding does to a coordinate's direction the synthesis takes
    back, so that only its own rounding can show.
    """
    stored = as_integers("analysis", analysis, 1)
    turned = from_integers(stored, "analysis").astype(np.float64) @ synthesis
    return stored, synthesis @ np.linalg.inv(turned)


def unit_of(costs: np.ndarray) -> float:
    """A power of two near the square root of the largest cost: what coordinates are counted in when they are
    stored, so that vectors and metrics of any size have scales that float32 holds."""
    largest = float(np.max(costs, initial=0.0))
    return 2.0 ** round(math.log2(largest) / 2) if largest > 0 else 1.0
