"""The report of one run: a single HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any

from polykv import __version__
from polykv.report import cellmaps
from polykv.report.charts import quality_chart
from polykv.report.curves import curves_chart, worst_cells
from polykv.report.frontier import points
from polykv.report.headline import Verdict, choose_leader, gate_words, verdict_of
from polykv.report.markup import Html, figure, join, section, tag
from polykv.report.provenance import provenance_section
from polykv.report.sections import (
    cells_table,
    controls_section,
    failures_section,
    points_details,
    policies_table,
)
from polykv.report.other_sections import certify_section, gonogo_section
from polykv.report.summary import PolicySummary, policy_summaries
from polykv.report.tables import RunTables

# Nothing is fetched: not by this page, and not by what someone may have put into a name.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_BADGES = {"pass": "✓ PASS", "inconclusive": "? UNDECIDED", "fail": "✕ FAIL", "invalid": "! INVALID"}


def report_page(run: RunTables) -> str:
    """The whole page as text. Raises MissingExtraError without matplotlib."""
    selection = run.rows("selection")
    summaries = policy_summaries(selection)
    parts: list[Html | None] = []
    if selection:
        verdict = verdict_of(summaries, run.model_id, run.rows("controls"))
        parts += [_top(run, verdict, summaries), *_sweep_sections(run, summaries)]
    else:
        parts.append(tag("header", tag("p", run.model_id, class_="kicker"), tag("h1", f"Run {run.run_id}")))
    parts += [
        gonogo_section(run.rows("gonogo")),
        certify_section(run.rows("certify")),
        controls_section(run.rows("controls")),
        failures_section(run.rows("results")),
        _words_section() if selection else None,
        provenance_section(run),
    ]
    return page(f"{run.model_id} – polykv report", join(parts), f"run {run.run_id}")


def page(title: str, body: Html, what: str) -> str:
    """A complete HTML document around `body`."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(_asset("page.css"))),
    )
    shown = tag(
        "body",
        tag("a", "Skip to the report", href="#main", class_="skip"),
        tag("button", "Light / dark", id="theme", type="button", hidden=True),
        tag("main", body, id="main"),
        tag("footer", f"polykv {__version__}, {what}. This file is complete: it loads nothing from anywhere."),
        tag("div", id="tip", role="tooltip", hidden=True),
        tag("script", Html(_asset("page.js"))),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, shown, lang='en')}\n"


def badge(kind: str) -> Html:
    """A verdict as a coloured sign with its word."""
    return tag("span", _BADGES[kind], class_=f"badge v-{kind}")


def _top(run: RunTables, verdict: Verdict, summaries: Sequence[PolicySummary]) -> Html:
    gates = gate_words(run.gates)
    limits = (
        f"Quality limits: {gates}; a head stays within them only when its whole 95 % interval does, on text that took "
        "no part in choosing anything."
        if gates
        else None
    )
    unfinished = (
        tag("p", f"This run is {run.status}: what stands here is not all it was asked for.", class_="warning")
        if run.status != "complete"
        else None
    )
    return tag(
        "header",
        tag("p", f"How far can this key-value cache be compressed? · {run.model_id}", class_="kicker"),
        tag("h1", badge(verdict.kind), " ", tag("span", verdict.sentence)),
        tag("p", limits, class_="lead") if limits else None,
        unfinished,
        _tiles(verdict.leader, summaries),
    )


def _tiles(leader: PolicySummary | None, summaries: Sequence[PolicySummary]) -> Html | None:
    if leader is None:
        return None
    smallest = min(summaries, key=lambda s: s.bytes_per_token or float("inf"))
    tiles = [
        (f"{leader.n_pass} / {leader.n_cells}", f"cells that {leader.policy} holds"),
        (f"{100 / leader.ratio_to_float16:.0f} %" if leader.ratio_to_float16 else "–", "of float16's bytes"),
        (f"1 in {figure(leader.decode_reduction, '.1f')}", "values decoded per query, median of passing cells"),
        (figure(leader.output_cosine), "median cosine to the exact output"),
    ]
    if smallest is not leader and smallest.ratio_to_float16:
        size = f"{100 / smallest.ratio_to_float16:.0f} %"
        tiles.append((f"{smallest.n_pass} / {smallest.n_cells}", f"held by {smallest.policy}, the smallest at {size}"))
    return tag("dl", *(tag("div", tag("dt", words), tag("dd", number)) for number, words in tiles), class_="tiles")


def _sweep_sections(run: RunTables, summaries: Sequence[PolicySummary]) -> list[Html]:
    selection, results = run.rows("selection"), run.rows("results")
    limit = run.limit("output_relative_error_mean")
    policies = [s.policy for s in summaries]
    found = points(results)
    parts = [section("Policies", "policies", policies_table(summaries, selection))]
    if found:
        parts.append(
            section(
                "Quality against cost",
                "quality",
                tag("p", "Each point is a policy at one candidate_k, the mean over all cells on the split confirm, with "
                    "its 95 % interval over passages; the large one decodes everything. The grey band is the Pareto "
                    "front: nothing measured is better at no more cost. The dashed line is the limit."),
                quality_chart(found, policies, limit),
                points_details(found),
            )  # fmt: skip
        )
    parts.append(_maps_section(run, summaries))
    parts += _worst_section(run, summaries, limit)
    return parts


def _maps_section(run: RunTables, summaries: Sequence[PolicySummary]) -> Html:
    selection = run.rows("selection")
    ks = sorted(run.config.get("sweep", {}).get("candidate_ks", ()))
    ks = ks or sorted({row["candidate_k"] for row in selection if row["candidate_k"] is not None})
    limit = run.limit("output_cosine_mean") or cellmaps.DEFAULT_COSINE

    def maps(shade: Callable[[Mapping[str, Any]], cellmaps.Shade]) -> Html:
        shown = [
            cellmaps.cell_map(
                s.policy, [r for r in selection if r["policy"] == s.policy], shade, cellmaps.selection_words
            )
            for s in summaries
        ]
        return tag("div", *shown, class_="maps")

    return section(
        "Layer × head",
        "maps",
        tag("p", "One square is one cell: one layer × KV head. Point at it, or step through with the arrow keys, for its "
            "figures."),
        tag("h3", "Verdict"),
        maps(cellmaps.verdict_shade),
        cellmaps.verdict_legend(row["verdict"] for row in selection),
        tag("h3", "Chosen candidate_k: values decoded per query"),
        maps(cellmaps.budget_shade(ks)),
        cellmaps.budget_legend(ks),
        tag("h3", "Cosine to the exact attention output"),
        maps(cellmaps.cosine_shade(limit)),
        cellmaps.cosine_legend(limit),
    )  # fmt: skip


def _worst_section(run: RunTables, summaries: Sequence[PolicySummary], limit: float | None) -> list[Html]:
    leader = choose_leader(summaries)
    if leader is None:
        return []
    worst = worst_cells(run.rows("selection"), leader.policy)
    cells = [(row["layer"], row["kv_head"]) for row in worst]
    return [
        section(
            f"The {len(worst)} worst cells of {leader.policy}",
            "worst",
            tag("p", "Error against candidate_k with its 95 % band, worst cell first. Where a curve stays above the "
                "dashed limit however much is decoded, the codec is at fault; where it falls below, the budget was."),
            curves_chart(cells, run.rows("results"), [s.policy for s in summaries], limit),
            cells_table(f"Worst cells of {leader.policy}", worst),
        )  # fmt: skip
    ]


def _words_section() -> Html:
    words = (
        ("cell", "one layer × KV head, judged with all query heads that share it"),
        ("candidate_k", "how many compressed values a query decodes; full is all it can see"),
        ("cosine, relative error", "between the attention output with compressed and with exact keys and values"),
        ("select, confirm", "candidate_k is chosen on the text of select; every verdict stands on that of confirm"),
        ("interval", "95 %, over passages; with few passages it is wide, and the verdict then undecided"),
        ("pool, shell", "the shared, colder tier of the cache, and each agent's own, hotter one"),
        ("sinks, window", "the first tokens and the newest ones, which some policies keep exact"),
    )
    return section(
        "Words", "words", tag("dl", *(join([tag("dt", w), tag("dd", m)]) for w, m in words), class_="words")
    )


def _asset(name: str) -> str:
    return resources.files("polykv.report").joinpath("assets", name).read_text(encoding="utf-8")
