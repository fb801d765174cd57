"""From a capture to a fixture: real queries, keys and values in the seed's JSON.

A fixture's replay knows no softmax scale, no window, no next layer: so queries are stored scaled, keys and
values are the rows the query sees, the exact output is recomputed from exactly these tensors, and
its logits are the head's own share, W · output with W = P / mean rms and no bias (P: see
`polykv.replay.labels`). They are not the model's logits, and the note says so. A capture without logit
data can be exported with the seed's synthetic projection instead, when that is asked for.
"""

from __future__ import annotations

import numpy as np

from polykv.attention import masked_softmax
from polykv.errors import InputError
from polykv.replay.fixtures import CapturedReplayFixture, CapturedReplayQuery
from polykv.replay.passage import Passage, passages_of
from polykv.replay.seed_float32 import argmax_last, output_projection, project_f32
from polykv.types import CellData, CellLogits

SYNTHETIC_LABELS = 64
_HEAD_ONLY = (
    "exact_logits are head-only logits (W · exact_attention_output, W = P / mean rms, no bias), not the model's"
)
_SYNTHETIC = (
    "output_projection is the seed's synthetic one, label_token the top label: nothing here is the model's logits"
)


def fixture_of_cell(
    data: CellData,
    model_id: str,
    n_queries: int,
    q_head: int = 0,
    passage: int | None = None,
    shared_tokens: int | None = None,
    seed: int = 42,
    synthetic_projection: bool = False,
    logits_reason: str | None = None,
) -> CapturedReplayFixture:
    """`n_queries` queries of one query head of one passage, evenly spaced over those captured.

    q_head counts within the KV head's group; passage is an index of the capture (None: the first
    of the split with enough queries); shared_tokens None: half of the shortest query's rows.
    synthetic_projection: 64 labels of the seed's deterministic projection, a query's label being
    its top one. Raises InputError, naming what is missing, for a capture without logits, a layer whose attention a fixture
    cannot express (soft-cap, sink logits, values of another width), or too few queries.
    """
    _check_layer(data)
    if data.logits is None and not synthetic_projection:
        raise InputError(
            f"the capture holds no logit data ({logits_reason or 'captured without labels'}), and a fixture needs an "
            "output projection: capture with labels, or ask for the seed's synthetic one (--synthetic-projection)"
        )
    if not 0 <= q_head < data.spec.group_size:
        raise InputError(f"KV head {data.kv_head} has query heads 0 to {data.spec.group_size - 1}, not {q_head}")
    chosen = _passage(data, passage, n_queries)
    row = int(np.flatnonzero(data.passages == chosen.index)[0])
    slots = np.flatnonzero(data.query_position[row] >= 0)
    picked = np.linspace(0, len(slots) - 1, n_queries).round().astype(int)
    if synthetic_projection:
        projection, labels, logits_note = (
            output_projection(SYNTHETIC_LABELS, data.spec.head_dim, seed),
            None,
            _SYNTHETIC,
        )
    else:
        projection = _projection(data.logits, row, q_head, slots[picked])
        labels, logits_note = data.logits.label_token[row][slots[picked]], _HEAD_ONLY
    queries = tuple(
        _query(data, chosen, q_head, place, projection, None if labels is None else int(labels[i]))
        for i, place in enumerate(picked)
    )
    shortest = min(len(query.keys) for query in queries)
    shared = shortest // 2 if shared_tokens is None else shared_tokens
    if not 0 < shared < shortest:
        raise InputError(
            f"shared_tokens {shared} must split the shortest query's {shortest} rows; choose 1 to {shortest - 1}"
        )
    cell = f"layer {data.spec.layer}, KV head {data.kv_head}, query head {q_head} of its group, passage {chosen.index}"
    return CapturedReplayFixture(
        model_id=model_id,
        head_dim=data.spec.head_dim,
        shared_tokens=shared,
        seed=seed,
        output_projection=projection,
        queries=queries,
        note=f"{cell}; queries scaled by {data.spec.softmax_scale:.9g}; {logits_note}",
    )


def _check_layer(data: CellData) -> None:
    spec, where = data.spec, f"layer {data.spec.layer}"
    if spec.logit_softcap is not None or spec.has_sink_logits:
        what = "soft-caps its attention logits" if spec.logit_softcap is not None else "has sink logits"
        raise InputError(f"{where} {what}, which a fixture cannot express; choose another layer or model")
    if spec.value_dim != spec.head_dim:
        raise InputError(
            f"{where} has keys of {spec.head_dim} and values of {spec.value_dim}; a fixture has one head_dim"
        )


def _passage(data: CellData, index: int | None, n_queries: int) -> Passage:
    found = [p for p in passages_of(data) if index is None or p.index == index]
    if not found:
        raise InputError(
            f"passage {index} has no queries in split {data.split!r}; it holds passages {data.passages.tolist()}"
        )
    if n_queries < 1:
        raise InputError(f"{n_queries} queries asked for; a fixture needs at least 1")
    enough = [p for p in found if len(p.positions) >= n_queries and p.positions.min() >= 1]
    if not enough:
        most = max(len(p.positions) for p in found)
        raise InputError(f"{n_queries} queries asked for, a passage here has at most {most} (each with 2 rows or more)")
    return enough[0]


def _projection(logits: CellLogits, row: int, q_head: int, slots: np.ndarray) -> np.ndarray:
    """W [label, value_dim] float32 = P / mean rms of the chosen queries."""
    share = logits.wlm_gamma[row].astype(np.float64) @ logits.w_o[q_head].astype(np.float64)
    return (share / logits.final_rms[row][slots].astype(np.float64).mean()).astype(np.float32)


def _query(
    data: CellData, passage: Passage, q_head: int, place: int, projection: np.ndarray, label: int | None
) -> CapturedReplayQuery:
    position, window = int(passage.positions[place]), data.spec.sliding_window
    first = 0 if window is None else max(0, position - window + 1)
    if position - first < 1:
        raise InputError(f"layer {data.spec.layer} has a window of {window}: a query there sees no two rows to split")
    keys, values = passage.keys[first : position + 1], passage.values[first : position + 1]
    query = (passage.queries[q_head, place].astype(np.float64) * data.spec.softmax_scale).astype(np.float32)
    raw = (keys.astype(np.float64) @ query.astype(np.float64))[None, :]
    weights = masked_softmax(raw, np.ones(raw.shape, bool))[0]
    output = (weights @ values.astype(np.float64)).astype(np.float32)
    logits = project_f32(output, projection)
    top = int(argmax_last(logits[None, :])[0])
    return CapturedReplayQuery(query, keys, values, output, logits, top if label is None else label)
