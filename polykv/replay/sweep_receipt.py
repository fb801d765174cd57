"""From rows of a results table back to a receipt: the seed's figures of one cell, policy and split.

The seed's keys hold the columns seed_* judged by the seed's gates; `provenance` holds the rows
themselves, with their digests, verdicts and every other figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polykv.errors import InputError, StoreError
from polykv.replay.seed_config import CapturedReplayConfig
from polykv.replay.seed_records import CandidateReplayMetrics, CapturedReplayReceipt, blocker_texts

EXACT_REFERENCE = "capture: attention recomputed in float64 from the stored tensors"
_SEED_FIGURES = (
    "output_cosine_mean",
    "output_mse_mean",
    "kl_divergence_mean",
    "top1_agreement",
    "ppl_proxy_exact",
    "ppl_proxy_compressed",
    "ppl_proxy_delta",
)
_COUNTS = ("decoded_values_total", "full_decode_value_count", "decode_reduction")


def receipt_of_rows(
    rows: Sequence[Mapping[str, Any]], model_id: str, run_id: str, config_digest: str
) -> CapturedReplayReceipt:
    """The receipt of one cell's candidate rows (one policy, one split), candidate_k ascending.

    Its provenance holds the digest of all the rest (`body_digest`), which `verify` checks.
    Raises InputError for rows of several cells, StoreError when every row failed; failed rows
    among others stand in `provenance.rows` only.
    """
    cells = {(row["layer"], row["kv_head"], row["policy"], row["split"]) for row in rows}
    if len(cells) != 1:
        raise InputError(f"a receipt is of one cell, policy and split; these rows are of {len(cells)}")
    ordered = sorted((row for row in rows if row["row_kind"] == "candidate"), key=lambda row: row["candidate_k"])
    measured = [row for row in ordered if row["status"] == "ok"]
    if not measured:
        reason = next((row["reason"] for row in rows if row["reason"]), "no candidate row")
        raise StoreError(f"every row of {next(iter(cells))} failed: {reason}; run the replay again")
    first = measured[0]
    config = CapturedReplayConfig(tuple(row["candidate_k"] for row in measured))
    provenance = {
        "exact_reference": EXACT_REFERENCE,
        "run_id": run_id,
        "config_digest": config_digest,
        **{name: first[name] for name in ("split", "layer", "kv_head", "policy", "policy_digest", "logits_reason")},
        "rows": [dict(row) for row in ordered],
    }
    results = [_result(row, config) for row in measured]
    made = CapturedReplayReceipt.assemble(config, results, first["n_queries"], model_id=model_id, provenance=provenance)
    return made.with_body_digest()


def _result(row: Mapping[str, Any], config: CapturedReplayConfig) -> CandidateReplayMetrics:
    return CandidateReplayMetrics(
        candidate_k=row["candidate_k"],
        **{name: row[f"seed_{name}"] for name in _SEED_FIGURES},
        **{name: row[name] for name in _COUNTS},
        passed=row["seed_passed"],
        blockers=blocker_texts(config, row["seed_blockers"]),
    )
