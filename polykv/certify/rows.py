"""From token figures to rows of the certify table: the whole, by document, by position, by passage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polykv.certify.config import Budget
from polykv.certify.cost import model_bytes
from polykv.certify.metrics import TokenFigures
from polykv.certify.run import Certification, PolicyFigures
from polykv.certify.statistics import paired_interval, passages_to_decide
from polykv.replay.config import Gate
from polykv.replay.gates import blockers, cell_verdict, gate_verdict
from polykv.replay.rows import finite
from polykv.replay.statistics import MIN_PASSAGES, Interval, metric_interval
from polykv.schemas import CERTIFY


@dataclass(frozen=True, eq=False)
class _Slice:
    """Some tokens of some passages: passages [passage] int, tokens within the scored ones."""

    kind: str
    index: int
    passages: np.ndarray
    tokens: slice
    document: str | None = None


def certify_rows(certification: Certification) -> list[dict[str, Any]]:
    """Every column of `schemas.CERTIFY` but run_id, for every policy and slice."""
    return [_row(certification, figures, part) for figures in certification.policies for part in _slices(certification)]


def _slices(certification: Certification) -> list[_Slice]:
    text, config = certification.text, certification.config
    n_scored = config.n_tokens - config.first_scored
    every, whole = np.arange(len(text.token_ids)), slice(0, n_scored)
    found = [_Slice("all", 0, every, whole)]
    found += [
        _Slice("document", i, every[text.owner == i], whole, document.name) for i, document in enumerate(text.documents)
    ]
    found += [
        _Slice("bucket", i, every, slice(start, min(start + config.bucket_tokens, n_scored)))
        for i, start in enumerate(range(0, n_scored, config.bucket_tokens))
    ]
    return found + [
        _Slice("passage", int(i), every[i : i + 1], whole, text.documents[text.owner[i]].name) for i in every
    ]


def _row(certification: Certification, figures: PolicyFigures, part: _Slice) -> dict[str, Any]:
    config, owner = certification.config, certification.text.owner[part.passages]
    chosen = [figures.passages[i] for i in part.passages]
    policy = figures.candidate.policy
    row: dict[str, Any] = dict.fromkeys(name for name in CERTIFY.column_names if name != "run_id")
    row |= {
        "policy": policy.name,
        "policy_digest": policy.digest(),
        "slice_kind": part.kind,
        "slice_index": part.index,
        "document": part.document,
        "first_token": config.first_scored + part.tokens.start,
        "end_token": config.first_scored + part.tokens.stop,
        "n_passages": len(chosen),
        "n_documents": len(set(owner.tolist())),
        "n_tokens_scored": len(chosen) * (part.tokens.stop - part.tokens.start),
    }
    ratio = passage_means(chosen, "log_ratio", part.tokens)
    kl = passage_means(chosen, "kl", part.tokens)
    ratio_interval = paired_interval(ratio, owner, config.seed)
    kl_interval = metric_interval(kl, owner, 0.0)
    row |= _figures(chosen, part.tokens, ratio, ratio_interval, kl_interval)
    if part.kind == "all":
        row |= {"passage_log_ratio": ratio.tolist(), "passage_kl": kl.tolist()}
        row |= _verdict(config.budget, ratio_interval, kl_interval, len(chosen))
        row |= _costs(certification, figures)
    return row


def passage_means(figures: Sequence[TokenFigures], name: str, tokens: slice) -> np.ndarray:
    """[passage] float64 mean over tokens of one field of TokenFigures."""
    return np.array([getattr(passage, name)[tokens].mean() for passage in figures])


def _figures(
    chosen: Sequence[TokenFigures], tokens: slice, ratio: np.ndarray, ratio_interval: Interval, kl_interval: Interval
) -> dict[str, Any]:
    baseline = float(passage_means(chosen, "nll_baseline", tokens).mean())
    n = len(ratio)
    return {
        "ppl_baseline": math.exp(baseline),
        "ppl_policy": math.exp(baseline + ratio_interval.mean),
        "ppl_increase": math.expm1(ratio_interval.mean),
        "ppl_increase_low": finite(math.expm1(ratio_interval.low)),
        "ppl_increase_high": finite(math.expm1(min(ratio_interval.high, 700.0))),
        "log_ratio_mean": ratio_interval.mean,
        "log_ratio_standard_error": float(ratio.std(ddof=1)) / math.sqrt(n) if n > 1 else None,
        "kl_mean": kl_interval.mean,
        "kl_low": finite(kl_interval.low),
        "kl_high": finite(kl_interval.high),
        "kl_p99": float(np.percentile(np.concatenate([passage.kl[tokens] for passage in chosen]), 99)),
        "top1_agreement": float(passage_means(chosen, "top1_match", tokens).mean()),
    }


def _verdict(budget: Budget, ratio: Interval, kl: Interval, n_passages: int) -> dict[str, Any]:
    """Verdict against the budget; limits on PPL are judged as log ratios, which are what was averaged."""
    limits = {"log_ratio": (budget.max_log_ratio, ratio), "kl": (budget.max_kl, kl)}
    asked = {name: (limit, interval) for name, (limit, interval) in limits.items() if limit is not None}
    gates = [Gate(name, "max", limit) for name, (limit, _) in asked.items()]
    intervals = {name: interval for name, (_, interval) in asked.items()}
    verdict, reason = cell_verdict(gates, intervals, n_passages)
    needed = None
    if verdict == "inconclusive":
        open_gates = [gate for gate in gates if gate_verdict(gate, intervals[gate.metric]) == "inconclusive"]
        counts = [passages_to_decide(intervals[gate.metric], gate.limit, n_passages) for gate in open_gates]
        needed = None if None in counts else max([MIN_PASSAGES, *counts])
    means = {"ppl_increase": math.expm1(ratio.mean), "kl": kl.mean}
    shown = [Gate("ppl_increase", "max", budget.max_ppl_increase)] if budget.max_ppl_increase is not None else []
    shown += [Gate("kl", "max", budget.max_kl)] if budget.max_kl is not None else []
    return {
        "verdict": verdict,
        "verdict_reason": reason,
        "passages_to_decide": needed,
        "blockers": blockers(shown, means),
    }


def _costs(certification: Certification, figures: PolicyFigures) -> dict[str, Any]:
    n_tokens = certification.config.n_tokens * len(figures.passages)
    per_token = {cell: n_bytes / n_tokens for cell, n_bytes in figures.code_bytes.items()}
    return {
        "decode_reduction": figures.visible / max(1, figures.decoded),
        "decoded_values_total": figures.decoded,
        "exact_values_total": figures.exact,
        "full_decode_value_count": figures.visible,
        **model_bytes(figures.plans, certification.specs, per_token),
    }
