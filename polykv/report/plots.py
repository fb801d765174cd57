"""Matplotlib figures as inline SVG whose colours are the page's own CSS variables.

Drawn without pyplot or global state; the same figure gives the same text. Artists are drawn in
stand-in colours (`INK`, `SERIES` …) that become `var(--…)`, so one drawing serves light, dark
and print; an artist whose gid is in `notes` gets that text as its tooltip.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping
from typing import Any

from polykv.errors import MissingExtraError
from polykv.report.markup import Html, tag

INK, MUTED, GRID, PAPER, ALARM = "#010101", "#010102", "#010103", "#010104", "#010105"
SERIES = tuple(f"#0102{index:02x}" for index in range(1, 9))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES = (
    "-",
    (0, (5, 2)),
    (0, (1, 1.5)),
    (0, (6, 2, 1, 2)),
    (0, (3, 1.5)),
    (0, (8, 2)),
    (0, (2, 2)),
    (0, (4, 1, 1, 1)),
)
_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", PAPER: "--paper", ALARM: "--alarm"}
_VARIABLES |= {colour: f"--series-{index}" for index, colour in enumerate(SERIES, start=1)}

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "polykv",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
}


def look(index: int) -> tuple[str, str, Any]:
    """(colour, marker, dashes) of the policy of this number; eight differ in all three."""
    place = index % len(SERIES)
    return SERIES[place], _MARKERS[place], _DASHES[place]


def matplotlib_modules() -> tuple[Any, Any]:
    """(matplotlib, its Figure class); raises MissingExtraError naming the command that installs it."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "the report's plots need matplotlib, which is not installed: run `make setup`, or "
            "pip install 'polykv[analysis]'"
        ) from error
    return matplotlib, Figure


def style() -> Any:
    """A context in which figures are drawn and saved in this report's style."""
    matplotlib, _ = matplotlib_modules()
    return matplotlib.rc_context(_STYLE)


def new_figure(width: float, height: float) -> Any:
    """An empty figure, inches; to be used inside `style()`."""
    _, figure = matplotlib_modules()
    return figure(figsize=(width, height), layout="constrained")


def to_svg(drawn: Any, name: str, title: str, notes: Mapping[str, str]) -> Html:
    """The figure as an inline SVG called `title`; `name` keeps its ids apart from other figures'."""
    buffer = io.StringIO()
    drawn.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for gid, note in notes.items():
        opening = f'<g id="{gid}">'
        text = text.replace(opening, f"{opening}<title>{html.escape(note)}</title>", 1)
    text = _themed(_named_apart(text, name))
    text = re.sub(r"<svg[^>]*?viewBox=\"([^\"]+)\"[^>]*>", _opening(title), text, count=1)
    return tag("div", Html(text), class_="plot scroll", tabindex=0, role="group", aria_label=title)


def _opening(title: str) -> str:
    shown = html.escape(title).replace("\\", r"\\")
    return rf'<svg xmlns="http://www.w3.org/2000/svg" viewBox="\1" role="img" aria-label="{shown}">'


def _named_apart(text: str, name: str) -> str:
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    text = text.replace("xlink:href", "href")
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)


def _themed(text: str) -> str:
    text = re.sub(r"#01[0-9a-f]{4}\b", lambda found: _colour(found.group()), text)
    return re.sub(r"(font: [^;\"]*?)'DejaVu Sans'[^;\"]*", r"\1var(--font)", text)


def _colour(stand_in: str) -> str:
    variable = _VARIABLES.get(stand_in)
    return stand_in if variable is None else f"var({variable})"
