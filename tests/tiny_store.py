"""A small sealed capture with honest attention outputs, for tests that need a whole store."""

import numpy as np

from polykv.attention import attend
from polykv.storage import CaptureWriter
from polykv.types import CaptureMeta, Document, LayerCapture, LayerSpec, PassageCapture

SPLITS = ("calibrate", "calibrate", *["select"] * 6, *["confirm"] * 6)


def write_tiny_store(path, splits=SPLITS, head_dim=8, n_tokens=48, n_queries=3, layers=(0, 5), seed=1, key_scale=1.0):
    """Two layers with two KV heads of two query heads each; returns the path as text."""
    specs = tuple(LayerSpec(layer, 4, 2, head_dim, head_dim, head_dim**-0.5) for layer in layers)
    meta = CaptureMeta(
        model_id="tiny-random",
        weight_digest="1" * 64,
        tokenizer="bytes",
        bos_rule="none",
        rope_point="post_rope",
        documents=(Document("a.txt", "0" * 64, 900), Document("b.txt", "2" * 64, 900)),
        passage_split=splits,
        passage_document=tuple(i % 2 for i in range(len(splits))),
        layers=specs,
        n_tokens=n_tokens,
        n_queries=n_queries,
        logits_reason="no_linear_projection",
    )
    writer = CaptureWriter.create(str(path), meta)
    positions = np.linspace(n_tokens // 2, n_tokens - 2, n_queries).astype(np.int64)
    for index in range(len(splits)):
        rng = np.random.default_rng([seed, index])
        captured = {spec.layer: _layer(rng, spec, n_tokens, positions, key_scale) for spec in specs}
        writer.write_passage(PassageCapture(index, rng.integers(0, 99, n_tokens), positions, captured))
    writer.seal()
    return str(path)


def _layer(rng, spec, n_tokens, positions, key_scale):
    k, v = (rng.normal(size=(spec.n_kv_heads, n_tokens, spec.head_dim)).astype(np.float32) for _ in range(2))
    k *= np.float32(key_scale)
    q = (2 * rng.normal(size=(spec.n_q_heads, len(positions), spec.head_dim))).astype(np.float32)
    out = np.stack(
        [attend(q[h], k[h // spec.group_size], v[h // spec.group_size], positions, spec) for h in range(spec.n_q_heads)]
    )
    return LayerCapture(k, v, q, out.astype(np.float32))
