"""Error against candidate_k, cell by cell: where more decoded values help, and where they do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from polykv.report.charts import ERROR_FLOOR, limit_line, percent_ticks
from polykv.report.markup import Html, between, figure
from polykv.report.plots import look, new_figure, style, to_svg

N_WORST = 10
_COLUMNS = 5
_TICK_RATIO = 2.5

CellKey = tuple[int, int]


def worst_cells(selection: Iterable[Mapping[str, Any]], policy: str, n: int = N_WORST) -> list[Mapping[str, Any]]:
    """The policy's selection rows with the largest relative error on confirm; unmeasured cells come first."""
    rows = [row for row in selection if row["policy"] == policy]

    def badness(row: Mapping[str, Any]) -> tuple[float, int, int]:
        error = row["confirm_output_relative_error_mean"]
        return (-float("inf") if error is None else -error, row["layer"], row["kv_head"])

    return sorted(rows, key=badness)[:n]


def curves_chart(
    cells: Sequence[CellKey], results: Iterable[Mapping[str, Any]], policies: Sequence[str], limit: float | None
) -> Html:
    """One panel a cell (layer, kv_head), a curve with its 95 % band a policy, on split confirm."""
    rows = _confirm_rows(cells, results)
    notes: dict[str, str] = {}
    columns = min(_COLUMNS, len(cells))
    lines = -(-len(cells) // columns)
    with style():
        drawn = new_figure(max(2.12 * columns, 5.0), 2.2 * lines + 0.7)
        grid = drawn.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
        for axes in grid.flat[len(cells) :]:
            axes.set_visible(False)
        for axes, (layer, kv_head) in zip(grid.flat, cells, strict=False):
            axes.set_title(f"layer {layer}, head {kv_head}")
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.tick_params(labelsize=8.5)
            for index, policy in enumerate(policies):
                _curve(axes, rows.get((layer, kv_head, policy), []), index, notes)
            limit_line(axes, limit)
        first = grid.flat[0]
        _budget_ticks(first, sorted({row["candidate_k"] for found in rows.values() for row in found}))
        percent_ticks(first)
        drawn.supxlabel("candidate_k: values decoded per query", fontsize=10)
        drawn.supylabel("relative error", fontsize=10)
        handles = [_handle(first, index) for index in range(len(policies))]
        drawn.legend(handles, list(policies), loc="outside upper center", ncols=7, fontsize=9.5)
        return to_svg(drawn, "curves", "Relative error against candidate_k, cell by cell", notes)


def _confirm_rows(
    cells: Sequence[CellKey], results: Iterable[Mapping[str, Any]]
) -> dict[tuple[int, int, str], list[Mapping[str, Any]]]:
    wanted = set(cells)
    found: dict[tuple[int, int, str], list[Mapping[str, Any]]] = {}
    for row in results:
        measured = row["status"] == "ok" and row["output_relative_error_mean"] is not None
        candidate = row["split"] == "confirm" and row["row_kind"] == "candidate"
        if measured and candidate and (row["layer"], row["kv_head"]) in wanted:
            found.setdefault((row["layer"], row["kv_head"], row["policy"]), []).append(row)
    return {key: sorted(rows, key=lambda row: row["candidate_k"]) for key, rows in found.items()}


def _curve(axes: Any, rows: Sequence[Mapping[str, Any]], index: int, notes: dict[str, str]) -> None:
    colour, marker, dashes = look(index)
    line = [(row["candidate_k"], max(row["output_relative_error_mean"], ERROR_FLOOR)) for row in rows]
    axes.plot(*zip(*line, strict=True) if line else ([], []), color=colour, linestyle=dashes, linewidth=1.3)
    band = [row for row in rows if row["output_relative_error_low"] is not None]
    axes.fill_between(
        [row["candidate_k"] for row in band],
        [max(row["output_relative_error_low"], ERROR_FLOOR) for row in band],
        [max(row["output_relative_error_high"], ERROR_FLOOR) for row in band],
        color=colour,
        alpha=0.16,
        linewidth=0,
    )
    for row, (x, y) in zip(rows, line, strict=True):
        gid = f"c{len(notes)}"
        notes[gid] = _words(row)
        axes.plot([x], [y], marker, color=colour, markersize=4, gid=gid)


def _words(row: Mapping[str, Any]) -> str:
    return (
        f"{row['policy']}, layer {row['layer']}, head {row['kv_head']}, candidate_k {row['candidate_k']}: relative "
        f"error {figure(row['output_relative_error_mean'], '.2e')} "
        f"{between(row['output_relative_error_low'], row['output_relative_error_high'], '.2e')}, "
        f"cosine {figure(row['output_cosine_mean'])}, {row['verdict']}"
    )


def _handle(axes: Any, index: int) -> Any:
    colour, marker, dashes = look(index)
    return axes.plot([], [], marker, color=colour, linestyle=dashes, markersize=5)[0]


def _budget_ticks(axes: Any, ks: Sequence[int]) -> None:
    few: list[int] = []
    for k in reversed(ks):  # the largest always; then each that leaves room for the one above it
        if not few or k <= few[-1] / _TICK_RATIO:
            few.append(k)
    axes.set_xticks(few, [str(k) for k in few])
    axes.minorticks_off()
