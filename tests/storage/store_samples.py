"""Small seeded captures for the storage tests: every trait a store must carry, a few hundred bytes each."""

import numpy as np

from polykv.storage import CaptureWriter
from polykv.types import CaptureMeta, Document, LayerCapture, LayerSpec, PassageCapture, PassageLogits

SPLITS = ("calibrate", "select", "confirm", "confirm")


def make_meta(*, dtype="float32", labels=0, layers=None, splits=SPLITS, n_tokens=9, n_queries=3, hidden=6):
    """GQA with K and V of different widths, and an MQA layer with sink logits and a window."""
    layers = layers or (
        LayerSpec(2, 4, 2, 8, 4, 0.5),
        LayerSpec(5, 3, 1, 4, 4, 0.25, sliding_window=4, logit_softcap=30.0, has_sink_logits=True),
    )
    documents = (Document("a.txt", "0" * 64, 100), Document("b.txt", "1" * 64, 50))
    return CaptureMeta(
        model_id="tiny",
        weight_digest="2" * 64,
        tokenizer="bytes",
        bos_rule="none",
        rope_point="after",
        documents=documents,
        passage_split=tuple(splits),
        passage_document=tuple(i % 2 for i in range(len(splits))),
        layers=tuple(layers),
        n_tokens=n_tokens,
        n_queries=n_queries,
        n_labels=labels,
        hidden_size=hidden,
        store_dtype=dtype,
        logits_reason=None if labels else "no_linear_projection",
        versions={"polykv": "0"},
        command="polykv capture --model tiny",
    )


def make_passage(meta, index, *, length=None, n_queries=None, seed=0):
    rng = np.random.default_rng([seed, index])
    length = length if length is not None else max(1, meta.n_tokens - index)
    n_queries = n_queries if n_queries is not None else min(meta.n_queries, max(1, meta.n_queries - index % 2))
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    layers = {
        spec.layer: LayerCapture(
            k=draw(spec.n_kv_heads, length, spec.head_dim),
            v=draw(spec.n_kv_heads, length, spec.value_dim),
            q=draw(spec.n_q_heads, n_queries, spec.head_dim),
            out=draw(spec.n_q_heads, n_queries, spec.value_dim),
        )
        for spec in meta.layers
    }
    logits = None
    if meta.n_labels:
        logits = PassageLogits(
            label_set=rng.choice(4 * meta.n_labels, meta.n_labels, replace=False),
            full=draw(n_queries, meta.n_labels),
            final_rms=np.abs(draw(n_queries)) + 0.5,
            label_token=rng.integers(0, meta.n_labels, n_queries),
        )
    positions = np.sort(rng.choice(length, n_queries, replace=n_queries > length))
    return PassageCapture(index, rng.integers(0, 1000, length), positions, layers, logits)


def layer_constants(meta, spec):
    """Seeded sink logits and output projection, or None where the meta announces none."""
    rng = np.random.default_rng(spec.layer)
    width = spec.n_q_heads * spec.value_dim
    return {
        "sink_logits": rng.standard_normal(spec.n_q_heads) if spec.has_sink_logits else None,
        "w_o": rng.standard_normal((meta.hidden_size, width)) if meta.n_labels else None,
    }


def projection(meta, n=None):
    """Label ids in an arbitrary order, with a row each: covers every label a passage may use."""
    rng = np.random.default_rng(99)
    n = n or 4 * meta.n_labels
    return rng.permutation(n), rng.standard_normal((n, meta.hidden_size)).astype(np.float32)


def fill_store(writer, meta, passages):
    for passage in passages:
        writer.write_passage(passage)
    for spec in meta.layers:
        writer.write_layer_constants(spec.layer, **layer_constants(meta, spec))
    if meta.n_labels:
        writer.write_projection(*projection(meta))
    return writer.seal()


def make_store(url, meta=None, storage_options=None):
    """Write a sealed store; returns its meta and passages."""
    meta = meta or make_meta()
    passages = [make_passage(meta, i) for i in range(meta.n_passages)]
    writer = CaptureWriter.create(url, meta, storage_options=storage_options)
    fill_store(writer, meta, passages)
    return meta, passages
