"""Running a planned capture: passages one at a time, into anything that stores them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from polykv.capture.assemble import CheckedPassage, capture_rows
from polykv.capture.plan import CapturePlan
from polykv.errors import CaptureError
from polykv.types import PassageCapture


class PassageWriter(Protocol):
    """What a capture is written to (see `polykv.storage`); `seal` comes last."""

    def write_passage(self, passage: PassageCapture) -> Any: ...

    def write_layer_constants(
        self, layer: int, sink_logits: np.ndarray | None = None, w_o: np.ndarray | None = None
    ) -> Any: ...

    def write_projection(self, label_ids: np.ndarray, wlm_gamma: np.ndarray) -> Any: ...

    def seal(self) -> Any: ...


@dataclass(frozen=True)
class CaptureSummary:
    """What a finished capture did: passages, tokens, the largest relative error of any head's
    recomputed attention, and the time in seconds."""

    n_passages: int
    n_tokens: int
    worst_relative_error: float
    seconds: float


def capture_passages(plan: CapturePlan) -> Iterator[PassageCapture]:
    """Checked passages in order; at most `batch_size` of them are in memory at once.

    Raises CaptureError when a passage does not recompute or loses a vector.
    """
    for checked in _checked_passages(plan):
        yield checked.passage


def capture_to_store(
    plan: CapturePlan, writer: PassageWriter, progress: Callable[[int, int], None] | None = None
) -> CaptureSummary:
    """Capture every passage into `writer`, then its projection, then seal.

    `progress(done, total)` is called after each passage. When anything fails the error goes
    through and the store stays unsealed: no reader takes it for a capture.
    """
    start, worst, n_tokens = time.perf_counter(), 0.0, 0
    for spec in plan.meta.layers:
        constants = {"sink_logits": plan.sink_logits(spec.layer), "w_o": plan.w_o(spec.layer)}
        if any(array is not None for array in constants.values()):
            writer.write_layer_constants(spec.layer, **constants)
    labels: set[int] = set()
    for done, checked in enumerate(_checked_passages(plan), start=1):
        writer.write_passage(checked.passage)
        worst, n_tokens = max(worst, checked.worst_error), n_tokens + checked.passage.length
        if checked.passage.logits is not None:
            labels.update(checked.passage.logits.label_set.tolist())
        if progress is not None:
            progress(done, len(plan.rows))
    if labels:
        label_ids = np.array(sorted(labels), np.int64)
        writer.write_projection(label_ids, plan.wlm_gamma(label_ids))
    writer.seal()
    return CaptureSummary(len(plan.rows), n_tokens, worst, time.perf_counter() - start)


def _checked_passages(plan: CapturePlan) -> Iterator[CheckedPassage]:
    size = plan.config.batch_size
    for first in range(0, len(plan.rows), size):
        for checked in capture_rows(plan.recipe, plan.rows[first : first + size]):
            if checked.logits_failure is not None:
                raise CaptureError(
                    f"passage {checked.passage.index}: {checked.logits_failure}, though the first passage agreed; "
                    "capture without logit data (--labels 0)"
                )
            yield checked
