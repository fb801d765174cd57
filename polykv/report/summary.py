"""What a run found, in one sentence and one line a policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

VERDICTS = ("pass", "inconclusive", "fail", "insensitive", "invalid", "failed")


@dataclass(frozen=True)
class PolicySummary:
    """One policy over all cells of a run.

    `verdicts` counts cells by verdict; medians are over cells (None when there is no figure):
    candidate_k and decode_reduction over the cells that pass, cosine and window_only_cosine on
    confirm over all, bytes per token of one KV head over all.
    """

    policy: str
    n_cells: int
    verdicts: dict[str, int] = field(default_factory=dict)
    candidate_k: float | None = None
    decode_reduction: float | None = None
    output_cosine: float | None = None
    window_only_cosine: float | None = None
    bytes_per_token: float | None = None
    float16_bytes_per_token: float | None = None

    @property
    def n_pass(self) -> int:
        return self.verdicts.get("pass", 0)

    @property
    def n_failing(self) -> int:
        """Cells whose verdict is fail, or that could not be measured soundly."""
        return sum(self.verdicts.get(name, 0) for name in ("fail", "failed", "invalid"))

    @property
    def verdict(self) -> str:
        """pass when every cell that can be judged passes, fail when one fails, else inconclusive."""
        if self.n_failing:
            return "fail"
        judged = self.n_cells - self.verdicts.get("insensitive", 0)
        return "pass" if judged and self.n_pass == judged else "inconclusive"

    @property
    def ratio_to_float16(self) -> float | None:
        """How many times smaller than float16 the codes are."""
        if not self.bytes_per_token or not self.float16_bytes_per_token:
            return None
        return self.float16_bytes_per_token / self.bytes_per_token


def policy_summaries(selection: Iterable[dict[str, Any]]) -> list[PolicySummary]:
    """One summary a policy, most passing cells first, then fewest bytes."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in selection:
        groups.setdefault(row["policy"], []).append(row)
    found = [_summary(policy, rows) for policy, rows in groups.items()]
    return sorted(found, key=lambda s: (-s.n_pass, s.bytes_per_token or float("inf"), s.policy))


def headline(summaries: list[PolicySummary], model_id: str) -> str:
    """What was found, in one sentence: how many cells each policy holds, and at what size."""
    if not summaries:
        return f"{model_id}: nothing was measured."
    clauses = [_clause(s) for s in summaries]
    return f"{model_id}, {summaries[0].n_cells} layer × head cells: {'; '.join(clauses)}."


def control_lines(controls: Iterable[dict[str, Any]]) -> list[str]:
    """One line a control: in how many cells it came out as it must."""
    groups: dict[str, list[bool]] = {}
    for row in controls:
        groups.setdefault(row["control"], []).append(bool(row["as_expected"]))
    return [
        f"{name}: {'passes' if name == 'exact' else 'fails, as it must,'} in {sum(held)} of {len(held)} cells × splits"
        for name, held in groups.items()
    ]


def _clause(s: PolicySummary) -> str:
    size = f" in {100 / s.ratio_to_float16:.0f} % of float16's bytes" if s.ratio_to_float16 else ""
    if s.n_pass == 0:
        return f"{s.policy} holds none of them{size}"
    saved = f", decoding 1 value in {s.decode_reduction:.1f}" if (s.decode_reduction or 0.0) >= 1.05 else ""
    count = "all" if s.n_pass == s.n_cells else f"{s.n_pass} of them"
    return f"{s.policy} holds {count}{size}{saved}"


def _summary(policy: str, rows: list[dict[str, Any]]) -> PolicySummary:
    passing = [row for row in rows if row["verdict"] == "pass"]
    counts = Counter(row["verdict"] for row in rows)
    return PolicySummary(
        policy=policy,
        n_cells=len(rows),
        verdicts={name: counts[name] for name in VERDICTS if counts[name]},
        candidate_k=_median(passing, "candidate_k"),
        decode_reduction=_median(passing, "decode_reduction"),
        output_cosine=_median(rows, "confirm_output_cosine_mean"),
        window_only_cosine=_median(rows, "window_only_output_cosine_mean"),
        bytes_per_token=_median(rows, "bytes_per_token"),
        float16_bytes_per_token=_median(rows, "float16_bytes_per_token"),
    )


def _median(rows: list[dict[str, Any]], name: str) -> float | None:
    values = [row[name] for row in rows if row[name] is not None]
    return float(median(values)) if values else None
