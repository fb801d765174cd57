"""The picture of a search: what every trial cost, the front of those that nothing beats, and the choice."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from polykv.errors import MissingExtraError

_BLUE, _GREY, _RED = "#0072b2", "#767676", "#d55e00"  # Okabe & Ito: told apart by all readers


def search_picture(trials: Sequence[Mapping[str, Any]], kl_limit: float | None) -> str:
    """An SVG of trials (rows of `schemas.SEARCH`): bytes a token across, KL in nats up, both logarithmic.

    kl_limit: what the search allowed (None: no line). Raises MissingExtraError without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("the picture of a search needs matplotlib: pip install 'polykv[report]'") from error
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xscale="log", yscale="log", xlabel="bytes per token, K and V of all layers", ylabel="KL to the exact model (nats a token)")  # fmt: skip
    best = sorted(front_of(trials), key=lambda row: row["bytes_per_token"])
    axes.plot(
        [r["bytes_per_token"] for r in best], [r["kl_mean"] for r in best], color=_GREY, lw=1, label="Pareto front"
    )
    for met, marker, label in ((True, "o", "meets the budget"), (False, "x", "misses it")):
        rows = [row for row in trials if row["meets_budget"] is met]
        if rows:
            places = [r["bytes_per_token"] for r in rows], [r["kl_mean"] for r in rows]
            axes.scatter(*places, color=_BLUE, marker=marker, label=label, zorder=3)
    for row in trials:
        words = f"{row['ratio_to_float16']:.1f}×, {row['ppl_increase']:+.2%}" + (" ← chosen" if row["is_best"] else "")
        place = (row["bytes_per_token"], row["kl_mean"])
        axes.annotate(words, place, xytext=(6, 5), textcoords="offset points", fontsize=8)
    if kl_limit is not None:
        axes.axhline(kl_limit, color=_RED, lw=1, ls="--", label=f"KL allowed, {kl_limit:.4g}")
    axes.legend(fontsize=8)
    out = io.BytesIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue().decode()


def front_of(trials: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The trials that no other one beats in both bytes and KL."""
    return [
        row
        for row in trials
        if not any(
            other["bytes_per_token"] <= row["bytes_per_token"]
            and other["kl_mean"] <= row["kl_mean"]
            and (other["bytes_per_token"], other["kl_mean"]) != (row["bytes_per_token"], row["kl_mean"])
            for other in trials
        )
    ]
