"""Controls: replays whose outcome is known, so that a pass can be believed.

No sinks, no window, full candidate_k. `exact` must match attention recomputed from the
stored tensors; with keys zeroed, keys shuffled over tokens or values zeroed, a head that
still matches does not care about its keys, and no verdict on it means anything.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.attention import attention_logits, masked_softmax, visible_mask
from polykv.codecs.exact import ExactCodec
from polykv.replay.config import SweepConfig
from polykv.replay.head import cosine
from polykv.replay.passage import Passage, passages_of
from polykv.replay.rows import finite
from polykv.types import CellData

CONTROLS = ("exact", "zero_keys", "shuffled_keys", "zero_values")
ZERO_OUTPUT = "zero_output"
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
    per_passage = [_spoiled_figures(name, data, passage, seed) for passage in passages]
    mean_cosine, kl, largest = (np.array([figures[i] for figures in per_passage]) for i in range(3))
    mean_cosine, kl = float(np.mean(mean_cosine)), float(np.mean(kl))
    zero = not largest.any()
    return {
        "split": data.split,
        "layer": data.spec.layer,
        "kv_head": data.kv_head,
        "control": name,
        "expected": "pass" if name == "exact" else "fail",
        "status": "ok",
        "reason": ZERO_OUTPUT if zero else None,
        "output_cosine_mean": finite(mean_cosine),
        "attention_kl_mean": finite(kl),
        # nothing and nothing are alike, though no angle lies between them
        "as_expected": as_expected(name, 1.0 if zero else mean_cosine, kl),
    }


def as_expected(name: str, cosine: float, kl: float) -> bool:
    """`exact`: cosine > .9999 and KL < 1e-6; the others must not reach cosine .999 (NaN: no match)."""
    if name == "exact":
        return cosine > EXACT_COSINE and kl < EXACT_KL_NATS
    return not cosine >= DESTROYED_COSINE


def _spoiled_figures(name: str, data: CellData, passage: Passage, seed: int) -> tuple[float, float, float]:
    """(mean cosine, mean attention KL in nats, largest |output| of both sides) of one passage over its queries
    and query heads; the cosine is NaN where a side is all zero.

    The spoiled side runs through the exact codec in both tiers, as a policy's would.
    """
    keys, values = spoil(name, passage, seed)
    codec = ExactCodec(data.spec.head_dim)
    codes = codec.encode(keys)
    mask = visible_mask(passage.positions, passage.n_tokens, data.spec.sliding_window)
    cosines, kls, largest = [], [], 0.0
    for head, queries in enumerate(passage.queries):
        sink = None if data.sink_logits is None else float(data.sink_logits[head])
        raw = np.asarray(queries, np.float64) @ np.asarray(passage.keys, np.float64).T
        true = masked_softmax(attention_logits(raw, data.spec), mask, sink)
        used = masked_softmax(attention_logits(codec.scores(queries, codes), data.spec), mask, sink)
        exact_output = true @ np.asarray(passage.values, np.float64)
        output = used @ np.asarray(values, np.float64)
        cosines.append(cosine(output, exact_output))
        largest = max(largest, float(np.abs(output).max()), float(np.abs(exact_output).max()))
        kls.append(_kl(used, true))
    return float(np.mean(cosines)), float(np.mean(kls)), largest


def _kl(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """KL(p ‖ q) in nats by query, the weight on a learned sink (what the rows lack to 1) included."""
    p, q = (np.column_stack([w, np.maximum(1.0 - w.sum(axis=1), 0.0)]) for w in (p, q))
    tiny = np.finfo(np.float64).tiny
    return np.sum(np.where(p > 0, p * np.log(np.maximum(p, tiny) / np.maximum(q, tiny)), 0.0), axis=1)


def invalid_cells(rows: list[dict[str, Any]]) -> set[tuple[str, int, int]]:
    """(split, layer, kv_head) whose exact control did not pass: nothing measured there counts."""
    return {_cell(r) for r in rows if r["control"] == "exact" and not r["as_expected"]}


def insensitive_cells(rows: list[dict[str, Any]]) -> set[tuple[str, int, int]]:
    """(split, layer, kv_head) that pass a destructive control: the head does not need what was destroyed."""
    return {_cell(r) for r in rows if r["control"] != "exact" and r["status"] == "ok" and not r["as_expected"]}


def zero_output_cells(rows: list[dict[str, Any]]) -> set[tuple[str, int, int]]:
    """(split, layer, kv_head) whose exact output is all zero: no codec can change it, and no cosine to it exists."""
    return {_cell(r) for r in rows if r["control"] == "exact" and r["reason"] == ZERO_OUTPUT}


def judged(rows: list[dict[str, Any]], controls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Result rows with the controls applied: `invalid` where exact failed, `insensitive` for a pass that means
    nothing and for a head whose output is zero whatever is done to it."""
    invalid, insensitive, zero = invalid_cells(controls), insensitive_cells(controls), zero_output_cells(controls)
    return [_apply(row, invalid, insensitive, zero) for row in rows]


def _apply(row: dict[str, Any], invalid: set, insensitive: set, zero: set) -> dict[str, Any]:
    if row["status"] != "ok":
        return row
    if _cell(row) in invalid:
        return row | {"verdict": "invalid", "verdict_reason": "the exact control failed on this cell"}
    if _cell(row) in zero:
        return row | {"verdict": "insensitive", "verdict_reason": ZERO_OUTPUT}
    if _cell(row) in insensitive and row["verdict"] == "pass":
        return row | {"verdict": "insensitive", "verdict_reason": "passes a destructive control"}
    return row


def _cell(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["split"], row["layer"], row["kv_head"]
