"""Controls: replays whose outcome is known, so that a pass can be believed.

No sinks, no window, full candidate_k. `exact` must match attention recomputed from the
stored tensors; with keys zeroed, keys shuffled over tokens or values zeroed, a head that
still matches does not care about its keys, and no verdict on it means anything.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.codecs.exact import ExactCodec
from polykv.replay.config import SweepConfig
from polykv.replay.head import HeadInputs, replay_head
from polykv.replay.passage import Passage, passages_of
from polykv.replay.rows import finite
from polykv.types import CellData

CONTROLS = ("exact", "zero_keys", "shuffled_keys", "zero_values")
EXACT_COSINE = 0.9999
EXACT_KL_NATS = 1e-6
DESTROYED_COSINE = 0.999


def control_rows(data: CellData, config: SweepConfig) -> list[dict[str, Any]]:
    """One row per control over all passages of the split: columns of `schemas.CONTROLS`
    without run_id and row_digest."""
    passages = passages_of(data)
    return [_control_row(name, data, passages, config.seed) for name in CONTROLS]


def spoil(name: str, passage: Passage, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(keys, values) as the control `name` sees them; the shuffle depends on seed and passage only."""
    keys, values = passage.keys, passage.values
    if name == "zero_keys":
        return np.zeros_like(keys), values
    if name == "zero_values":
        return keys, np.zeros_like(values)
    if name == "shuffled_keys":
        order = np.random.default_rng([seed, passage.index]).permutation(len(keys))
        return keys[order], values
    return keys, values


def _control_row(name: str, data: CellData, passages: list[Passage], seed: int) -> dict[str, Any]:
    cosines, kls = [], []
    for passage in passages:
        figures = [_spoiled_head(name, data, passage, head, seed) for head in range(data.spec.group_size)]
        cosines.append(np.mean([f.cosine for f in figures]))
        kls.append(np.mean([f.attention_kl for f in figures]))
    cosine, kl = float(np.mean(cosines)), float(np.mean(kls))
    return {
        "split": data.split,
        "layer": data.spec.layer,
        "kv_head": data.kv_head,
        "control": name,
        "expected": "pass" if name == "exact" else "fail",
        "status": "ok",
        "reason": None,
        "output_cosine_mean": finite(cosine),
        "attention_kl_mean": finite(kl),
        "as_expected": as_expected(name, cosine, kl),
    }


def as_expected(name: str, cosine: float, kl: float) -> bool:
    """`exact`: cosine > .9999 and KL < 1e-6; the others must not reach cosine .999 (NaN: no match)."""
    if name == "exact":
        return cosine > EXACT_COSINE and kl < EXACT_KL_NATS
    return not cosine >= DESTROYED_COSINE


def _spoiled_head(name: str, data: CellData, passage: Passage, head: int, seed: int) -> Any:
    keys, values = spoil(name, passage, seed)
    queries = passage.queries[head]
    codec = ExactCodec(data.spec.head_dim)
    inputs = HeadInputs(
        queries=queries,
        positions=passage.positions,
        keys=passage.keys,
        values=passage.values,
        codec_scores=codec.scores(queries, codec.encode(keys)),
        score_offset=np.zeros(len(queries)),
        decoded_values=values,
        exact_tokens=np.zeros((len(queries), passage.n_tokens), bool),
        sink_logit=None if data.sink_logits is None else float(data.sink_logits[head]),
    )
    return replay_head(inputs, data.spec, np.array([passage.n_tokens]))


def invalid_cells(rows: list[dict[str, Any]]) -> set[tuple[str, int, int]]:
    """(split, layer, kv_head) whose exact control did not pass: nothing measured there counts."""
    return {_cell(r) for r in rows if r["control"] == "exact" and not r["as_expected"]}


def insensitive_cells(rows: list[dict[str, Any]]) -> set[tuple[str, int, int]]:
    """(split, layer, kv_head) that pass a destructive control: the head does not need what was destroyed."""
    return {_cell(r) for r in rows if r["control"] != "exact" and r["status"] == "ok" and not r["as_expected"]}


def judged(rows: list[dict[str, Any]], controls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Result rows with the controls applied: `invalid` where exact failed, `insensitive` for a pass that means nothing."""
    invalid, insensitive = invalid_cells(controls), insensitive_cells(controls)
    return [_apply(row, invalid, insensitive) for row in rows]


def _apply(row: dict[str, Any], invalid: set, insensitive: set) -> dict[str, Any]:
    if row["status"] != "ok":
        return row
    if _cell(row) in invalid:
        return row | {"verdict": "invalid", "verdict_reason": "the exact control failed on this cell"}
    if _cell(row) in insensitive and row["verdict"] == "pass":
        return row | {"verdict": "insensitive", "verdict_reason": "passes a destructive control"}
    return row


def _cell(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["split"], row["layer"], row["kv_head"]
