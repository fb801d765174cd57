"""Per-query figures of one cell, and the arrays rows are made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polykv.attention import relative_error
from polykv.replay.head import HeadFigures
from polykv.replay.labels import LabelFigures
from polykv.replay.passage import Passage


@dataclass(frozen=True, eq=False)
class PassageFigures:
    """What one passage gave: one entry a query head in `heads` and (where there are logits) `labels`."""

    passage: Passage
    heads: list[HeadFigures]
    labels: list[LabelFigures] | None
    code_bytes: int


@dataclass(frozen=True, eq=False)
class CellFigures:
    """All passages of one cell under one policy, in capture order."""

    passages: list[PassageFigures]

    @property
    def documents(self) -> np.ndarray:
        """[passage] int64: the document each passage comes from."""
        return np.array([p.passage.document for p in self.passages])

    @property
    def has_labels(self) -> bool:
        return all(p.labels is not None for p in self.passages)

    @property
    def code_bytes(self) -> int:
        return sum(p.code_bytes for p in self.passages)

    @property
    def n_tokens(self) -> int:
        return sum(p.passage.n_tokens for p in self.passages)

    def head(self, name: str, column: int | None = None) -> list[np.ndarray]:
        """A field of HeadFigures as one [query of all heads] array a passage.

        `column` picks the budget; None is for figures that have none.
        """
        return [_column([getattr(head, name) for head in p.heads], column) for p in self.passages]

    def label(self, name: str, column: int | None = None) -> list[np.ndarray]:
        """A field of LabelFigures, as `head`; empty when the capture has no logits."""
        if not self.has_labels:
            return []
        return [_column([getattr(label, name) for label in p.labels or []], column) for p in self.passages]

    def capture_fidelity(self) -> float:
        """Relative distance of the recomputed exact outputs to the stored ones, over all queries."""
        recomputed = np.concatenate([head.exact_output for p in self.passages for head in p.heads])
        stored = np.concatenate([p.passage.outputs.reshape(-1, recomputed.shape[-1]) for p in self.passages])
        return relative_error(recomputed, stored)


def _column(arrays: list[np.ndarray], column: int | None) -> np.ndarray:
    stacked = np.concatenate(arrays)
    return stacked if column is None else stacked[:, column]
