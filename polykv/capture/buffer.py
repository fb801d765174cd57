"""Rows of float32 that never grow past a cap, and the reasons why a vector was dropped."""

from __future__ import annotations

import numpy as np

from polykv.errors import InputError

DROP_REASONS = ("head_dim_mismatch", "layer_out_of_range", "short_slice", "past_cap", "no_buffer", "zero_head_dim")


class BoundedRows:
    """At most `cap` rows of `width` float32, appended in order.

    The storage doubles as it fills and is never allocated past the cap, so a generous cap
    costs nothing until it is used.
    """

    def __init__(self, width: int, cap: int) -> None:
        self.width = width
        self.cap = cap
        self.count = 0
        self._rows = np.empty((0, width), np.float32)

    def append(self, flat: np.ndarray, n_vectors: int) -> tuple[int, str | None]:
        """Copy in up to `n_vectors` rows of a flat array; returns (rows left out, why).

        The cap is looked at before the length of `flat`, as in seed 001: where both end at the
        same row, the reason is `past_cap`.
        """
        room, available = self.cap - self.count, flat.size // self.width
        kept = min(n_vectors, room, available)
        if kept:
            self._reserve(self.count + kept)
            self._rows[self.count : self.count + kept] = flat[: kept * self.width].reshape(kept, self.width)
            self.count += kept
        if kept == n_vectors:
            return 0, None
        return n_vectors - kept, "past_cap" if kept == room else "short_slice"

    def copy(self) -> np.ndarray:
        """[n_vectors, width] float32, independent of later appends."""
        return self._rows[: self.count].copy()

    def view(self) -> np.ndarray:
        """[n_vectors, width] float32 without a copy; valid until the next append."""
        return self._rows[: self.count]

    def _reserve(self, needed: int) -> None:
        if needed <= len(self._rows):
            return
        grown = np.empty((min(self.cap, max(needed, 2 * len(self._rows))), self.width), np.float32)
        grown[: self.count] = self._rows[: self.count]
        self._rows = grown


def checked_count(value: int, what: str) -> int:
    """`value` as an int ≥ 0; raises InputError naming it otherwise."""
    if isinstance(value, bool) or int(value) != value or value < 0:
        raise InputError(f"{what} is {value!r}, must be an integer ≥ 0")
    return int(value)
