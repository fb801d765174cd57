"""The gated key/value capture hook (seed documents 000 and 001).

Off, `record` costs one attribute read and takes no lock. On, it appends each head's vector
to a bounded buffer of its layer and stream. The meaning is the seed's, to the letter: what it
drops is dropped here too, but counted by reason.

    enable(n_layer=2, max_per_layer=1000)
    record(0, True, key_of_one_token, n_kv=3, head_dim=64)   # 3 contiguous head vectors
    snapshot().k[0]                                          # [3, 64]

A forward pass of the project itself records through `polykv.capture.capturing`, which owns
its buffer and fails when anything is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

import numpy as np

from polykv.capture.buffer import DROP_REASONS, BoundedRows, checked_count


@dataclass(frozen=True, eq=False)
class KvCapture:
    """A copy of what the hook holds.

    k[layer], v[layer]: [n_vectors, head_dim] float32, token-major, head-minor, in the order
    recorded. `dropped`: reason → vectors, since the last `enable`.
    """

    head_dim: int
    dropped: Mapping[str, int]
    k: tuple[np.ndarray, ...]
    v: tuple[np.ndarray, ...]

    def total_k(self) -> int:
        """Key vectors captured, all layers together."""
        return sum(len(rows) for rows in self.k)

    def total_v(self) -> int:
        """Value vectors captured, all layers together."""
        return sum(len(rows) for rows in self.v)


class _KvBuffer:
    """The vectors of one session. `head_dim` is 0 until the first record sizes it."""

    def __init__(self, n_layer: int, max_per_layer: int) -> None:
        self.n_layer = n_layer
        self.max_per_layer = max_per_layer
        self.head_dim = 0
        self.streams: dict[tuple[int, bool], BoundedRows] = {}

    def append(self, layer: int, k_not_v: bool, flat: np.ndarray, n_kv: int, head_dim: int) -> tuple[int, str | None]:
        """Returns (vectors dropped, reason)."""
        if self.head_dim == 0:
            self.head_dim = head_dim
        if self.head_dim != head_dim:
            return n_kv, "head_dim_mismatch"
        if not 0 <= layer < self.n_layer:
            return n_kv, "layer_out_of_range"
        rows = self.streams.setdefault((layer, bool(k_not_v)), BoundedRows(head_dim, self.max_per_layer))
        return rows.append(flat, n_kv)

    def layers(self, k_not_v: bool) -> tuple[np.ndarray, ...]:
        nothing = BoundedRows(self.head_dim, 0)
        return tuple(self.streams.get((layer, k_not_v), nothing).copy() for layer in range(self.n_layer))


class KvHook:
    """One gate with one buffer behind it; the module functions below share one instance."""

    def __init__(self) -> None:
        self.enabled = False
        self._lock = Lock()
        self._buffer: _KvBuffer | None = None
        self._dropped = dict.fromkeys(DROP_REASONS, 0)

    def enable(self, n_layer: int, max_per_layer: int) -> None:
        n_layer = checked_count(n_layer, "n_layer")
        max_per_layer = checked_count(max_per_layer, "max_per_layer")
        with self._lock:
            self._buffer = _KvBuffer(n_layer, max_per_layer)
            self._dropped = dict.fromkeys(DROP_REASONS, 0)
        self.enabled = True

    def disable(self) -> None:
        self.enabled = False

    def record(self, layer: int, k_not_v: bool, proj: np.ndarray, n_kv: int, head_dim: int) -> None:
        if not self.enabled:
            return
        n_kv, head_dim = checked_count(n_kv, "n_kv"), checked_count(head_dim, "head_dim")
        flat = np.asarray(proj, dtype=np.float32).reshape(-1)
        with self._lock:
            if head_dim == 0:
                dropped, reason = n_kv, "zero_head_dim"
            elif self._buffer is None:
                dropped, reason = n_kv, "no_buffer"
            else:
                dropped, reason = self._buffer.append(layer, k_not_v, flat, n_kv, head_dim)
            if dropped:
                self._dropped[reason] += dropped

    def snapshot(self) -> KvCapture | None:
        with self._lock:
            buffer = self._buffer
            if buffer is None or buffer.head_dim == 0:
                return None
            return KvCapture(buffer.head_dim, dict(self._dropped), buffer.layers(True), buffer.layers(False))

    def clear(self) -> None:
        with self._lock:
            self._buffer = None

    def dropped(self) -> dict[str, int]:
        with self._lock:
            return dict(self._dropped)


# The seed's functions have one process-wide hook by definition; nothing else uses it.
_HOOK = KvHook()


def enable(n_layer: int, max_per_layer: int) -> None:
    """Begin a capture: a fresh buffer for layers 0 … n_layer−1, counts of drops at zero.

    At most `max_per_layer` key and as many value vectors are kept per layer. `head_dim` sizes
    itself on the first record. Raises InputError for a negative or fractional number.
    """
    _HOOK.enable(n_layer, max_per_layer)


def disable() -> None:
    """Stop recording. The buffer stays, and `snapshot` still reads it."""
    _HOOK.disable()


def is_enabled() -> bool:
    """Whether `record` records: one attribute read."""
    return _HOOK.enabled


def record(layer: int, k_not_v: bool, proj: np.ndarray, n_kv: int, head_dim: int) -> None:
    """Record each head's key (`k_not_v` true) or value vector of one projection.

    `proj`: at least n_kv·head_dim numbers, `n_kv` contiguous head vectors. Off: returns at
    once, arguments unread. On: the first record sets head_dim, even when its layer is out of
    range; a vector of another head_dim, of a layer out of range, past the end of `proj` or
    past the cap is dropped and counted. The cap may cut a token between its heads.
    Raises InputError for a negative n_kv or head_dim.
    """
    _HOOK.record(layer, k_not_v, proj, n_kv, head_dim)


def snapshot() -> KvCapture | None:
    """Copy out what was captured; None when nothing set head_dim or the buffer was cleared."""
    return _HOOK.snapshot()


def clear() -> None:
    """Drop the buffer. The hook stays enabled; later records count as `no_buffer`."""
    _HOOK.clear()


def dropped_vectors() -> dict[str, int]:
    """Reason → vectors dropped since the last `enable`; unlike a snapshot, readable without a buffer."""
    return _HOOK.dropped()
