"""The report of one run: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polykv.report.cellmaps import (
    DEFAULT_COSINE,
    budget_legend,
    budget_shade,
    cell_map,
    cosine_legend,
    cosine_shade,
    selection_words,
    verdict_legend,
    verdict_shade,
)
from polykv.report.charts import ERROR_FLOOR, quality_chart
from polykv.report.curves import curves_chart, worst_cells
from polykv.report.extras import certify_notes, certify_section, gonogo_section, other_verdict
from polykv.report.frontier import points
from polykv.report.headline import Verdict, gate_words, verdict_of
from polykv.report.markup import Html, details, section, tag
from polykv.report.provenance import provenance_section
from polykv.report.search_front import search_section
from polykv.report.sections import (
    cells_table,
    controls_section,
    failures_section,
    ordered_policies,
    points_details,
    policies_table,
    words_section,
)
from polykv.report.shell import whole_page
from polykv.report.summary import policy_summaries
from polykv.report.tables import RunTables

Row = Mapping[str, Any]

_BADGES = {"pass": "pass", "fail": "fail", "inconclusive": "inconclusive", "invalid": "invalid run"}


def report_page(run: RunTables) -> str:
    """The whole report as HTML text. Raises MissingExtraError without matplotlib, where there is something to plot."""
    selection = run.rows("selection")
    verdict = None if selection else other_verdict(run)
    verdict = verdict or verdict_of(policy_summaries(selection), run.model_id, run.rows("controls"))
    parts = [
        _header(run, verdict),
        *(_sweep_sections(run, verdict) if selection else ()),
        gonogo_section(run.rows("gonogo")),
        certify_section(run),
        search_section(run.rows("search"), run.rows("sensitivity")),
        failures_section(run.rows("results")),
        controls_section(run.rows("controls")),
        words_section() if selection else None,
        provenance_section(run),
    ]
    return whole_page(f"{run.model_id}: polykv report", parts)


def _header(run: RunTables, verdict: Verdict) -> Html:
    notes = []
    if run.gates and verdict.leader:
        limits = gate_words(run.gates)
        notes.append(f"Quality limits: {limits}, each for the whole 95 % interval, on text that chose nothing.")
    if verdict.leader:
        notes += certify_notes(run)
    if verdict.leader and not run.certifications:
        notes.append(
            "Measured head by head on the model's own vectors; what the model as a whole loses is polykv certify's to say."
        )
    warnings = [] if run.status == "complete" else [f"This run is {run.status}, not complete: figures may be missing."]
    summaries = ordered_policies(policy_summaries(run.rows("selection")))
    return tag(
        "header",
        tag("p", tag("span", _BADGES[verdict.kind], class_=f"badge v-{verdict.kind}"), f" {run.model_id} · run {run.run_id}", class_="eyebrow"),
        tag("h1", verdict.sentence),
        *(tag("p", text, class_="quiet") for text in notes),
        *(tag("p", text, class_="warning", role="note") for text in warnings),
        policies_table(summaries, run.rows("selection")) if summaries else None,
    )  # fmt: skip


def _sweep_sections(run: RunTables, verdict: Verdict) -> list[Html | None]:
    names = [s.policy for s in ordered_policies(policy_summaries(run.rows("selection")))]
    leader = verdict.leader.policy if verdict.leader else names[0]
    first = [leader, *(name for name in names if name != leader)]
    return [_quality_section(run, names), _maps_section(run, first), _worst_section(run, names, leader), _cells_section(run)]  # fmt: skip


def _quality_section(run: RunTables, names: Sequence[str]) -> Html | None:
    found = points(run.rows("results"))
    if not found:
        return None
    limit = run.limit("output_relative_error_mean")
    gate = f" The dashed line is the limit, {100 * limit:g} %." if limit else ""
    return section(
        "Quality against cost",
        "quality",
        tag("p", "Each mark is one policy at one candidate_k over all cells: mean error with its 95 % interval over held-out passages; lower is better. "
            f"Large marks decode everything. The wide line is the Pareto front: nothing measured beats it at its cost.{gate} "
            f"Errors below {100 * ERROR_FLOOR:g} % are drawn there."),
        quality_chart(found, names, limit),
        points_details(found),
    )  # fmt: skip


def _maps_section(run: RunTables, names: Sequence[str]) -> Html:
    selection = run.rows("selection")
    limit = run.limit("output_cosine_mean") or DEFAULT_COSINE
    swept = sorted({row["candidate_k"] for row in run.rows("results") if row["row_kind"] == "candidate"})
    swept = swept or sorted({row["candidate_k"] for row in selection if row["candidate_k"] is not None})
    shades: list[tuple[str, Callable[[Row], Any]]] = [
        ("Verdict", verdict_shade),
        ("Chosen candidate_k", budget_shade(swept)),
        ("Cosine on held-out text", cosine_shade(limit)),
    ]
    maps = []
    for name in names:
        rows = [row for row in selection if row["policy"] == name]
        drawn = [cell_map(title, rows, shade, selection_words) for title, shade in shades]
        maps.append(tag("div", tag("h3", name), *drawn, class_="maps"))
    return section(
        "Layer by layer, head by head",
        "maps",
        tag("p", "One square is one layer × KV head. Point at it for its figures, or press Tab and the arrow keys."),
        verdict_legend(row["verdict"] for row in selection),
        budget_legend(swept),
        cosine_legend(limit),
        *maps,
    )


def _worst_section(run: RunTables, names: Sequence[str], leader: str) -> Html:
    worst = worst_cells(run.rows("selection"), leader)
    cells = [(row["layer"], row["kv_head"]) for row in worst]
    return section(
        f"The {len(worst)} cells with the largest error under {leader}",
        "worst",
        tag("p", "Error against the number of values decoded, all policies; bands are 95 % intervals over passages. A curve that stays flat above the limit is held up by its codec: decoding more does not help."),
        curves_chart(cells, run.rows("results"), names, run.limit("output_relative_error_mean")),
        details("The same cells as a table", cells_table(f"Worst cells of {leader}", worst)),
    )  # fmt: skip


def _cells_section(run: RunTables) -> Html:
    rows = run.rows("selection")
    table = cells_table("Every cell of every policy", rows)
    return section("Every cell", "cells", details(f"All {len(rows)} decisions as a table", table))
