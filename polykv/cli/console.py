"""What the commands print: progress on standard error, results on standard output."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from polykv.receipts import pretty_json

# Without a terminal a line every few seconds keeps a log readable.
PLAIN_LINE_SECONDS = 5.0

OnProgress = Callable[[int, int, int], None]


def say(text: str = "") -> None:
    """A line of result."""
    click.echo(text)


def note(text: str) -> None:
    """A line about the work, on standard error."""
    click.echo(text, err=True)


def say_json(value: Any) -> None:
    """A result for machines."""
    click.echo(pretty_json(value), nl=False)


def say_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table for people; numbers to the right. Never cut: a terminal that is too narrow breaks the lines."""
    lengths = [max(map(len, texts)) for texts in zip(columns, *rows, strict=True)]
    console = Console(file=sys.stdout, width=max(160, sum(lengths) + 2 * len(lengths)), highlight=False, soft_wrap=True)
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numeric = all(_is_number(row[index]) for row in rows) if rows else False
        table.add_column(column, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)


@contextmanager
def progress(label: str, unit: str, quiet: bool = False) -> Iterator[OnProgress]:
    """A callback (done, failed, total): a bar on a terminal, plain lines without one, nothing when quiet."""
    if quiet:
        yield lambda done, failed, total: None
    elif sys.stderr.isatty():
        with _bar(label, unit) as advance:
            yield advance
    else:
        yield _plain_lines(label, unit)


@contextmanager
def _bar(label: str, unit: str) -> Iterator[OnProgress]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit + "{task.fields[failed]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(label, total=None, failed="")

        def advance(done: int, failed: int, total: int) -> None:
            bars.update(task, completed=done, total=total, failed=f", {failed} failed" if failed else "")

        yield advance


def _plain_lines(label: str, unit: str) -> OnProgress:
    began = last = time.monotonic()

    def advance(done: int, failed: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if total and (done == total or now - last >= PLAIN_LINE_SECONDS):
            last = now
            rate = done / max(now - began, 1e-9)
            left = f", about {(total - done) / rate:.0f} s left" if 0 < done < total else ""
            lost = f", {failed} failed" if failed else ""
            note(f"{label}: {done}/{total} {unit}{lost}{left}")

    return advance


def figure(value: float | int | None, spec: str = ".4f", unit: str = "") -> str:
    """A number as text, "–" when there is none."""
    return "–" if value is None else f"{value:{spec}}{unit}"


def size(n_bytes: float) -> str:
    """Bytes for people: 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(n_bytes) < 1000 or unit == "GB":
            return f"{n_bytes:.0f} B" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    raise ValueError(n_bytes)


def _is_number(text: str) -> bool:
    return text == "–" or re.fullmatch(r"[-+]?[\d,]*\.?\d+(e[-+]?\d+)? ?(×|%|[kMG]?B|[kM])?", text) is not None
