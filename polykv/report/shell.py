"""What is around every page: head, style, script. Nothing in it reaches for the network."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources

from polykv import __version__
from polykv.report.markup import Html, join, tag

# Scripts and styles stand in the file itself; anything else is refused by the browser.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def whole_page(title: str, parts: Iterable[Html | None]) -> str:
    """A complete HTML document of the parts given; None is left out."""
    style, script = Html(_asset("page.css")), Html(_asset("page.js"))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", style),
    )
    body = tag(
        "body",
        tag("a", "Skip to the findings", href="#main", class_="skip"),
        tag("button", "Dark", id="theme", type="button", hidden=True),
        tag("main", join(parts, "\n"), id="main"),
        tag("footer", f"polykv {__version__}. This file is complete: it loads nothing from anywhere."),
        tag("div", id="tip", role="tooltip", hidden=True),
        tag("script", script),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _asset(name: str) -> str:
    return resources.files("polykv.report").joinpath("assets", name).read_text(encoding="utf-8")
