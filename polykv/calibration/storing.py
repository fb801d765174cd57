"""How finely a fitted codec's own numbers are stored: a byte each, where that does not show.

What a policy keeps once is charged to its tokens: at 4,096 tokens of context half of transform_pq's bytes are
codewords and transforms when these take two bytes a number.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from polykv.codecs.trained import as_integers, from_integers

# Rows that two ways to store are compared on: the same rows for both, so that few tell them apart.
ROUNDED_ROWS = 512
# What bytes may add to the expected cost. 5 % are worth 0.3 bytes a vector of 64 numbers (½ log₂ 1.05 bits each):
# 8 kB that a second byte a number takes are saved until some 28,000 tokens.
MOST_ROUNDING = 1.05


def smallest_dtype(cost: Callable[[type], float]) -> type:
    """int8, or int16 where cost(int8) is more than MOST_ROUNDING times cost(int16); costs of coded rows."""
    return np.int8 if cost(np.int8) <= MOST_ROUNDING * cost(np.int16) else np.int16


def stored_transforms(
    analysis: np.ndarray, synthesis: np.ndarray, dtype: type
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """(analysis [coordinate, head_dim] as integers, the synthesis [head_dim, coordinate] float64 that undoes those).

    analysis · synthesis = 1. What rounding does to a coordinate's direction the synthesis takes back.
    """
    stored = as_integers("analysis", analysis, 1, dtype)
    turned = from_integers(stored, "analysis").astype(np.float64) @ synthesis
    return stored, synthesis @ np.linalg.inv(turned)
