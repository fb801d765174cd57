"""A finished run with made-up figures, written by the real writers: what reports and queries are tested on.

The error of a cell falls with candidate_k down to what its policy's codec leaves; `int8` is good,
`rough` is small and bad, `exact` is float32. Every figure follows from its cell by a formula, so
that a test can say what must be found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polykv.policy import CompressionPolicy
from polykv.schemas import CONTROLS, RESULTS, SELECTION
from polykv.storage.results import write_table
from polykv.storage.run import RunDirectory

KS = (8, 16, 32, 64)
LIMIT = 0.05
COSINE = 0.999
N_PASSAGES = 6
# policy -> (smallest relative error it can reach, bytes of one token)
POLICIES = {"int8": (0.01, 132), "rough": (0.2, 80), "exact": (0.0, 512)}
GATES = [
    {"metric": "output_cosine_mean", "direction": "min", "limit": COSINE},
    {"metric": "output_relative_error_mean", "direction": "max", "limit": LIMIT},
]


def error_of(policy: str, layer: int, kv_head: int, k: int, ks: Sequence[int] = KS) -> float:
    """Relative error: the codec's own, and what a budget below the largest leaves out."""
    floor, _ = POLICIES[policy]
    missed = 0.0 if k == max(ks) else 0.4 / k * (1 + 0.1 * ((3 * layer + kv_head) % 7))
    return floor * (1 + 0.05 * ((layer + 2 * kv_head) % 5)) + missed


def write_run(
    path: Path,
    layers: Sequence[int] = (0, 3, 7),
    n_kv_heads: int = 2,
    policies: Sequence[str] = tuple(POLICIES),
    ks: Sequence[int] = KS,
    model_id: str = "tiny <model> & co",
    change: Mapping[str, Any] | None = None,
    fail: Sequence[tuple[int, int, str]] = (),
    seed: int = 42,
) -> Path:
    """Write a run directory; `change` overrides columns of every candidate row, `fail` names failed (layer, head, policy)."""
    cells = [(layer, head) for layer in layers for head in range(n_kv_heads)]
    config = {
        "kind": "replay",
        "store": "5" * 64,
        "policies": {name: _policy(name).to_dict() for name in policies},
        "sweep": {"candidate_ks": list(ks), "shared_tokens": None, "gates": GATES, "seed": seed},
        "cells": [list(cell) for cell in cells],
        "model_id": model_id,
    }
    with RunDirectory.create_or_resume(path, config) as run:
        rows = result_rows(run.run_id, cells, policies, ks, fail)
        rows = [row | dict(change or {}) if row["status"] == "ok" else row for row in rows]
        written = [
            write_table(run.table_path("results"), RESULTS, rows),
            write_table(run.table_path("selection"), SELECTION, selection_rows(rows)),
            write_table(run.table_path("controls"), CONTROLS, control_rows(run.run_id, cells)),
        ]
        for file in written:
            run.record_output(file)
    return path


def result_rows(
    run_id: str,
    cells: Sequence[tuple[int, int]],
    policies: Sequence[str] = tuple(POLICIES),
    ks: Sequence[int] = KS,
    fail: Sequence[tuple[int, int, str]] = (),
) -> list[dict[str, Any]]:
    """Candidate rows of both splits, a window_only row a policy and split."""
    rows = []
    for split in ("select", "confirm"):
        for layer, head in cells:
            for policy in policies:
                place = (run_id, split, layer, head, policy)
                if (layer, head, policy) in fail:
                    rows += [_failed_row(place, k) for k in ks]
                    continue
                rows += [_row(place, k, ks) for k in ks]
                rows.append(_row(place, 0, ks, kind="window_only"))
    return rows


def selection_rows(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One decision a (cell, policy), as the real selection makes it."""
    by_place: dict[tuple[int, int, str], dict[tuple[str, int], Mapping[str, Any]]] = {}
    for row in results:
        if row["row_kind"] == "candidate":
            place = (row["layer"], row["kv_head"], row["policy"])
            by_place.setdefault(place, {})[row["split"], row["candidate_k"]] = row
    return [_selected(found) for found in by_place.values()]


def control_rows(run_id: str, cells: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    return [
        {
            "run_id": run_id,
            "split": split,
            "layer": layer,
            "kv_head": head,
            "control": control,
            "expected": "pass" if control == "exact" else "fail",
            "status": "ok",
            "reason": None,
            "row_digest": _digest(run_id, split, layer, head, control),
            "output_cosine_mean": None if control == "zero_values" else 1.0 if control == "exact" else 0.4,
            "attention_kl_mean": 0.0 if control == "exact" else 3.0,
            "as_expected": True,
        }
        for split in ("select", "confirm")
        for layer, head in cells
        for control in ("exact", "zero_keys", "shuffled_keys", "zero_values")
    ]


def _policy(name: str) -> CompressionPolicy:
    if name == "rough":
        codec = {"id": "uniform", "bits": 4, "mode": "asymmetric", "axis": "vector"}
        pair = {"key": codec, "value": codec}
        return CompressionPolicy("rough", sink_tokens=4, recent_window=8, pool=pair, shell=pair)
    return CompressionPolicy.named(name)


def _row(place: tuple[str, str, int, int, str], k: int, ks: Sequence[int], kind: str = "candidate") -> dict[str, Any]:
    run_id, split, layer, head, policy = place
    if kind == "candidate":
        error = error_of(policy, layer, head, k, ks) * (1.0 if split == "confirm" else 0.98)
    else:
        error = 0.6
    cosine = 1 - error**2 / 4
    low, high = 0.9 * error, 1.1 * error
    blockers = []
    if kind == "candidate" and cosine < COSINE:
        blockers.append({"gate": "output_cosine_mean", "value": cosine, "limit": COSINE})
    if kind == "candidate" and error > LIMIT:
        blockers.append({"gate": "output_relative_error_mean", "value": error, "limit": LIMIT})
    figures = dict.fromkeys(RESULTS.column_names)
    figures.update(
        run_id=run_id,
        split=split,
        layer=layer,
        kv_head=head,
        policy=policy,
        policy_digest=_policy(policy).digest(),
        row_kind=kind,
        candidate_k=k,
        is_full=k == max(ks),
        status="ok",
        row_digest=_digest(*place, k, kind),
        n_passages=N_PASSAGES,
        n_documents=2,
        n_queries=3 * N_PASSAGES,
        group_size=2,
        shared_tokens=24,
        output_cosine_mean=cosine,
        output_cosine_low=1 - high**2 / 4,
        output_cosine_high=1 - low**2 / 4,
        output_relative_error_mean=error,
        output_relative_error_low=low,
        output_relative_error_high=high,
        attention_kl_mean=error**2,
        passage_output_cosine=[cosine] * N_PASSAGES,
        passage_output_relative_error=[error * (1 + 0.02 * (i - 2.5)) for i in range(N_PASSAGES)],
        seed_passed=True,
        seed_blockers=[],
        logits_reason="no_linear_projection",
        decoded_values_total=k * 18,
        exact_values_total=0,
        full_decode_value_count=max(ks) * 18,
        decode_reduction=max(ks) / max(1, k),
        bytes_per_token=float(POLICIES[policy][1]),
        bytes_per_token_at_4k=POLICIES[policy][1] + 4.0,
        bytes_per_token_at_32k=POLICIES[policy][1] + 0.5,
        float16_bytes_per_token=256.0,
        verdict="fail" if blockers else "pass",
        blockers=blockers,
    )
    return figures


def _failed_row(place: tuple[str, str, int, int, str], k: int) -> dict[str, Any]:
    run_id, split, layer, head, policy = place
    row = dict.fromkeys(RESULTS.column_names)
    row.update(
        run_id=run_id, split=split, layer=layer, kv_head=head, policy=policy, policy_digest=_policy(policy).digest(),
        row_kind="candidate", candidate_k=k, is_full=False, status="failed", reason="the worker ran out of memory",
        row_digest=_digest(*place, k),
    )  # fmt: skip
    return row


def _selected(found: Mapping[tuple[str, int], Mapping[str, Any]]) -> dict[str, Any]:
    ks = sorted({k for _, k in found})
    passing = [k for k in ks if found["select", k]["verdict"] == "pass"]
    shown = passing[0] if passing else ks[-1]
    select, confirm = found["select", shown], found["confirm", shown]
    failed = confirm["status"] != "ok"
    row = dict.fromkeys(SELECTION.column_names)
    row.update({name: confirm[name] for name in ("run_id", "layer", "kv_head", "policy", "policy_digest")})
    if failed:
        return row | {"verdict": "failed", "verdict_reason": "the worker ran out of memory"}
    row.update(
        candidate_k=passing[0] if passing else None,
        shown_candidate_k=shown,
        is_full=confirm["is_full"],
        verdict=confirm["verdict"],
        verdict_reason=None if passing else "no_candidate_k_passes_on_select",
        select_output_cosine_mean=select["output_cosine_mean"],
        select_output_relative_error_mean=select["output_relative_error_mean"],
        confirm_attention_kl_mean=confirm["attention_kl_mean"],
        window_only_output_cosine_mean=0.91 if confirm["policy"] == "rough" else None,
    )
    for name in ("output_cosine", "output_relative_error"):
        for end in ("mean", "low", "high"):
            row[f"confirm_{name}_{end}"] = confirm[f"{name}_{end}"]
    for name in ("decode_reduction", "bytes_per_token", "float16_bytes_per_token", "blockers"):
        row[name] = confirm[name]
    return row


def _digest(*parts: Any) -> str:
    return hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()
