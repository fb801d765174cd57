"""Quality against cost: all policies and candidate_ks of a run in one figure, with the Pareto fronts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from polykv.report.frontier import Point, front
from polykv.report.markup import Html, between, figure
from polykv.report.plots import ALARM, INK, MUTED, PAPER, look, new_figure, style, to_svg

# Relative errors below this are drawn at it: exact at full candidate_k has none, and the axis is logarithmic.
ERROR_FLOOR = 1e-3


class _Axis(NamedTuple):
    """A cost axis: its label, a point's place on it, what is better when small, and how ticks read."""

    label: str
    place: Callable[[Point], float]
    cost: Callable[[Point], float]
    tick: str


_AXES = (
    _Axis("bytes per token, % of float16", lambda p: p.percent_of_float16, lambda p: p.percent_of_float16, "{:g} %"),
    _Axis(
        "decode reduction: values seen / values decoded",
        lambda p: p.decode_reduction,
        lambda p: -p.decode_reduction,
        "{:g}×",
    ),
)


def quality_chart(found: Sequence[Point], policies: Sequence[str], limit: float | None) -> Html:
    """Relative error against bytes (left) and decode reduction (right); `limit` draws its gate."""
    notes: dict[str, str] = {}
    with style():
        drawn = new_figure(10.6, 4.4)
        panels = drawn.subplots(1, 2, sharey=True)
        for axes, axis in zip(panels, _AXES, strict=True):
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlabel(axis.label)
            _front_line(axes, front(found, axis.cost), axis.place)
            for index, policy in enumerate(policies):
                _policy(axes, [p for p in found if p.policy == policy], index, axis.place, notes)
            limit_line(axes, limit)
            _round_ticks(axes, [axis.place(p) for p in found], axis.tick)
        panels[0].set_ylabel("relative error of the attention output")
        percent_ticks(panels[0])
        handles = panels[1].get_legend_handles_labels()
        drawn.legend(*handles, loc="outside upper center", ncols=7, fontsize=9.5, labelcolor=INK)
        title = "Relative error of the attention output against bytes per token and against decode reduction"
        return to_svg(drawn, "quality", title, notes)


def point_words(point: Point) -> str:
    """A point's figures as text."""
    k = f"{point.candidate_k} (full)" if point.is_full else str(point.candidate_k)
    return (
        f"{point.policy}, candidate_k {k}: relative error {figure(point.error, '.2e')} "
        f"{between(point.low, point.high, '.2e')}; {point.percent_of_float16:.0f} % of float16's bytes; "
        f"decodes 1 in {point.decode_reduction:.1f}; {point.n_pass} of {point.n_cells} cells pass"
    )


def limit_line(axes: Any, limit: float | None) -> None:
    """A gate's limit across a panel with a logarithmic error axis."""
    if limit is not None and limit > 0:
        axes.axhline(limit, color=ALARM, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1, label="_limit")


def percent_ticks(axes: Any) -> None:
    """A logarithmic error axis in percent, from `ERROR_FLOOR` up."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, ERROR_FLOOR / 1.4), high * 1.1)
    ticks = round_steps(*axes.get_ylim())
    axes.set_yticks(ticks, [f"{100 * tick:g} %" for tick in ticks])
    axes.yaxis.minorticks_off()


def round_steps(low: float, high: float) -> list[float]:
    """At least three round numbers in [low, high] for a logarithmic axis, as coarse as that allows."""
    for bases in ((1,), (1, 2, 5), (1, 2, 3, 4, 5, 6, 8)):
        found = [base * 10.0**power for power in range(-6, 6) for base in bases]
        found = [step for step in found if low <= step <= high]
        if len(found) >= 3:
            break
    return found


def _policy(
    axes: Any, found: Sequence[Point], index: int, place: Callable[[Point], float], notes: dict[str, str]
) -> None:
    colour, marker, dashes = look(index)
    ordered = sorted(found, key=lambda p: p.candidate_k)
    line = [max(p.error, ERROR_FLOOR) for p in ordered]
    axes.plot([place(p) for p in ordered], line, color=colour, linestyle=dashes, linewidth=1.2, alpha=0.7)
    for point, y in zip(ordered, line, strict=True):
        x = place(point)
        if point.low is not None and point.high is not None:
            ends = [max(point.low, ERROR_FLOOR), max(point.high, ERROR_FLOOR)]
            axes.plot([x, x], ends, color=colour, linewidth=1.4, solid_capstyle="butt")
        gid = f"p{len(notes)}"
        notes[gid] = point_words(point)
        size = 8.0 if point.is_full else 5.5
        axes.plot([x], [y], marker, color=colour, gid=gid, markersize=size, mec=PAPER, mew=0.8)
    axes.plot([], [], marker, color=colour, linestyle=dashes, markersize=6, label=ordered[0].policy if ordered else "_")


def _front_line(axes: Any, best: Sequence[Point], place: Callable[[Point], float]) -> None:
    xs, ys = [place(p) for p in best], [max(p.error, ERROR_FLOOR) for p in best]
    axes.plot(xs, ys, color=MUTED, linewidth=7, alpha=0.3, solid_capstyle="round", zorder=1, label="Pareto front")


def _round_ticks(axes: Any, values: Sequence[float], spec: str) -> None:
    """A few round numbers instead of powers of ten."""
    if not values:
        return
    low, high = min(values) / 1.15, max(values) * 1.15
    ticks = round_steps(low, high) or [values[0]]
    axes.set_xlim(low, high)
    axes.set_xticks(ticks, [spec.format(tick) for tick in ticks])
    axes.minorticks_off()
