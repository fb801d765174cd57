"""`polykv tables`: what the columns of the Parquet tables mean, and the page that documents them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import asdict

import click

from polykv.cli.console import say, say_json, say_table
from polykv.cli.options import json_option
from polykv.errors import InputError
from polykv.schemas import TABLES, TableSchema

_PURPOSE = {
    "results": "Everything a sweep measured: one row per split, cell, policy and candidate_k, failed ones included.",
    "controls": "Replays whose outcome is known: one row per split, cell and control.",
    "selection": "What was decided: one row per cell and policy, candidate_k chosen on select, verdict on confirm.",
    "gonogo": "The sparse dictionary against its rivals: one row per layer, stream, head and codec configuration.",
    "certify": "Perplexity in the model itself: one row per policy and slice (all, document, position bucket, passage).",
    "search": "A policy search's trace: one row per sharing of bytes that the model judged.",
    "sensitivity": "What a search knows of the layers: one row per layer and stream, proxies beside the true KL.",
}
_KIND_WORDS = {"blockers": "list of (gate, value, limit)"}


@click.command()
@click.argument("name", required=False)
@click.option("--markdown", is_flag=True, help="Print the page of documentation, all tables.")
@json_option
def tables(name: str | None, markdown: bool, as_json: bool) -> None:
    """Say what every column of a table means: unit, kind, and when it is null.

    \b
    polykv tables
    polykv tables selection
    polykv tables --markdown > data/docs/tables.md
    """
    if markdown:
        say(tables_page().rstrip("\n"))
        return
    chosen = [_table(name)] if name else list(TABLES.values())
    if as_json:
        say_json([asdict(table) for table in chosen])
    elif name is None:
        rows = [[table.name, str(table.version), str(len(table.columns)), _PURPOSE[table.name]] for table in chosen]
        say_table("", ("table", "version", "columns", "what it holds"), rows)
        say()
        say("polykv tables NAME tells every column; each table is RUN/NAME.parquet")
    else:
        _say_columns(chosen[0])


def tables_page() -> str:
    """The documentation of all tables as Markdown."""
    parts = [
        "# The tables, column by column",
        "This page is written by `polykv tables --markdown` from the declarations that the tables themselves are written "
        "by; a test holds it to them.",
        "Every table is a Parquet file of the run directory (`RUN/results.parquet`). Its name and schema version stand in "
        "the file's metadata under `polykv_table` and `polykv_schema_version`. Floats are doubles; NaN and infinity are "
        "never stored: a figure that does not exist is null, and the last column says when. Rows are sorted by the key. "
        "Columns that an older version did not have read as null through `polykv query`.",
    ]
    for table in TABLES.values():
        parts += [f"## {table.name}", _PURPOSE[table.name], f"Version {table.version}; key: {', '.join(table.key)}."]
        parts.append("\n".join(_lines(table)))
    return "\n\n".join(parts) + "\n"


def _table(name: str) -> TableSchema:
    if name in TABLES:
        return TABLES[name]
    near = difflib.get_close_matches(name, TABLES, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InputError(f"there is no table {name!r}{hint} (tables: {', '.join(TABLES)})")


def _say_columns(table: TableSchema) -> None:
    say(_PURPOSE[table.name])
    say(f"version {table.version}, key: {', '.join(table.key)}")
    say()
    width = max(len(column.name) for column in table.columns)
    for column in table.columns:
        unit = f" ({column.unit})" if column.unit not in ("", "1") else ""
        null = "" if column.null_when == "never" else f"; null when {column.null_when}"
        say(f"{column.name:{width}}  {_KIND_WORDS.get(column.kind, column.kind)}{unit}: {column.meaning}{null}")


def _lines(table: TableSchema) -> Sequence[str]:
    head = ["| column | kind | unit | meaning | null when |", "|---|---|---|---|---|"]
    return head + [
        f"| `{c.name}` | {_KIND_WORDS.get(c.kind, c.kind)} | {_escaped(c.unit) or '–'} | {_escaped(c.meaning)} | "
        f"{_escaped(c.null_when)} |"
        for c in table.columns
    ]


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
