"""The verdict of a run in one sentence that needs no other word of this project."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polykv.report.summary import PolicySummary

_METRIC_WORDS = {
    "output_cosine_mean": "cosine of the attention output",
    "output_relative_error_mean": "relative error of the attention output",
    "attention_kl_mean": "KL divergence of the attention weights (nats)",
}


@dataclass(frozen=True)
class Verdict:
    """`kind`: pass, inconclusive, fail or invalid; `sentence` for a manager; `leader` the policy it is about."""

    kind: str
    sentence: str
    leader: PolicySummary | None


def verdict_of(
    summaries: Sequence[PolicySummary], model_id: str, controls: Iterable[Mapping[str, Any]] = ()
) -> Verdict:
    """The run's verdict: how far the best policy that is smaller than float16 goes.

    A policy larger than float16 (exact, which only shows what candidate_k costs) leads only
    when nothing else was measured. A failed exact control makes the run invalid.
    """
    leader = choose_leader(summaries)
    if leader is None:
        return Verdict("inconclusive", f"Nothing was measured on {model_id}.", None)
    if leader.verdicts.get("failed", 0) == leader.n_cells:
        return Verdict("inconclusive", f"Nothing was measured on {model_id}: every job failed.", leader)
    if any(row["control"] == "exact" and row["status"] == "ok" and not row["as_expected"] for row in controls):
        return Verdict(
            "invalid",
            f"Nothing can be said about {model_id}: the exact control failed, so this run measured itself wrongly.",
            leader,
        )
    return Verdict(leader.verdict, _sentence(leader, model_id), leader)


def choose_leader(summaries: Sequence[PolicySummary]) -> PolicySummary | None:
    """Of the policies smaller than float16 the one with most passing cells, then the smallest."""
    smaller = [s for s in summaries if (s.ratio_to_float16 or 0.0) > 1.0]
    ranked = sorted(
        smaller or summaries, key=lambda s: (-s.n_pass, s.n_failing, s.bytes_per_token or float("inf"), s.policy)
    )
    return ranked[0] if ranked else None


def gate_words(gates: Iterable[Mapping[str, Any]]) -> str:
    """Gates as words: "cosine of the attention output ≥ 0.999 and …"."""
    signs = {"min": "≥", "max": "≤"}
    return " and ".join(
        f"{_METRIC_WORDS.get(g['metric'], g['metric'])} {signs[g['direction']]} {g['limit']:g}" for g in gates
    )


def _sentence(s: PolicySummary, model_id: str) -> str:
    size = f"{100 / s.ratio_to_float16:.0f} % of float16's bytes" if s.ratio_to_float16 else "an unknown size"
    held = f"{s.n_pass} of {s.n_cells}"
    undecided = s.verdicts.get("inconclusive", 0)
    insensitive = s.verdicts.get("insensitive", 0)
    beside = f" ({insensitive} cannot be judged: they do not react to their keys or values)" if insensitive else ""
    if s.verdict == "pass":
        return (
            f"Yes: {s.policy} keeps the cache of {model_id} in {size}, and {_all_of(s)} KV heads stay within "
            f"the quality limits{beside}."
        )
    if s.verdict == "inconclusive":
        return (
            f"Not proven yet: {s.policy} keeps the cache of {model_id} in {size}; {held} KV heads stay within "
            f"the quality limits, none leaves them, and {undecided} need more text to decide{beside}."
        )
    if s.n_pass == 0:
        return (
            f"No: not one of the {s.n_cells} KV heads of {model_id} stays within the quality limits with "
            f"{s.policy}, the best of the policies smaller than float16 ({size})."
        )
    others = f" and {undecided} need more text to decide" if undecided else ""
    return (
        f"Not everywhere: with {s.policy} ({size}) {held} KV heads of {model_id} stay within the quality "
        f"limits, {s.n_failing} {'leaves' if s.n_failing == 1 else 'leave'} them{others}{beside}."
    )


def _all_of(s: PolicySummary) -> str:
    judged = s.n_cells - s.verdicts.get("insensitive", 0)
    return f"all {judged}" if judged == s.n_cells else f"all {judged} of {s.n_cells} judged"
