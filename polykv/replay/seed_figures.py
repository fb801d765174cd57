"""The seed's five metrics, from outputs to one record a candidate_k; both replays end here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polykv.replay.seed_config import SeedGates
from polykv.replay.seed_float32 import argmax_last, cosine_f64, mse_f64, project_f32, softmax_f32
from polykv.replay.seed_metrics import kl_divergence, nll
from polykv.replay.seed_records import CandidateReplayMetrics, seed_blockers


@dataclass(frozen=True, eq=False)
class QueryFigures:
    """One query at every budget: [budget] float64 (top1_match bool, n_decoded int); n_full values a full decode has."""

    cosine: np.ndarray
    mse: np.ndarray
    kl: np.ndarray
    nll_compressed: np.ndarray
    top1_match: np.ndarray
    nll_exact: float
    n_decoded: np.ndarray
    n_full: int


def query_figures(
    exact_output: np.ndarray,
    exact_logits: np.ndarray,
    label: int,
    outputs: Sequence[np.ndarray | None],
    projection: np.ndarray,
    n_decoded: np.ndarray,
    n_full: int,
    polite: bool,
) -> QueryFigures:
    """Compare the outputs of every budget ([head_dim] float32, None where nothing was attended) to the exact one."""
    logits = np.stack([project_f32(output, projection) for output in outputs])
    exact = softmax_f32(exact_logits[None, :], polite).astype(np.float64)
    compressed = softmax_f32(logits, polite).astype(np.float64)
    return QueryFigures(
        cosine=np.array([cosine_f64(exact_output, output, polite) for output in outputs]),
        mse=np.array([mse_f64(exact_output, output, polite) for output in outputs]),
        kl=kl_divergence(np.broadcast_to(exact, compressed.shape), compressed),
        nll_compressed=nll(compressed, np.full(len(outputs), label)),
        top1_match=argmax_last(logits) == argmax_last(exact_logits[None, :]),
        nll_exact=float(nll(exact, np.array([label]))[0]),
        n_decoded=n_decoded,
        n_full=n_full,
    )


def candidate_metrics(config: SeedGates, queries: Sequence[QueryFigures]) -> tuple[CandidateReplayMetrics, ...]:
    """One record a candidate_k of the config, in its order: means over queries, gates judged."""
    ppl_exact = float(np.exp(_mean([query.nll_exact for query in queries])))
    full = sum(query.n_full for query in queries)
    return tuple(
        _candidate(config, candidate_k, column, queries, ppl_exact, full)
        for column, candidate_k in enumerate(config.candidate_ks)
    )


def _candidate(
    config: SeedGates, candidate_k: int, column: int, queries: Sequence[QueryFigures], ppl_exact: float, full: int
) -> CandidateReplayMetrics:
    def mean(name: str) -> float | None:
        return _finite(_mean([getattr(query, name)[column] for query in queries]))

    nll_compressed = mean("nll_compressed")
    ppl_compressed = None if nll_compressed is None else float(np.exp(nll_compressed))
    exact = _finite(ppl_exact)
    decoded = int(sum(query.n_decoded[column] for query in queries))
    figures = {
        "output_cosine_mean": mean("cosine"),
        "output_mse_mean": mean("mse"),
        "kl_divergence_mean": mean("kl"),
        "top1_agreement": mean("top1_match"),
        "ppl_proxy_exact": exact,
        "ppl_proxy_compressed": ppl_compressed,
        "ppl_proxy_delta": None if ppl_compressed is None or exact is None else ppl_compressed - exact,
    }
    failed = seed_blockers(config, figures)
    return CandidateReplayMetrics(
        candidate_k=candidate_k,
        **figures,
        decoded_values_total=decoded,
        full_decode_value_count=full,
        decode_reduction=full / max(1, decoded),
        passed=not failed,
        blockers=failed,
    )


def _mean(values: Sequence[float]) -> float:
    """Mean of at least one number, added left to right; the mean of −0.0 is −0.0, as in the seed."""
    return float(np.add.accumulate(np.array(values, np.float64))[-1] / len(values))


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
