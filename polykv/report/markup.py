"""HTML as text that is safe to join: whatever is not `Html` already is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

_VOID = ("br", "meta", "link", "input", "col")


class Html(str):
    """Text that is HTML already."""


def escape(value: Any) -> Html:
    """`value` as HTML: itself when it is `Html`, "–" for None, else its text escaped."""
    if isinstance(value, Html):
        return value
    return Html("–" if value is None else html.escape(str(value)))


def tag(name: str, /, *children: Any, **attributes: Any) -> Html:
    """One element. `class_` → class, `aria_label` → aria-label; None and False leave an attribute out."""
    shown = "".join(_attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    if name in _VOID:
        return Html(f"<{name}{shown}>")
    return Html(f"<{name}{shown}>{join(children)}</{name}>")


def join(parts: Iterable[Any], between: str = "") -> Html:
    """Parts one after the other, each escaped where needed."""
    return Html(between.join(escape(part) for part in parts if part is not None))


def table(
    caption: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], numeric: Iterable[int] = (), **attributes: Any
) -> Html:
    """A data table; the first cell of a row is its header; `numeric` columns stand to the right."""
    right = set(numeric)
    head = [tag("th", name, scope="col", class_="n" if i in right else None) for i, name in enumerate(columns)]
    body = [
        tag("tr", tag("th", row[0], scope="row"), *(_cell(v, i in right) for i, v in enumerate(row[1:], start=1)))
        for row in rows
    ]
    shown = tag("table", tag("caption", caption), tag("thead", tag("tr", *head)), tag("tbody", *body), **attributes)
    return tag("div", shown, class_="scroll", tabindex=0, role="region", aria_label=caption)


def details(summary: str, *children: Any, open_: bool = False) -> Html:
    """A part that opens on demand."""
    return tag("details", tag("summary", summary), *children, open=open_)


def section(title: str, ident: str, *children: Any) -> Html:
    """A section with its heading."""
    return tag("section", tag("h2", title, id=f"{ident}-title"), *children, id=ident, aria_labelledby=f"{ident}-title")


def figure(value: float | int | None, spec: str = ".4f") -> str:
    """A number as text, "–" when there is none."""
    return "–" if value is None else f"{value:{spec}}"


def between(low: float | None, high: float | None, spec: str = ".4f") -> str:
    """An interval as text, nothing when there is none."""
    return "" if low is None or high is None else f"[{low:{spec}}, {high:{spec}}]"


def _cell(value: Any, numeric: bool) -> Html:
    return tag("td", value, class_="n" if numeric else None)


def _attribute(name: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'
