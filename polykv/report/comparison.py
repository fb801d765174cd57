"""The report of two runs side by side: what moved, beyond its interval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from polykv.errors import InputError
from polykv.report.cellmaps import Shade, cell_map, legend
from polykv.report.compare import Movement, movements
from polykv.report.markup import Html, between, figure, section, table, tag
from polykv.report.provenance import identity
from polykv.report.sections import ordered_policies, policies_table
from polykv.report.shell import whole_page
from polykv.report.summary import policy_summaries
from polykv.report.tables import RunTables

Row = Mapping[str, Any]
_FINE = ".6f"
_WAYS = {
    "worse": ("▼", "cosine below the baseline's 95 % interval"),
    "better": ("▲", "cosine above it"),
    "same": ("·", "within it"),
}


def comparison_page(baseline: RunTables, now: RunTables) -> str:
    """HTML text; raises InputError when the runs share no (policy, layer, head)."""
    old, new = baseline.rows("selection"), now.rows("selection")
    shared = _keys(old) & _keys(new)
    if not shared:
        raise InputError(
            f"{baseline.path} and {now.path} share no cell of a policy; a comparison needs the same layers and policy names"
        )
    moved = movements(old, new)
    worse = sum(not m.better for m in moved)
    kind = "fail" if worse else "pass"
    parts = [
        tag(
            "header",
            tag("p", tag("span", "moved" if worse else "holds", class_=f"badge v-{kind}"), f" run {now.run_id} against baseline {baseline.run_id}", class_="eyebrow"),
            tag("h1", comparison_sentence(len(shared), moved)),
            *_differences(baseline, now),
        ),
        _maps_section(new, moved, shared),
        _moved_section(moved),
        _changed_section(old, new),
        section("Both runs", "runs", *(_side(word, run) for word, run in (("Baseline", baseline), ("Now", now)))),
    ]  # fmt: skip
    return whole_page(f"polykv: {now.run_id} against {baseline.run_id}", parts)


def comparison_sentence(n_shared: int, moved: Sequence[Movement]) -> str:
    """What moved, in one sentence."""
    better = sum(m.better for m in moved)
    worse = len(moved) - better
    if not moved:
        return f"Nothing moved: all {n_shared} cells × policies stay within the baseline's 95 % intervals."
    parts = [f"{count} {word}" for count, word in ((worse, "worse"), (better, "better")) if count]
    return f"Of {n_shared} cells × policies {' and '.join(parts)} than the baseline's 95 % interval allows."


def changed_verdicts(old: Iterable[Row], new: Iterable[Row]) -> list[tuple[Row, Row]]:
    """Pairs (baseline, now) of one cell and policy whose verdict differs."""
    known = {_key(row): row for row in old}
    pairs = [(known[_key(row)], row) for row in new if _key(row) in known]
    return [(a, b) for a, b in pairs if a["verdict"] != b["verdict"]]


def _maps_section(new: Sequence[Row], moved: Sequence[Movement], shared: set[tuple[str, int, int]]) -> Html:
    ways = {(m.policy, m.layer, m.kv_head): "better" if m.better else "worse" for m in moved}
    said = {(m.policy, m.layer, m.kv_head): str(m) for m in moved}

    def shade(row: Row) -> Shade:
        way = ways.get(_key(row), "same")
        return Shade(f"w-{way}", _WAYS[way][0])

    def words(row: Row) -> str:
        return said.get(_key(row)) or (
            f"{row['policy']}, layer {row['layer']}, head {row['kv_head']}: output cosine "
            f"{figure(row['confirm_output_cosine_mean'])}, within the baseline's interval"
        )

    names = sorted({row["policy"] for row in new})
    maps = [
        cell_map(name, [row for row in new if row["policy"] == name and _key(row) in shared], shade, words)
        for name in names
    ]
    keys = legend((f"w-{way}", sign, text) for way, (sign, text) in _WAYS.items())
    return section("What moved, layer by layer", "maps", keys, *maps)


def _moved_section(moved: Sequence[Movement]) -> Html | None:
    if not moved:
        return None
    rows = [
        (m.policy, m.layer, m.kv_head, "better" if m.better else "worse", figure(m.baseline, _FINE), between(m.low, m.high, _FINE), figure(m.now, _FINE))
        for m in moved
    ]  # fmt: skip
    columns = ("policy", "layer", "head", "moved", "baseline cosine", "95 % interval", "cosine now")
    return section(
        "Cells that moved",
        "moved",
        table("Worse ones first; each run at the candidate_k it chose", columns, rows, numeric=(1, 2, 4, 5, 6)),
    )


def _changed_section(old: Sequence[Row], new: Sequence[Row]) -> Html | None:
    pairs = changed_verdicts(old, new)
    if not pairs:
        return None
    rows = [
        (b["policy"], b["layer"], b["kv_head"], f"{a['verdict']} → {b['verdict']}", f"{figure(a['candidate_k'], 'd')} → {figure(b['candidate_k'], 'd')}")
        for a, b in pairs
    ]  # fmt: skip
    return section("Verdicts that changed", "changed", table("Verdicts that changed", ("policy", "layer", "head", "verdict", "candidate_k"), rows, numeric=(1, 2, 4)))  # fmt: skip


def _differences(baseline: RunTables, now: RunTables) -> list[Html]:
    names = sorted(set(baseline.config) | set(now.config))
    differ = [name for name in names if baseline.config.get(name) != now.config.get(name)]
    if not differ:
        return [tag("p", "Both runs have the same configuration.", class_="quiet")]
    return [tag("p", f"The runs differ in: {', '.join(differ)}.", class_="warning", role="note")]


def _side(word: str, run: RunTables) -> Html:
    summaries = ordered_policies(policy_summaries(run.rows("selection")))
    return tag("div", tag("h3", f"{word}: {run.run_id}"), policies_table(summaries, run.rows("selection")), table("Identity", ("what", "value"), identity(run), class_="plain"))  # fmt: skip


def _keys(rows: Iterable[Row]) -> set[tuple[str, int, int]]:
    return {_key(row) for row in rows}


def _key(row: Row) -> tuple[str, int, int]:
    return row["policy"], row["layer"], row["kv_head"]
