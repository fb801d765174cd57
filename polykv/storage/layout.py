"""What a capture store holds, array by array: the schema `polykv_capture_v1` (pure; no I/O).

    layers/NNN/k, v        [passage, kv_head, token, head_dim | value_dim]    a chunk per passage and KV head
    layers/NNN/q, out      [passage, q_head, query, head_dim | value_dim]     a chunk per passage and KV head
    layers/NNN/sink_logits [q_head]  layers/NNN/w_o [hidden, q_head·value_dim]   a chunk per KV head
    token_ids [passage, token]  length [passage]  query_position [passage, query]  split, document [passage]
    logits/label_set [passage, label]  logits/full [passage, query, label]
    logits/final_rms, logits/label_token [passage, query]
    projection/label_id [unique label]  projection/wlm_gamma [unique label, hidden]

A *slab* is one chunk. Every chunk grid has at most two axes longer than one, so a slab is
named by the array and one or two numbers: `layers/003/k[5,1]` is passage 5, KV head 1.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from polykv.types import CaptureMeta, LayerSpec

SCHEMA = "polykv_capture_v1"
SCHEMA_PREFIX = "polykv_capture_"
HEAD_AXES = ("kv_head", "q_head", "q_head·value_dim")
STREAM_ARRAYS = ("k", "v", "q", "out")
LOGIT_ARRAYS = ("logits/label_set", "logits/full", "logits/final_rms", "logits/label_token")
LABEL_ID = "projection/label_id"
WLM_GAMMA = "projection/wlm_gamma"
PROJECTION_ROWS = 256  # rows of wlm_gamma in one chunk: 0.6 MB at a hidden size of 576


@dataclass(frozen=True)
class ArrayLayout:
    """One array: its shape and chunks in the order of `axes`; `dtype` is a numpy name."""

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str
    layer: int | None = None

    @property
    def fill(self) -> float | int:
        """NaN for floats, −1 for integers: an unwritten value can never pass for a number."""
        return math.nan if self.dtype.startswith("float") else -1

    @property
    def grid(self) -> tuple[int, ...]:
        """Chunks along each axis."""
        return tuple(-(-size // chunk) for size, chunk in zip(self.shape, self.chunks, strict=True))

    @property
    def slabs(self) -> list[tuple[int, ...]]:
        """Chunk index of every slab, in C order: the order digests are kept in."""
        return list(itertools.product(*(range(n) for n in self.grid)))

    def passage_slabs(self, passage: int) -> list[tuple[int, ...]]:
        """The slabs of one passage, in C order, for an array whose passages have chunks of their own."""
        return [(passage, *rest) for rest in itertools.product(*(range(n) for n in self.grid[1:]))]

    @property
    def per_passage(self) -> bool:
        """Each passage has chunks of its own."""
        return self.axes[0] == "passage" and self.chunks[0] == 1

    def flat(self, index: tuple[int, ...]) -> int:
        """Position of a slab in `slabs`."""
        position = 0
        for i, n in zip(index, self.grid, strict=True):
            position = position * n + i
        return position

    def region(self, index: tuple[int, ...]) -> tuple[slice, ...]:
        """The elements of one slab."""
        spans = zip(index, self.chunks, self.shape, strict=True)
        return tuple(slice(i * chunk, min((i + 1) * chunk, size)) for i, chunk, size in spans)

    def slab_name(self, index: tuple[int, ...]) -> str:
        """`layers/003/k[5,1]`: the array and the chunk numbers that can differ."""
        used = [str(i) for i, n, axis in zip(index, self.grid, self.axes, strict=True) if n > 1 or self._named(axis)]
        return f"{self.name}[{','.join(used)}]" if used else self.name

    def place(self, index: tuple[int, ...]) -> str:
        """The slab in words for a message: array, passage, layer, KV head."""
        words = [f"array {self.name}"]
        if self.per_passage:
            words.append(f"passage {index[0]}")
        if self.layer is not None:
            words.append(f"layer {self.layer}")
            head = self.kv_head(index)
            words.extend([] if head is None else [f"kv_head {head}"])
        elif not self.per_passage and math.prod(self.grid) > 1:
            words.append(f"chunk {self.flat(index)}")
        return ", ".join(words)

    def kv_head(self, index: tuple[int, ...]) -> int | None:
        """KV head of a slab (query heads are chunked by KV head); None where the array has no heads."""
        for i, axis in zip(index, self.axes, strict=True):
            if axis in HEAD_AXES:
                return i
        return None

    def _named(self, axis: str) -> bool:
        return (axis == "passage" and self.per_passage) or axis in HEAD_AXES


def layer_array(layer: int, stream: str) -> str:
    """Name of a layer's array: `layers/003/k`."""
    return f"layers/{layer:03d}/{stream}"


def capture_layout(meta: CaptureMeta, n_unique_labels: int | None = None) -> dict[str, ArrayLayout]:
    """Every array of a capture, by name; the projection only once its number of labels is known."""
    arrays = _index_arrays(meta)
    for spec in meta.layers:
        arrays += _stream_arrays(meta, spec) + _constant_arrays(meta, spec)
    if meta.n_labels:
        arrays += _logit_arrays(meta)
        if n_unique_labels is not None:
            arrays += projection_arrays(meta, n_unique_labels)
    return {array.name: array for array in arrays}


def projection_arrays(meta: CaptureMeta, n_unique_labels: int) -> list[ArrayLayout]:
    """The language-model head's rows times the final norm's weight, for the labels in use."""
    n, hidden = n_unique_labels, meta.hidden_size
    rows = min(PROJECTION_ROWS, n)
    return [
        ArrayLayout(LABEL_ID, ("label",), (n,), (n,), "int64"),
        ArrayLayout(WLM_GAMMA, ("label", "hidden"), (n, hidden), (rows, hidden), meta.store_dtype),
    ]


def _index_arrays(meta: CaptureMeta) -> list[ArrayLayout]:
    n, tokens, queries = meta.n_passages, meta.n_tokens, meta.n_queries
    return [
        ArrayLayout("token_ids", ("passage", "token"), (n, tokens), (1, tokens), "int64"),
        ArrayLayout("length", ("passage",), (n,), (1,), "int64"),
        ArrayLayout("query_position", ("passage", "query"), (n, queries), (1, queries), "int64"),
        ArrayLayout("split", ("passage",), (n,), (n,), "int8"),
        ArrayLayout("document", ("passage",), (n,), (n,), "int64"),
    ]


def _stream_arrays(meta: CaptureMeta, spec: LayerSpec) -> list[ArrayLayout]:
    table = (
        ("k", "kv_head", spec.n_kv_heads, 1, "token", meta.n_tokens, "head_dim", spec.head_dim),
        ("v", "kv_head", spec.n_kv_heads, 1, "token", meta.n_tokens, "value_dim", spec.value_dim),
        ("q", "q_head", spec.n_q_heads, spec.group_size, "query", meta.n_queries, "head_dim", spec.head_dim),
        ("out", "q_head", spec.n_q_heads, spec.group_size, "query", meta.n_queries, "value_dim", spec.value_dim),
    )
    return [
        ArrayLayout(
            layer_array(spec.layer, stream),
            ("passage", head_axis, row_axis, width_axis),
            (meta.n_passages, heads, rows, width),
            (1, heads_per_chunk, rows, width),
            meta.store_dtype,
            spec.layer,
        )
        for stream, head_axis, heads, heads_per_chunk, row_axis, rows, width_axis, width in table
    ]


def _constant_arrays(meta: CaptureMeta, spec: LayerSpec) -> list[ArrayLayout]:
    arrays = []
    if spec.has_sink_logits:
        name = layer_array(spec.layer, "sink_logits")
        arrays.append(ArrayLayout(name, ("q_head",), (spec.n_q_heads,), (spec.group_size,), "float32", spec.layer))
    if meta.n_labels:
        name, width = layer_array(spec.layer, "w_o"), spec.n_q_heads * spec.value_dim
        chunks = (meta.hidden_size, spec.group_size * spec.value_dim)
        axes = ("hidden", "q_head·value_dim")
        arrays.append(ArrayLayout(name, axes, (meta.hidden_size, width), chunks, meta.store_dtype, spec.layer))
    return arrays


def _logit_arrays(meta: CaptureMeta) -> list[ArrayLayout]:
    n, queries, labels = meta.n_passages, meta.n_queries, meta.n_labels
    rows = ("passage", "query")
    return [
        ArrayLayout("logits/label_set", ("passage", "label"), (n, labels), (1, labels), "int64"),
        ArrayLayout("logits/full", (*rows, "label"), (n, queries, labels), (1, queries, labels), "float32"),
        ArrayLayout("logits/final_rms", rows, (n, queries), (1, queries), "float32"),
        ArrayLayout("logits/label_token", rows, (n, queries), (1, queries), "int64"),
    ]
