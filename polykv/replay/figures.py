"""Per-query figures of one cell, and the arrays rows are made of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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

    @cached_property
    def starts(self) -> np.ndarray:
        """[passage] int64: where each passage's queries begin in the arrays of `head` and `label`."""
        counts = [sum(len(head.exact_output) for head in p.heads) for p in self.passages]
        return np.concatenate([[0], np.cumsum(counts)[:-1]])

    @cached_property
    def counts(self) -> np.ndarray:
        """[passage] int64: queries of each passage, query heads counted."""
        return np.diff(np.append(self.starts, sum(len(h.exact_output) for p in self.passages for h in p.heads)))

    def head(self, name: str, column: int | None = None) -> np.ndarray:
        """A field of HeadFigures over the queries of all heads and passages.

        `column` picks the budget; None is for figures that have none.
        """
        return self._queries("head", name, column)

    def label(self, name: str, column: int | None = None) -> np.ndarray:
        """A field of LabelFigures, as `head`; only when `has_labels`."""
        return self._queries("label", name, column)

    def passage_means(self, values: np.ndarray) -> np.ndarray:
        """[passage] float64 means of a [query] array; one NaN makes its passage NaN."""
        return np.add.reduceat(np.asarray(values, np.float64), self.starts) / self.counts

    def _queries(self, kind: str, name: str, column: int | None) -> np.ndarray:
        stacked = self._stacked.get((kind, name))
        if stacked is None:
            parts = [p.heads if kind == "head" else p.labels or [] for p in self.passages]
            stacked = np.concatenate([getattr(figures, name) for part in parts for figures in part])
            self._stacked[kind, name] = stacked
        # A contiguous copy: a sum's last bits must not depend on how many budgets lie beside it.
        return stacked if column is None else np.ascontiguousarray(stacked[:, column])

    @cached_property
    def _stacked(self) -> dict[tuple[str, str], np.ndarray]:
        return {}

    def capture_fidelity(self) -> float:
        """Relative distance of the recomputed exact outputs to the stored ones, over all queries."""
        recomputed = np.concatenate([head.exact_output for p in self.passages for head in p.heads])
        stored = np.concatenate([p.passage.outputs.reshape(-1, recomputed.shape[-1]) for p in self.passages])
        return relative_error(recomputed, stored)
