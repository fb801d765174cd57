"""The report's tables: policies, points, cells, controls, failures, and the words it uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from polykv.report.cellmaps import SIGNS
from polykv.report.frontier import Point, front
from polykv.report.markup import Html, between, details, figure, join, section, table, tag
from polykv.report.summary import VERDICTS, PolicySummary

Row = Mapping[str, Any]

_WORDS = (
    ("cell", "one layer × KV head, judged with all query heads that share it"),
    ("candidate_k", "how many compressed values a query decodes; full is all it can see"),
    ("cosine, relative error", "between the attention output with compressed and with exact keys and values"),
    ("select, confirm", "candidate_k is chosen on the text of select; every verdict stands on that of confirm"),
    ("interval", "95 %, over passages; with few passages it is wide, and the verdict then inconclusive"),
    ("pool, shell", "the shared, colder tier of the cache, and each agent's own, hotter one"),
    ("sinks, window", "the first tokens and the newest ones, which some policies keep exact"),
)


def ordered_policies(summaries: Iterable[PolicySummary]) -> list[PolicySummary]:
    """Policies by size, smallest first: the order of rows, colours and legends."""
    return sorted(summaries, key=lambda s: (s.bytes_per_token or float("inf"), s.policy))


def policies_table(summaries: Sequence[PolicySummary], selection: Iterable[Row]) -> Html:
    """One line a policy: verdicts as a bar, size, budget, cosine and what the window alone reaches."""
    worst: dict[str, float] = {}
    for row in selection:
        cosine = row["confirm_output_cosine_mean"]
        if cosine is not None:
            worst[row["policy"]] = min(cosine, worst.get(row["policy"], 1.0))
    columns = (
        "policy", "cells by verdict", "pass", "bytes per token", "of float16", "median candidate_k", "decodes 1 in",
        "median cosine", "worst cosine", "window alone",
    )  # fmt: skip
    rows = [
        (
            tag("strong", s.policy),
            _verdict_bar(s),
            f"{s.n_pass} of {s.n_cells}",
            figure(s.bytes_per_token, ".0f"),
            f"{100 / s.ratio_to_float16:.0f} %" if s.ratio_to_float16 else "–",
            figure(s.candidate_k, ".0f"),
            figure(s.decode_reduction, ".1f"),
            figure(s.output_cosine),
            figure(worst.get(s.policy)),
            figure(s.window_only_cosine),
        )
        for s in summaries
    ]
    note = tag(
        "p",
        "Median candidate_k and decode reduction are over the cells that pass, cosines over all cells, on the split "
        "confirm. Bytes are the codes of one token in one KV head; “window alone” is the cosine that exact sinks and "
        "recent window reach with nothing else attended.",
        class_="quiet small",
    )
    return join([table("The policies, smallest first", columns, rows, range(2, 10)), note])


def points_details(found: Sequence[Point]) -> Html:
    """The numbers behind the quality chart."""
    by_bytes = set(front(found, lambda p: p.percent_of_float16))
    by_decode = set(front(found, lambda p: -p.decode_reduction))
    columns = (
        "policy", "candidate_k", "relative error", "95 % interval", "% of float16", "decodes 1 in", "cells that pass",
        "Pareto front",
    )  # fmt: skip
    rows = [
        (
            p.policy,
            f"{p.candidate_k} (full)" if p.is_full else p.candidate_k,
            figure(p.error, ".4f"),
            between(p.low, p.high),
            f"{p.percent_of_float16:.0f}",
            f"{p.decode_reduction:.2f}",
            f"{p.n_pass} of {p.n_cells}",
            ", ".join(name for name, best in (("bytes", by_bytes), ("decode", by_decode)) if p in best) or "–",
        )
        for p in found
    ]
    return details("The same as a table", table("All policies and budgets", columns, rows, range(1, 7)))


def cells_table(title: str, rows: Iterable[Row]) -> Html:
    """Single cells with their figures, gates not passed in words."""
    columns = (
        "layer / head", "policy", "verdict", "candidate_k", "cosine", "95 % interval", "relative error",
        "95 % interval", "window alone", "gates not passed",
    )  # fmt: skip
    shown = [
        (
            f"{row['layer']} / {row['kv_head']}",
            row["policy"],
            verdict_mark(row["verdict"]),
            figure(row["candidate_k"], "d"),
            figure(row["confirm_output_cosine_mean"]),
            between(row["confirm_output_cosine_low"], row["confirm_output_cosine_high"]),
            figure(row["confirm_output_relative_error_mean"], ".3f"),
            between(row["confirm_output_relative_error_low"], row["confirm_output_relative_error_high"], ".3f"),
            figure(row["window_only_output_cosine_mean"]),
            blocker_words(row["blockers"]) or row["verdict_reason"] or "–",
        )
        for row in rows
    ]
    return table(title, columns, shown, range(3, 9))


def controls_section(controls: Sequence[Row]) -> Html | None:
    """Replays whose outcome is known, and the cells where one came out otherwise."""
    if not controls:
        return None
    names = list(dict.fromkeys(row["control"] for row in controls))
    rows = [_control_row(name, [row for row in controls if row["control"] == name]) for name in names]
    odd = [row for row in controls if not row["as_expected"]]
    columns = ("control", "must", "came out so", "highest cosine", "lowest cosine", "largest attention KL (nats)")
    return section(
        "Controls",
        "controls",
        tag(
            "p",
            "Replays whose outcome is known, run on every cell and split without sinks or window. If the exact one "
            "failed, the measurement itself would be wrong; if a destructive one passed, passing would mean nothing.",
        ),
        table("Controls", columns, rows, range(2, 6)),
        details(
            f"{len(odd)} controls that came out otherwise",
            table(
                "Unexpected controls",
                ("control", "split", "layer / head", "cosine", "attention KL (nats)", "status"),
                [
                    (
                        row["control"],
                        row["split"],
                        f"{row['layer']} / {row['kv_head']}",
                        figure(row["output_cosine_mean"]),
                        figure(row["attention_kl_mean"], ".1e"),
                        row["reason"] or row["status"],
                    )
                    for row in odd
                ],
                range(3, 5),
            ),
        )
        if odd
        else tag("p", "No control came out otherwise.", class_="quiet"),
    )


def failures_section(results: Iterable[Row]) -> Html | None:
    """Rows whose job failed, by reason; nothing when there are none."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in results:
        if row["status"] != "ok":
            found.setdefault((row["policy"], row["reason"] or "no reason given"), []).append(row)
    if not found:
        return None
    rows = [
        (policy, len(failed), ", ".join(sorted({f"{r['layer']}/{r['kv_head']}" for r in failed})[:12]), reason)
        for (policy, reason), failed in found.items()
    ]
    return section(
        "Failed jobs",
        "failures",
        tag("p", "These cells could not be measured. The command below, given again, computes what is missing."),
        table("Failed rows by reason", ("policy", "rows", "cells", "reason"), rows, (1,)),
    )


def words_section() -> Html:
    """What the report's words mean."""
    return section(
        "Words", "words", tag("dl", *(join([tag("dt", word), tag("dd", text)]) for word, text in _WORDS), class_="words")
    )  # fmt: skip


def verdict_mark(verdict: str | None) -> Html:
    """A verdict as sign and word."""
    if verdict is None:
        return Html("–")
    return tag("span", tag("span", SIGNS.get(verdict, "!"), class_=f"key v-{verdict}", aria_hidden="true"), f" {verdict}")  # fmt: skip


def blocker_words(blockers: Iterable[Row] | None) -> str:
    """Gates not passed: "output_cosine_mean 0.9961 (limit 0.999)"."""
    return "; ".join(
        f"{b['gate']} {figure(b['value'])}" + ("" if b["limit"] is None else f" (limit {b['limit']:g})")
        for b in blockers or ()
    )


def _verdict_bar(s: PolicySummary) -> Html:
    counts = [(name, s.verdicts[name]) for name in VERDICTS if s.verdicts.get(name)]
    words = ", ".join(f"{count} {name}" for name, count in counts)
    parts = [
        tag("span", SIGNS[name], class_=f"v-{name}", style=f"flex:{count}", aria_hidden="true")
        for name, count in counts
    ]
    return tag("span", *parts, class_="bar", role="img", aria_label=words, title=words)


def _control_row(name: str, rows: Sequence[Row]) -> tuple[Any, ...]:
    cosines = [row["output_cosine_mean"] for row in rows if row["output_cosine_mean"] is not None]
    divergences = [row["attention_kl_mean"] for row in rows if row["attention_kl_mean"] is not None]
    held = sum(bool(row["as_expected"]) for row in rows)
    return (
        name,
        rows[0]["expected"],
        f"{held} of {len(rows)}",
        figure(max(cosines, default=None), ".6f" if name == "exact" else ".4f"),
        figure(min(cosines, default=None), ".6f" if name == "exact" else ".4f"),
        figure(max(divergences, default=None), ".1e"),
    )
