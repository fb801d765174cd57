"""The nouns that cross rooms: splits, layers, cells, and what a capture holds.

Axis words, the same everywhere: passage, token, query, layer, kv_head, q_head,
group (the query heads that share one KV head), head_dim, value_dim, label, hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from polykv.errors import DimensionMismatch, InputError

SPLITS = ("calibrate", "select", "confirm")
STREAMS = ("key", "value")
TIERS = ("pool", "shell")


class Cell(NamedTuple):
    """One layer × KV head: the unit whose compression is judged."""

    layer: int
    kv_head: int

    @property
    def key(self) -> str:
        """The cell's name in a policy file: "layer/kv_head"."""
        return f"{self.layer}/{self.kv_head}"


@dataclass(frozen=True)
class LayerSpec:
    """How one layer attends.

    `softmax_scale` multiplies q·k; `sliding_window` W lets query i see key j when
    i − j < W (None: all earlier tokens); `logit_softcap` c replaces a logit x by
    c·tanh(x/c) (None: off); `has_sink_logits` says that each query head has one learned
    logit that takes part in the softmax and carries no value.
    """

    layer: int
    n_q_heads: int
    n_kv_heads: int
    head_dim: int
    value_dim: int
    softmax_scale: float
    sliding_window: int | None = None
    logit_softcap: float | None = None
    has_sink_logits: bool = False

    def __post_init__(self) -> None:
        for name in ("n_q_heads", "n_kv_heads", "head_dim", "value_dim"):
            if getattr(self, name) < 1:
                raise InputError(f"layer {self.layer}: {name} is {getattr(self, name)}, must be at least 1")
        if self.n_q_heads % self.n_kv_heads:
            raise InputError(
                f"layer {self.layer}: {self.n_q_heads} query heads are not a multiple of {self.n_kv_heads} KV heads"
            )
        if not np.isfinite(self.softmax_scale) or self.softmax_scale <= 0:
            raise InputError(f"layer {self.layer}: softmax_scale is {self.softmax_scale}, must be finite and > 0")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise InputError(f"layer {self.layer}: sliding_window is {self.sliding_window}, must be at least 1")

    @property
    def group_size(self) -> int:
        """Query heads per KV head."""
        return self.n_q_heads // self.n_kv_heads

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> LayerSpec:
        return cls(**_known(cls, raw))


@dataclass(frozen=True)
class Document:
    """One text of the corpus: its name, the blake3 digest of its bytes, and where it may be used."""

    name: str
    digest: str
    n_tokens: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Document:
        return cls(**_known(cls, raw))


@dataclass(frozen=True)
class CaptureMeta:
    """What a capture is of; written once, when the store is laid out.

    `passage_split` and `passage_document` have one entry a passage (`passage_document`
    indexes `documents`); `n_tokens` is the longest passage, in tokens; `n_labels` is 0 when
    no logit data is stored, and `logits_reason` then says why. `store_dtype` is what K, V, q,
    out, W_o and wlm_gamma are stored in, `compute_dtype` what the model ran in. `split_rule` says
    what the splits were made of: "document", "region" (disjoint parts of documents) or "by hand".
    """

    model_id: str
    weight_digest: str
    tokenizer: str
    bos_rule: str
    rope_point: str
    documents: tuple[Document, ...]
    passage_split: tuple[str, ...]
    passage_document: tuple[int, ...]
    layers: tuple[LayerSpec, ...]
    n_tokens: int
    n_queries: int
    n_labels: int = 0
    hidden_size: int = 0
    store_dtype: str = "float32"
    compute_dtype: str = "float32"
    logits_reason: str | None = None
    split_rule: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str = ""

    def __post_init__(self) -> None:
        if len(self.passage_split) != len(self.passage_document):
            raise DimensionMismatch(
                f"passage_split names {len(self.passage_split)} passages, passage_document {len(self.passage_document)}"
            )
        unknown = sorted(set(self.passage_split) - set(SPLITS))
        if unknown:
            raise InputError(f"unknown split {unknown[0]!r}; known: {', '.join(SPLITS)}")
        if self.store_dtype not in ("float32", "float16"):
            raise InputError(f"store_dtype is {self.store_dtype!r}; known: float32, float16")

    @property
    def n_passages(self) -> int:
        return len(self.passage_split)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every (layer, kv_head) of the capture, in order."""
        return tuple(Cell(spec.layer, head) for spec in self.layers for head in range(spec.n_kv_heads))

    def layer(self, layer: int) -> LayerSpec:
        """The spec of one layer; raises InputError naming the layers there are."""
        for spec in self.layers:
            if spec.layer == layer:
                return spec
        raise InputError(f"layer {layer} is not in the capture; it has {[spec.layer for spec in self.layers]}")

    def passages(self, split: str) -> tuple[int, ...]:
        """Indices of the passages of one split."""
        if split not in SPLITS:
            raise InputError(f"unknown split {split!r}; known: {', '.join(SPLITS)}")
        return tuple(i for i, name in enumerate(self.passage_split) if name == split)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> CaptureMeta:
        known = _known(cls, raw)
        known["documents"] = tuple(Document.from_dict(d) for d in known["documents"])
        known["layers"] = tuple(LayerSpec.from_dict(s) for s in known["layers"])
        known["passage_split"] = tuple(known["passage_split"])
        known["passage_document"] = tuple(known["passage_document"])
        return cls(**known)


@dataclass(frozen=True, eq=False)
class LayerCapture:
    """One layer of one passage, float32, without padding.

    k [kv_head, token, head_dim] after RoPE; v [kv_head, token, value_dim] as cached;
    q [q_head, query, head_dim] after RoPE; out [q_head, query, value_dim], the model's own
    attention output before its output projection.
    """

    k: np.ndarray
    v: np.ndarray
    q: np.ndarray
    out: np.ndarray


@dataclass(frozen=True, eq=False)
class PassageLogits:
    """Exact logits at the queries of one passage.

    label_set [label] int64 token ids; full [query, label] float32 logits; final_rms [query]
    float32, the rms of the last residual; label_token [query] int64, index *into label_set*
    of the token that really came next.
    """

    label_set: np.ndarray
    full: np.ndarray
    final_rms: np.ndarray
    label_token: np.ndarray


@dataclass(frozen=True, eq=False)
class PassageCapture:
    """One captured text window: token_ids [token] int64, query_position [query] int64."""

    index: int
    token_ids: np.ndarray
    query_position: np.ndarray
    layers: Mapping[int, LayerCapture]
    logits: PassageLogits | None = None

    @property
    def length(self) -> int:
        """Tokens in the passage, padding not counted."""
        return len(self.token_ids)


@dataclass(frozen=True, eq=False)
class CellLogits:
    """What turns a change of one head's output into a change of the model's logits.

    w_o [group, hidden, value_dim] float32: the output projection of each query head;
    wlm_gamma [passage, label, hidden] float32: rows of the language-model head times the final
    norm's weight; full [passage, query, label]; final_rms [passage, query]; label_token
    [passage, query] int64 (−1 where there is no query).
    """

    w_o: np.ndarray
    wlm_gamma: np.ndarray
    full: np.ndarray
    final_rms: np.ndarray
    label_token: np.ndarray


@dataclass(frozen=True, eq=False)
class CellData:
    """All passages of one split for one cell: what one replay job reads.

    keys [passage, token, head_dim], values [passage, token, value_dim], queries
    [passage, group, query, head_dim], outputs [passage, group, query, value_dim]: float32, NaN
    beyond a passage's length or where there is no query. query_position [passage, query] int64,
    −1 where absent. lengths [passage] int64 in tokens. documents [passage] int64. passages
    [passage] int64: indices in the capture. sink_logits [group] float32 or None. slab_digests:
    blake3 of every slab read, by name.
    """

    spec: LayerSpec
    kv_head: int
    split: str
    passages: np.ndarray
    documents: np.ndarray
    lengths: np.ndarray
    query_position: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    queries: np.ndarray
    outputs: np.ndarray
    sink_logits: np.ndarray | None = None
    logits: CellLogits | None = None
    slab_digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def cell(self) -> Cell:
        return Cell(self.spec.layer, self.kv_head)


def _known(cls: type, raw: Mapping[str, Any]) -> dict[str, Any]:
    """`raw` as keyword arguments of `cls`; an unknown key is refused by name."""
    names = {f.name for f in fields(cls)}
    unknown = sorted(set(raw) - names)
    if unknown:
        raise InputError(f"{cls.__name__} has no field {unknown[0]!r}; it has {', '.join(sorted(names))}")
    return dict(raw)
