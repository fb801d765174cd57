"""A capture store in numbers, for people and for `--json` (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from polykv.receipts import to_plain
from polykv.storage.layout import SCHEMA, ArrayLayout
from polykv.storage.seal import Seal
from polykv.types import SPLITS, CaptureMeta


def summarize(
    url: str, meta: CaptureMeta, seal: Seal, layout: Mapping[str, ArrayLayout], stored_bytes: int
) -> dict[str, Any]:
    """Everything a person asks of a store before using it; only a sealed store gets here."""
    passages = {split: len(meta.passages(split)) for split in SPLITS}
    summary = {
        "schema": SCHEMA,
        "url": url,
        "sealed": True,
        "digest": seal.digest,
        "meta_digest": seal.meta_digest,
        "model": {"id": meta.model_id, "weight_digest": meta.weight_digest, "compute_dtype": meta.compute_dtype},
        "tokenizer": meta.tokenizer,
        "bos_rule": meta.bos_rule,
        "rope_point": meta.rope_point,
        "store_dtype": meta.store_dtype,
        "passages": {"total": meta.n_passages, **passages},
        "n_tokens": meta.n_tokens,
        "n_queries": meta.n_queries,
        "n_cells": len(meta.cells),
        "layers": [{**spec.to_dict(), "group_size": spec.group_size} for spec in meta.layers],
        "documents": [
            {**document.to_dict(), "passages": meta.passage_document.count(i)}
            for i, document in enumerate(meta.documents)
        ],
        "logits": {
            "n_labels": meta.n_labels,
            "n_unique_labels": seal.n_unique_labels,
            "hidden_size": meta.hidden_size,
            "reason": meta.logits_reason,
        },
        "bytes": {
            "stored": stored_bytes,
            "uncompressed": sum(prod(a.shape) * np.dtype(a.dtype).itemsize for a in layout.values()),
        },
        "n_arrays": len(layout),
        "n_slabs": sum(len(digests) for digests in seal.slabs.values()),
        "versions": dict(meta.versions),
        "command": meta.command,
    }
    return to_plain(summary)
