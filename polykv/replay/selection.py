"""From swept rows to one decision a cell: candidate_k chosen on select, verdict on confirm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from polykv.replay.controls import ZERO_OUTPUT, judged
from polykv.schemas import SELECTION

NONE_PASSES = "no_candidate_k_passes_on_select"
NO_ROW = "no confirm row was measured"

_FROM_CONFIRM = {
    "confirm_output_cosine_mean": "output_cosine_mean",
    "confirm_output_cosine_low": "output_cosine_low",
    "confirm_output_cosine_high": "output_cosine_high",
    "confirm_output_relative_error_mean": "output_relative_error_mean",
    "confirm_output_relative_error_low": "output_relative_error_low",
    "confirm_output_relative_error_high": "output_relative_error_high",
    "confirm_attention_kl_mean": "attention_kl_mean",
    "confirm_label_kl_mean": "seed_kl_divergence_mean",
    "decode_reduction": "decode_reduction",
    "bytes_per_token": "bytes_per_token",
    "float16_bytes_per_token": "float16_bytes_per_token",
    "is_full": "is_full",
    "blockers": "blockers",
}
_FROM_SELECT = {
    "select_output_cosine_mean": "output_cosine_mean",
    "select_output_relative_error_mean": "output_relative_error_mean",
}


def selection_rows(results: Iterable[dict[str, Any]], controls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per (layer, kv_head, policy): columns of `schemas.SELECTION` without run_id.

    The smallest candidate_k that passes on select (the whole interval of every gate) is
    chosen; its verdict is that of confirm, controls applied. When none passes, candidate_k is
    null and the figures are those of the largest: the verdict is fail when that one fails on
    either split, else inconclusive (its intervals reach over the limit: more passages decide).
    """
    groups: dict[tuple[int, int, str], list[dict[str, Any]]] = {}
    for row in results:
        groups.setdefault((row["layer"], row["kv_head"], row["policy"]), []).append(row)
    return [_selection_row(rows, controls) for _, rows in sorted(groups.items())]


def _selection_row(rows: list[dict[str, Any]], controls: list[dict[str, Any]]) -> dict[str, Any]:
    usable = [r for r in rows if r["status"] == "ok"]
    select = {r["candidate_k"]: r for r in usable if r["split"] == "select" and r["row_kind"] == "candidate"}
    confirm = {
        r["candidate_k"]: r
        for r in judged(usable, controls)
        if r["split"] == "confirm" and r["row_kind"] == "candidate"
    }
    window = next((r for r in usable if r["split"] == "confirm" and r["row_kind"] == "window_only"), None)
    passing = [k for k, row in sorted(select.items()) if row["verdict"] == "pass"]
    chosen = passing[0] if passing else None
    shown = chosen if chosen is not None else max(confirm or select, default=None)
    row = dict.fromkeys(SELECTION.column_names)
    del row["run_id"]
    row |= {name: rows[0][name] for name in ("layer", "kv_head", "policy", "policy_digest")}
    row |= {"candidate_k": chosen, "shown_candidate_k": shown}
    if shown in select:
        row |= {name: select[shown][source] for name, source in _FROM_SELECT.items()}
    if shown in confirm:
        row |= {name: confirm[shown][source] for name, source in _FROM_CONFIRM.items()}
    if window is not None:
        row["window_only_output_cosine_mean"] = window["output_cosine_mean"]
    row["verdict"], row["verdict_reason"] = _verdict(rows, chosen, select.get(shown), confirm.get(shown))
    return row


def _verdict(
    rows: list[dict[str, Any]], chosen: int | None, selected: dict[str, Any] | None, confirmed: dict[str, Any] | None
) -> tuple[str, str | None]:
    if confirmed is None or selected is None:
        reasons = [r["reason"] for r in rows if r["status"] == "failed" and r["reason"]]
        return "failed", reasons[0] if reasons else NO_ROW
    if confirmed["verdict"] == "invalid" or confirmed["verdict_reason"] == ZERO_OUTPUT:
        return confirmed["verdict"], confirmed["verdict_reason"]
    if chosen is not None:
        return confirmed["verdict"], confirmed["verdict_reason"]
    largest = (selected["verdict"], confirmed["verdict"])
    reason = selected["verdict_reason"] or NONE_PASSES
    return ("fail", NONE_PASSES) if "fail" in largest else ("inconclusive", reason)
