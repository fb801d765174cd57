"""One bounded recording of one passage: what the project's own captures go through.

    with capturing(n_layer=30, max_per_layer=256 * 3) as session:
        ...   # a forward pass calls session.record and session.record_attention
    session.vectors(0, k_not_v=True)   # [token · kv_head, head_dim]

Unlike the process-wide hook, a session owns its buffer, lets layers (and keys and values)
differ in width, and fails when a single vector is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

import numpy as np

from polykv.capture.buffer import DROP_REASONS, BoundedRows, checked_count
from polykv.errors import CaptureError
from polykv.types import LayerSpec


@dataclass(frozen=True, eq=False)
class AttentionRecord:
    """Queries and outputs of one layer, with the rules the layer said it attends by.

    q [q_head, query, head_dim], out [q_head, query, value_dim], sink_logits [q_head] or None:
    float32. exact_out [q_head, query, value_dim]: the output for the same tensors in float32,
    None when the model ran in float32.
    """

    q: np.ndarray
    out: np.ndarray
    spec: LayerSpec
    sink_logits: np.ndarray | None = None
    exact_out: np.ndarray | None = None


class CaptureSession:
    """A bounded buffer for keys, values, queries and outputs; made by `capturing`."""

    def __init__(self, n_layer: int, max_per_layer: int) -> None:
        self.n_layer = checked_count(n_layer, "n_layer")
        self.max_per_layer = checked_count(max_per_layer, "max_per_layer")
        self.closed = False
        self.dropped = dict.fromkeys(DROP_REASONS, 0)
        self._lock = Lock()
        self._streams: dict[tuple[int, bool], BoundedRows] = {}
        self._attention: dict[int, AttentionRecord] = {}

    def record(self, layer: int, k_not_v: bool, proj: np.ndarray, n_kv: int, head_dim: int) -> None:
        """Record `n_kv` contiguous vectors of `head_dim` (one token's heads, or many tokens', token-major)."""
        n_kv, head_dim = checked_count(n_kv, "n_kv"), checked_count(head_dim, "head_dim")
        flat = np.asarray(proj, dtype=np.float32).reshape(-1)
        with self._lock:
            dropped, reason = self._append(layer, bool(k_not_v), flat, n_kv, head_dim)
            if dropped:
                self.dropped[reason] += dropped

    def record_attention(self, layer: int, attention: AttentionRecord) -> None:
        """Record one layer's queries and outputs, once; a second call for a layer is a drop past the cap."""
        n_vectors = attention.q.shape[0] * attention.q.shape[1]
        with self._lock:
            if self.closed:
                self.dropped["no_buffer"] += n_vectors
            elif not 0 <= layer < self.n_layer:
                self.dropped["layer_out_of_range"] += n_vectors
            elif layer in self._attention:
                self.dropped["past_cap"] += n_vectors
            else:
                self._attention[layer] = attention

    def vectors(self, layer: int, k_not_v: bool) -> np.ndarray:
        """[n_vectors, head_dim] float32 in the order recorded; raises CaptureError when there are none."""
        rows = self._streams.get((layer, bool(k_not_v)))
        if rows is None:
            raise CaptureError(f"layer {layer}: no {'key' if k_not_v else 'value'} vector was recorded")
        return rows.view()

    def attention(self, layer: int) -> AttentionRecord:
        """What `record_attention` kept for a layer; raises CaptureError when nothing was."""
        if layer not in self._attention:
            raise CaptureError(f"layer {layer}: no queries and outputs were recorded")
        return self._attention[layer]

    def check(self) -> None:
        """Raise CaptureError, naming reasons and counts, when anything was dropped."""
        lost = {reason: n for reason, n in self.dropped.items() if n}
        if lost:
            what = ", ".join(f"{reason} {n}" for reason, n in lost.items())
            raise CaptureError(
                f"the capture dropped vectors ({what}) of {self.n_layer} layers with room for "
                f"{self.max_per_layer} vectors each: what was kept does not say what the model did"
            )

    def _append(self, layer: int, k_not_v: bool, flat: np.ndarray, n_kv: int, head_dim: int) -> tuple[int, str | None]:
        if head_dim == 0:
            return n_kv, "zero_head_dim"
        if self.closed:
            return n_kv, "no_buffer"
        if not 0 <= layer < self.n_layer:
            return n_kv, "layer_out_of_range"
        rows = self._streams.setdefault((layer, k_not_v), BoundedRows(head_dim, self.max_per_layer))
        if rows.width != head_dim:
            return n_kv, "head_dim_mismatch"
        return rows.append(flat, n_kv)


@contextmanager
def capturing(n_layer: int, max_per_layer: int) -> Iterator[CaptureSession]:
    """A `CaptureSession` that records inside the block only.

    `max_per_layer` bounds each layer and stream, in vectors (tokens · kv_heads). Leaving the
    block closes the session; what it kept stays readable. Raises CaptureError on leaving, when
    anything was dropped and no other error is under way.
    """
    session = CaptureSession(n_layer, max_per_layer)
    try:
        yield session
        session.check()
    finally:
        session.closed = True
