"""A policy search in pictures and tables: what every trial cost, the front that nothing beats, the choice."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from polykv.report.markup import Html, details, figure, section, table, tag
from polykv.report.plots import ALARM, GRID, INK, SERIES, matplotlib_modules, new_figure, style, to_svg

Row = Mapping[str, Any]
_SIZE = (7.4, 4.2)
# For a file of its own: Okabe & Ito's colours, told apart by all readers.
_PLAIN = {INK: "#000000", GRID: "#767676", SERIES[0]: "#0072b2", ALARM: "#d55e00"}


def search_picture(trials: Sequence[Row], kl_limit: float | None) -> str:
    """An SVG file of trials (rows of `schemas.SEARCH`): bytes a token across, KL in nats up, both logarithmic.

    kl_limit: what the search allowed (None: no line). Raises MissingExtraError without matplotlib.
    """
    _, figure_class = matplotlib_modules()
    drawn = figure_class(figsize=_SIZE, layout="constrained")
    _draw(drawn.add_subplot(), trials, kl_limit, _PLAIN)
    out = io.BytesIO()
    drawn.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue().decode()


def search_section(trials: Sequence[Row], sensitivities: Sequence[Row]) -> Html | None:
    """The search of a run; None when it made none."""
    if not trials:
        return None
    with style():
        drawn = new_figure(*_SIZE)
        _draw(drawn.add_subplot(), trials, None, {colour: colour for colour in _PLAIN})
        plot = to_svg(drawn, "search", "KL to the exact model against bytes per token, every trial", {})
    columns = ("trial", "B/token", "× float16", "predicted KL", "KL", "ΔPPL, %", "in budget")
    layers = (
        "layer", "head", "stream", "true KL", "expected KL", "output error", "1 − cosine", "relative MSE", "B/vector"
    )  # fmt: skip
    return section(
        "The search",
        "search",
        tag("p", "Each mark is a sharing of bytes over all heads, judged in the model on split select, all layers compressed at once."),
        plot,
        details("The same as a table", table("Trials", columns, [_trial(row) for row in trials], range(1, 6))),
        details("How much each layer's keys and values matter", table("Sensitivities", layers, [_layer(row) for row in sensitivities], range(3, 9))),
    )  # fmt: skip


def front_of(trials: Sequence[Row]) -> list[Row]:
    """The trials that no other one beats in both bytes and KL."""

    def figures(row: Row) -> tuple[float, float]:
        return row["bytes_per_token"], row["kl_mean"]

    def beaten(row: Row) -> bool:
        own = figures(row)
        return any(other != own and other[0] <= own[0] and other[1] <= own[1] for other in map(figures, trials))

    return [row for row in trials if not beaten(row)]


def _draw(axes: Any, trials: Sequence[Row], kl_limit: float | None, colours: Mapping[str, str]) -> None:
    axes.set(xscale="log", yscale="log", xlabel="bytes per token, K and V of all layers", ylabel="KL to the exact model (nats a token)")  # fmt: skip
    best = sorted(front_of(trials), key=lambda row: row["bytes_per_token"])
    line = [row["bytes_per_token"] for row in best], [row["kl_mean"] for row in best]
    axes.plot(*line, color=colours[GRID], lw=2, label="Pareto front", zorder=1)
    for met, marker, label in ((True, "o", "meets the budget"), (False, "x", "misses it")):
        rows = [row for row in trials if row["meets_budget"] is met]
        if rows:
            places = [row["bytes_per_token"] for row in rows], [row["kl_mean"] for row in rows]
            axes.plot(*places, color=colours[SERIES[0]], marker=marker, ls="none", label=label, zorder=3)
    for row in (row for row in trials if row["is_best"]):
        words = f"chosen: {row['ratio_to_float16']:.1f}×, {row['ppl_increase']:+.2%}"
        place = (row["bytes_per_token"], row["kl_mean"])
        axes.annotate(words, place, xytext=(8, 8), textcoords="offset points", color=colours[INK])
    if kl_limit is not None:
        axes.axhline(kl_limit, color=colours[ALARM], lw=1, ls="--", label=f"KL allowed, {kl_limit:.4g}")
    axes.legend(labelcolor=colours[INK])


def _trial(row: Row) -> tuple[Any, ...]:
    return (
        f"{row['trial']}{' (chosen)' if row['is_best'] else ''}",
        figure(row["bytes_per_token"], ",.0f"),
        figure(row["ratio_to_float16"], ".2f"),
        figure(row["predicted_kl"], ".4g"),
        figure(row["kl_mean"], ".4g"),
        figure(100 * row["ppl_increase"], "+.2f"),
        "yes" if row["meets_budget"] else "no",
    )


def _layer(row: Row) -> tuple[Any, ...]:
    figures = ("true_kl", "expected_kl", "output_error", "output_cosine_loss", "relative_mse")
    return (
        row["layer"],
        "all" if row["kv_head"] is None else row["kv_head"],
        row["stream"],
        *(figure(row[name], ".3g") for name in figures),
        figure(row["bytes_per_vector"], ".1f"),
    )
