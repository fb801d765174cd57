"""`polykv query`: named questions and SQL over a run's tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from polykv.cli.console import note, say, say_json, say_table
from polykv.cli.options import quiet_option
from polykv.errors import InputError
from polykv.receipts import pretty_json
from polykv.storage.atomic import write_bytes
from polykv.storage.queries import Answer, ask, named_view
from polykv.storage.run import RunDirectory
from polykv.storage.views import VIEWS

FORMATS = ("csv", "json", "parquet")


def _format_option(name: str, text: str) -> Any:
    return click.option(f"--{name}", "formats", flag_value=name, multiple=True, help=text)


@click.command()
@click.argument("run")
@click.argument("name", required=False)
@click.option("--sql", help="Your own SQL; tables: results, selection, controls, gonogo, certify; views by their name.")
@click.option("--against", help="The baseline run of run_diff (its selection is baseline_selection).")
@_format_option("csv", "Give the rows as CSV.")
@_format_option("json", "Give the rows as JSON.")
@_format_option("parquet", "Give the rows as a Parquet file; needs --out.")
@click.option("-o", "--out", help="Write the rows to this file instead of printing them.")
@click.option("--limit", default=60, show_default=True, help="Rows printed for people; 0 for all. Files hold all.")
@quiet_option
def query(
    run: str,
    name: str | None,
    sql: str | None,
    against: str | None,
    formats: tuple[str, ...],
    out: str | None,
    limit: int,
    quiet: bool,
) -> None:
    """Ask the tables of a RUN: a named query, or your own SQL; without either, list the queries.

    \b
    polykv query runs/demo
    polykv query runs/demo worst_cells
    polykv query runs/tuesday run_diff --against runs/monday --json
    polykv query runs/demo --sql "select layer, min(candidate_k) from selection where verdict = 'pass' group by all"
    """
    form = _only_form(formats, out)
    if name and sql:
        raise InputError("a named query and --sql are both given; give one")
    if not name and sql is None:
        RunDirectory.open(run)  # a run that is not there has no questions either
        say_table("", ("query", "what it answers"), [[view.name, view.answers] for view in VIEWS.values()])
        return
    if limit < 0:
        raise InputError(f"--limit is {limit}, must be at least 0 (0 for all rows)")
    answer = ask(run, named_view(name).sql if name else str(sql), against)
    if form or out:
        _give(answer, form, out, quiet)
    else:
        _show(answer, limit, quiet)


def _only_form(formats: tuple[str, ...], out: str | None) -> str | None:
    if len(set(formats)) > 1:
        raise InputError(f"--{' and --'.join(dict.fromkeys(formats))} are all given; give one")
    form = formats[0] if formats else None
    if form is None and out is not None:
        form = Path(out).suffix.removeprefix(".")
        if form not in FORMATS:
            raise InputError(f"--out {out} ends in none of .csv, .json, .parquet: add --csv, --json or --parquet")
    if form == "parquet" and out is None:
        raise InputError("--parquet needs a file: add --out FILE")
    return form


def _give(answer: Answer, form: str | None, out: str | None, quiet: bool) -> None:
    if out is None:
        if form == "csv":
            click.echo(answer.to_csv(), nl=False)
        else:
            say_json(answer.to_dicts())
        return
    target = Path(out)
    if not target.parent.is_dir():
        raise InputError(f"{out} cannot be written: there is no folder {target.parent}")
    if form == "parquet":
        answer.write_parquet(target)
    else:
        text = answer.to_csv() if form == "csv" else pretty_json(answer.to_dicts())
        write_bytes(target, text.encode())
    if not quiet:
        note(f"wrote {out}: {answer.table.num_rows} rows")


def _show(answer: Answer, limit: int, quiet: bool) -> None:
    rows = answer.rows
    shown = rows[:limit] if limit else rows
    if not rows:
        say("no rows")
        return
    say_table("", answer.columns, [[_text(value) for value in row] for row in shown])
    if len(shown) < len(rows) and not quiet:
        note(f"{len(rows) - len(shown)} more rows; --limit 0 prints all")


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.5g}"
    return str(value)
