"""Layer × head heat maps as tables: each cell says its figures to a mouse, a keyboard and a screen reader.

Colour is never alone: verdicts have a sign, budgets and cosines their number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from polykv.report.markup import Html, between, figure, tag

SIGNS = {"pass": "✓", "inconclusive": "?", "fail": "✕", "insensitive": "○", "invalid": "!", "failed": "!"}
WORDS = {
    "pass": "pass: the whole 95 % interval meets every limit",
    "inconclusive": "inconclusive: the interval holds a limit; more text decides",
    "fail": "fail: at least one limit is missed by the whole interval",
    "insensitive": "insensitive: the head does not react to its keys or values, so passing means nothing",
    "invalid": "invalid: the exact control failed",
    "failed": "failed: the job could not be done",
}
DEFAULT_COSINE = 0.999
N_BUDGET_SHADES = 9
_DISTANCES = (0.1, 1.0, 10.0, 100.0)
# What a line of cells may take of the page's width, and what lies between two cells.
_PAGE_PIXELS, _GAP_PIXELS = 970, 2

Row = Mapping[str, Any]


class Shade(NamedTuple):
    """How one cell looks: CSS class and the short text in it."""

    css: str
    text: str


def verdict_shade(row: Row) -> Shade:
    return Shade(f"v-{row['verdict']}", SIGNS.get(row["verdict"], "!"))


def budget_shade(ks: Sequence[int]) -> Callable[[Row], Shade]:
    """Shade by chosen candidate_k among the `ks` swept: the darker, the more must be decoded."""

    def shade(row: Row) -> Shade:
        k = row["candidate_k"]
        return Shade("none", "–") if k is None else Shade(f"k-{_budget_step(k, ks)}", str(k))

    return shade


def cosine_shade(limit: float) -> Callable[[Row], Shade]:
    """Shade by the confirm cosine's distance to 1 in multiples of the gate's: 0.1, 1, 10, 100."""

    def shade(row: Row) -> Shade:
        cosine = row["confirm_output_cosine_mean"]
        if cosine is None:
            return Shade("none", "–")
        step = bisect_left(_DISTANCES, (1.0 - cosine) / max(1.0 - limit, 1e-9))
        return Shade(f"c-{step}", f"{cosine:.4f}".removeprefix("0"))

    return shade


def cell_map(
    title: str,
    rows: Iterable[Row],
    shade: Callable[[Row], Shade],
    words: Callable[[Row], str],
    line: Callable[[Row], Any] = lambda row: row["kv_head"],
    corner: str = "head",
) -> Html:
    """A map with layers across; `line` says which line (by default the KV head) a row stands on. One row a place."""
    by_cell = {(line(row), row["layer"]): row for row in rows}
    lines = sorted({place for place, _ in by_cell})
    layers = sorted({layer for _, layer in by_cell})
    head_row = tag(
        "tr", tag("th", corner, scope="col", class_="corner"), *(tag("th", layer, scope="col") for layer in layers)
    )
    first = (lines[0], layers[0]) if lines else None
    body = [
        tag(
            "tr",
            tag("th", place, scope="row"),
            *(_cell(by_cell.get((place, layer)), shade, words, (place, layer) == first) for layer in layers),
        )
        for place in lines
    ]
    width = max(15, min(44, _PAGE_PIXELS // max(1, len(layers)) - _GAP_PIXELS))
    size = "wide" if width >= 40 else "middle" if width >= 26 else "narrow"
    grid = tag(
        "table",
        tag("caption", title, tag("span", " layers →", class_="axis")),
        tag("thead", head_row),
        tag("tbody", *body),
        class_=f"map {size}",
        role="grid",
        style=f"--w:{width}px",
    )
    return tag("div", grid, class_="scroll")


def selection_words(row: Row) -> str:
    """A cell's figures as text, one clause a line of its tooltip."""
    k = figure(row["candidate_k"], "d")
    full = " (full)" if row["candidate_k"] is not None and row["is_full"] else ""
    clauses = [
        f"layer {row['layer']}, head {row['kv_head']}, {row['policy']}: {row['verdict']}",
        f"candidate_k {k}{full}"
        if row["candidate_k"] is not None
        else f"no candidate_k passes; shown at {figure(row['shown_candidate_k'], 'd')}",
        f"cosine {figure(row['confirm_output_cosine_mean'], '.5f')} "
        f"{between(row['confirm_output_cosine_low'], row['confirm_output_cosine_high'], '.5f')}",
        f"relative error {figure(row['confirm_output_relative_error_mean'], '.4f')} "
        f"{between(row['confirm_output_relative_error_low'], row['confirm_output_relative_error_high'], '.4f')}",
        f"attention KL {figure(row['confirm_attention_kl_mean'], '.1e')} nats",
    ]
    if row["window_only_output_cosine_mean"] is not None:
        clauses.append(f"sinks and window alone reach cosine {row['window_only_output_cosine_mean']:.4f}")
    clauses.append(f"decodes 1 in {figure(row['decode_reduction'], '.1f')}")
    clauses.append(f"{figure(row['bytes_per_token'], '.0f')} bytes per token")
    if row["verdict_reason"]:
        clauses.append(f"reason: {row['verdict_reason']}")
    return "; ".join(clauses)


def legend(items: Iterable[tuple[str, str, str]]) -> Html:
    """Items (CSS class, sign, meaning) under a map."""
    return tag(
        "ul", *(tag("li", tag("span", sign, class_=f"key {css}"), f" {words}") for css, sign, words in items), class_="legend"
    )  # fmt: skip


def verdict_legend(found: Iterable[str]) -> Html:
    """The verdicts that occur, with what they mean."""
    seen = set(found)
    return legend((f"v-{name}", SIGNS[name], words) for name, words in WORDS.items() if name in seen)


def budget_legend(ks: Sequence[int]) -> Html:
    """The budgets swept, and no budget."""
    shades = [(f"k-{_budget_step(k, ks)}", str(k), "") for k in ks]
    return legend([*shades, ("none", "–", "no swept candidate_k passes on the split select")])


def cosine_legend(limit: float) -> Html:
    """The steps of distance to 1, blue where the limit is met."""
    edges = [1.0 - step * (1.0 - limit) for step in _DISTANCES]
    texts = [f"≥ {_nines(edge)}" for edge in edges] + [f"< {_nines(edges[-1])}"]
    return legend((f"c-{i}", "", text + (" (limit)" if i == 1 else "")) for i, text in enumerate(texts))


def _nines(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")


def _budget_step(k: int, ks: Sequence[int]) -> int:
    place = bisect_left(sorted(ks), k)
    return round(place * (N_BUDGET_SHADES - 1) / max(1, len(ks) - 1)) if len(ks) > 1 else N_BUDGET_SHADES // 2


def _cell(row: Row | None, shade: Callable[[Row], Shade], words: Callable[[Row], str], first: bool) -> Html:
    if row is None:
        return tag("td", class_="empty")
    look = shade(row)
    return tag("td", tag("span", look.text, aria_hidden="true"), class_=look.css, title=words(row), tabindex=0 if first else -1)  # fmt: skip
