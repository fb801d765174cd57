"""Small cells for the replay's tests, and attention written the slow way to check it against."""

import numpy as np

from polykv.attention import attend
from polykv.replay.head import HeadInputs, exact_token_mask
from polykv.types import CellData, CellLogits, LayerSpec


def make_cell(
    seed=0,
    n_passages=6,
    n_tokens=24,
    n_queries=3,
    group=2,
    head_dim=8,
    value_dim=8,
    lengths=None,
    sliding_window=None,
    logit_softcap=None,
    sinks=False,
    logits=False,
    split="confirm",
    documents=None,
    scale=0.6,
):
    """A CellData of seeded Gaussian vectors whose `outputs` are the exact attention."""
    rng = np.random.default_rng(seed)
    spec = LayerSpec(3, group, 1, head_dim, value_dim, scale, sliding_window, logit_softcap, sinks)
    lengths = np.array(lengths if lengths is not None else [n_tokens] * n_passages)
    keys = np.full((n_passages, n_tokens, head_dim), np.nan, np.float32)
    values = np.full((n_passages, n_tokens, value_dim), np.nan, np.float32)
    queries = rng.normal(size=(n_passages, group, n_queries, head_dim)).astype(np.float32)
    outputs = np.empty((n_passages, group, n_queries, value_dim), np.float32)
    positions = np.empty((n_passages, n_queries), np.int64)
    sink_logits = rng.normal(size=group).astype(np.float32) if sinks else None
    for p, length in enumerate(lengths):
        keys[p, :length] = rng.normal(size=(length, head_dim)) + 0.5
        values[p, :length] = rng.normal(size=(length, value_dim))
        positions[p] = np.linspace(length // 2, length - 2, n_queries).astype(np.int64)
        for h in range(group):
            sink = None if sink_logits is None else sink_logits[h]
            outputs[p, h] = attend(queries[p, h], keys[p, :length], values[p, :length], positions[p], spec, sink)
    return CellData(
        spec=spec,
        kv_head=0,
        split=split,
        passages=np.arange(n_passages),
        documents=np.array(documents if documents is not None else [0] * n_passages),
        lengths=lengths,
        query_position=positions,
        keys=keys,
        values=values,
        queries=queries,
        outputs=outputs,
        sink_logits=sink_logits,
        logits=make_logits(rng, n_passages, group, n_queries, value_dim) if logits else None,
    )


def make_logits(rng, n_passages, group, n_queries, value_dim, n_labels=7, hidden=5):
    return CellLogits(
        w_o=rng.normal(size=(group, hidden, value_dim)).astype(np.float32),
        wlm_gamma=rng.normal(size=(n_passages, n_labels, hidden)).astype(np.float32),
        full=rng.normal(size=(n_passages, n_queries, n_labels)).astype(np.float32),
        final_rms=rng.uniform(1, 2, size=(n_passages, n_queries)).astype(np.float32),
        label_token=rng.integers(0, n_labels, size=(n_passages, n_queries)),
    )


def slow_head(query, position, keys, values, spec, kept, scores, decoded, exact, sink=None):
    """One query, one token at a time: attend `exact` tokens exactly and `kept` ones by `scores` and `decoded`.

    Returns (output [value_dim], weights by token).
    """
    logits = {}
    for token in range(len(keys)):
        if token > position or (spec.sliding_window and position - token >= spec.sliding_window):
            continue
        if token in exact:
            raw = float(np.dot(query.astype(np.float64), keys[token].astype(np.float64)))
        elif token in kept:
            raw = float(scores[token])
        else:
            continue
        x = raw * spec.softmax_scale
        logits[token] = spec.logit_softcap * np.tanh(x / spec.logit_softcap) if spec.logit_softcap else x
    top = max([*logits.values(), *([] if sink is None else [float(sink)])])
    weights = {t: np.exp(x - top) for t, x in logits.items()}
    total = sum(weights.values()) + (0.0 if sink is None else np.exp(float(sink) - top))
    output = np.zeros(values.shape[1])
    for token, weight in weights.items():
        row = values[token] if token in exact else decoded[token]
        output += weight / total * row.astype(np.float64)
    return output, {t: w / total for t, w in weights.items()}


def make_inputs(rng, n_tokens, n_queries, head_dim, value_dim, spec, sinks, window, sink_logit, noise):
    """HeadInputs of random vectors; `noise` is what the codec does to scores and values."""
    queries = rng.normal(size=(n_queries, head_dim)).astype(np.float32)
    keys = rng.normal(size=(n_tokens, head_dim)).astype(np.float32)
    values = rng.normal(size=(n_tokens, value_dim)).astype(np.float32)
    positions = np.sort(rng.integers(0, n_tokens, size=n_queries))
    scores = (queries @ keys.T + noise * rng.normal(size=(n_queries, n_tokens))).astype(np.float32)
    decoded = (values + noise * rng.normal(size=values.shape)).astype(np.float32)
    exact = exact_token_mask(positions, n_tokens, spec.sliding_window, sinks, window)
    return HeadInputs(queries, positions, keys, values, scores, np.zeros(n_queries), decoded, exact, sink_logit)
