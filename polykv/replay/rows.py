"""From per-query figures to rows of the results table."""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.policy import CompressionPolicy
from polykv.replay.config import PERFECT, SEED_GATES, SweepConfig
from polykv.replay.figures import CellFigures
from polykv.replay.gates import blockers, cell_verdict
from polykv.replay.statistics import Interval, metric_interval
from polykv.types import CellData

NO_LOGITS = "no_logit_data_in_capture"
NOTHING_ATTENDED = "nothing_attended: the policy keeps no exact tokens"

# Row metric → field of HeadFigures: [query, budget] ones, then [query] ones.
_BY_BUDGET = {
    "output_cosine_mean": "cosine",
    "output_relative_error_mean": "relative_error",
    "attention_kl_mean": "attention_kl",
    "attention_mass_kept_mean": "mass_kept",
    "topk_recall_mean": "topk_recall",
    "selection_cosine_mean": "selection_cosine",
    "selection_relative_error_mean": "selection_relative_error",
}
_AT_FULL = {
    "codec_cosine_mean": "codec_cosine",
    "codec_relative_error_mean": "codec_relative_error",
}


def candidate_rows(
    data: CellData, policy: CompressionPolicy, config: SweepConfig, figures: CellFigures, costs: dict[str, float]
) -> list[dict[str, Any]]:
    """One row per candidate_k of `config`, then the window_only row (nothing decoded).

    `figures` hold the budgets (0, *candidate_ks) in that order; `costs` are the byte columns.
    """
    base = _identity(data, policy, config, figures) | costs
    rows = [_row(base, figures, config, column, k) for column, k in enumerate(config.candidate_ks, start=1)]
    return [*rows, _window_only(_row(base, figures, config, 0, 0))]


def _window_only(row: dict[str, Any]) -> dict[str, Any]:
    """The row of the exact tokens alone: nothing was selected, so nothing was recalled."""
    row = row | {"row_kind": "window_only", "topk_recall_mean": None}
    return row if row["exact_values_total"] else row | {"verdict_reason": NOTHING_ATTENDED}


def finite(value: float | None) -> float | None:
    """The number as a float, or None when there is none to store."""
    return float(value) if value is not None and np.isfinite(value) else None


def _identity(data: CellData, policy: CompressionPolicy, config: SweepConfig, figures: CellFigures) -> dict[str, Any]:
    longest = int(data.lengths.max())
    return {
        "split": data.split,
        "layer": data.spec.layer,
        "kv_head": data.kv_head,
        "policy": policy.name,
        "policy_digest": policy.digest(),
        "row_kind": "candidate",
        "status": "ok",
        "reason": None,
        "n_passages": len(figures.passages),
        "n_documents": len(set(figures.documents.tolist())),
        "group_size": data.spec.group_size,
        "shared_tokens": longest // 2 if config.shared_tokens is None else config.shared_tokens,
        "capture_fidelity": finite(figures.capture_fidelity()),
        "logits_reason": None if figures.has_labels else NO_LOGITS,
    }


def _row(
    base: dict[str, Any], figures: CellFigures, config: SweepConfig, column: int, candidate_k: int
) -> dict[str, Any]:
    means = _passage_means(figures, column)
    intervals = {name: _interval(name, values, figures.documents) for name, values in means.items()}
    row = base | {name: finite(interval.mean) for name, interval in intervals.items() if name != "label_kl_mean"}
    row |= _spread(figures, column, intervals, means) | _seed_columns(figures, column)
    row |= _counts(figures, candidate_k)
    row["verdict"], row["verdict_reason"] = cell_verdict(config.gates, intervals, len(figures.passages))
    row["blockers"] = blockers(config.gates, {name: interval.mean for name, interval in intervals.items()})
    return row | {"candidate_k": candidate_k}


def _passage_means(figures: CellFigures, column: int) -> dict[str, np.ndarray]:
    """[passage] float64 of every metric; a NaN figure of one query makes its passage NaN."""
    means = {name: figures.passage_means(figures.head(field, column)) for name, field in _BY_BUDGET.items()}
    means |= {name: figures.passage_means(figures.head(field)) for name, field in _AT_FULL.items()}
    # A query with fewer than two candidates has no correlation and is left out of the mean.
    correlations = figures.head("score_correlation")
    known = figures.passage_means(np.isfinite(correlations))
    with np.errstate(invalid="ignore", divide="ignore"):
        means["score_correlation_mean"] = figures.passage_means(np.nan_to_num(correlations, nan=0.0)) / known
    if figures.has_labels:
        means["label_kl_mean"] = figures.passage_means(figures.label("kl", column))
    return means


def _interval(name: str, values: np.ndarray, documents: np.ndarray) -> Interval:
    kept = np.isfinite(values) if name == "score_correlation_mean" else np.ones(len(values), bool)
    return metric_interval(values[kept], documents[kept], PERFECT[name])


def _spread(
    figures: CellFigures, column: int, intervals: dict[str, Interval], means: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Interval ends, percentiles over queries and per-passage values of the two headline metrics."""
    cosines = figures.head("cosine", column)
    errors = figures.head("relative_error", column)
    spread: dict[str, Any] = {}
    for metric in ("output_cosine", "output_relative_error"):
        interval, values = intervals[f"{metric}_mean"], means[f"{metric}_mean"]
        spread[f"{metric}_low"], spread[f"{metric}_high"] = finite(interval.low), finite(interval.high)
        spread[f"passage_{metric}"] = [float(v) for v in values] if np.isfinite(values).all() else None
    spread["output_cosine_p05"] = finite(np.percentile(cosines, 5))
    spread["output_cosine_worst"] = finite(cosines.min())
    spread["output_relative_error_p95"] = finite(np.percentile(errors, 95))
    spread["output_relative_error_worst"] = finite(errors.max())
    return spread


def _seed_columns(figures: CellFigures, column: int) -> dict[str, Any]:
    """The seed's five metrics (means over queries) and its gates on them."""
    values: dict[str, float | None] = {
        "output_cosine_mean": figures.head("cosine", column).mean(),
        "output_mse_mean": figures.head("mse", column).mean(),
    }
    proxies: dict[str, float | None] = dict.fromkeys(("exact", "compressed", "delta"))
    if figures.has_labels:
        exact = float(np.exp(figures.label("nll_exact").mean()))
        compressed = float(np.exp(figures.label("nll_compressed", column).mean()))
        proxies = {"exact": exact, "compressed": compressed, "delta": compressed - exact}
        values["kl_divergence_mean"] = figures.label("kl", column).mean()
        values["abs(ppl_proxy_delta)"] = abs(compressed - exact)
        values["top1_agreement"] = figures.label("top1_match", column).mean()
    failed = blockers(SEED_GATES if figures.has_labels else SEED_GATES[:2], values)
    row: dict[str, Any] = {f"seed_ppl_proxy_{name}": finite(value) for name, value in proxies.items()}
    for name in ("output_cosine_mean", "output_mse_mean", "kl_divergence_mean", "top1_agreement"):
        row[f"seed_{name}"] = finite(values.get(name))
    return row | {"seed_passed": not failed, "seed_blockers": failed}


def _counts(figures: CellFigures, candidate_k: int) -> dict[str, Any]:
    candidates = figures.head("n_candidates")
    visible = int(figures.head("n_visible").sum())
    decoded = int(np.minimum(candidates, candidate_k).sum())
    saturated = float((candidates <= candidate_k).mean())
    return {
        "n_queries": len(candidates),
        "is_full": saturated == 1.0,
        "saturated_fraction": saturated,
        "decoded_values_total": decoded,
        "exact_values_total": int(figures.head("n_exact").sum()),
        "full_decode_value_count": visible,
        "decode_reduction": visible / max(1, decoded),
    }
