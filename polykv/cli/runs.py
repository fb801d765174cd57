"""`polykv show` and `polykv runs`: what a run found, and which runs there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from polykv.cli.console import note, say, say_json, say_table, size
from polykv.cli.findings import say_findings
from polykv.cli.options import json_option
from polykv.errors import InputError
from polykv.listing_stages import Pruned, RunLine, list_runs, prune_runs
from polykv.stages import read_findings

DAMAGE_EXIT = 3
MODEL_LETTERS = 26
DETAIL_LETTERS = 56


@click.command()
@click.argument("run")
@click.option("--all", "all_cells", is_flag=True, help="Every cell, however many.")
@json_option
def show(run: str, all_cells: bool, as_json: bool) -> None:
    """Print again what a RUN directory found.

    \b
    polykv show runs/demo
    """
    found = read_findings(run)
    if as_json:
        say_json({**asdict(found), "verdict": found.verdict})
        return
    say(f"run {found.run_id} ({found.status})")
    say()
    say_findings(found, all_cells=all_cells)


@click.command()
@click.argument("folder", default="runs")
@click.option(
    "--prune", is_flag=True, help="Delete the part files of complete runs; their tables, artifacts and run.json stay."
)
@click.option("--dry-run", is_flag=True, help="With --prune: say what would be freed; delete nothing.")
@json_option
def runs(folder: str, prune: bool, dry_run: bool, as_json: bool) -> int:
    """List the runs in a FOLDER: state, verdict, size.

    Part files are what a resumed run goes on from. A complete run does not need them any more, but the same
    command given again would compute it anew.

    \b
    polykv runs
    polykv runs runs --prune --dry-run
    """
    if dry_run and not prune:
        raise InputError("--dry-run goes with --prune; a list alone changes nothing")
    if prune:
        return _say_pruned(prune_runs(folder, dry_run), dry_run, as_json)
    found = list_runs(folder)
    if as_json:
        say_json([asdict(line) for line in found])
    else:
        _say_runs(folder, found)
    return 0


def _say_runs(folder: str, found: Sequence[RunLine]) -> None:
    if not found:
        say(f"no run in {folder}; polykv calibrate --store STORE --out {folder}/NAME makes one")
        return
    columns = ("run", "kind", "state", "verdict", "model", "last started", "size", "parts", "what it says")
    rows = [
        [
            line.name,
            line.kind or "–",
            line.status,
            line.verdict or "–",
            _clipped(line.model_id or "–", MODEL_LETTERS),
            (line.started_at or "–").replace("T", " ")[: len("2026-01-01 00:00")],
            size(line.n_bytes),
            size(line.parts_bytes),
            "" if line.status == "damaged" else _clipped(line.detail, DETAIL_LETTERS),
        ]
        for line in found
    ]
    say_table("", columns, rows)
    for line in found:
        if line.status == "damaged":
            note(f"{line.name}: {line.detail}")
        elif line.status in ("killed", "interrupted", "failed"):
            note(f"{line.name} is {line.status}: the command that started it goes on where it stopped")


def _clipped(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "…"


def _say_pruned(found: Sequence[Pruned], dry_run: bool, as_json: bool) -> int:
    kept = [one for one in found if one.problem]
    freed = sum(one.n_bytes for one in found)
    if as_json:
        say_json({"dry_run": dry_run, "freed_bytes": 0 if dry_run else freed, "runs": [asdict(one) for one in found]})
    else:
        for one in found:
            if not one.problem:
                say(f"{one.name}: {size(one.n_bytes)} of parts {'would be deleted' if dry_run else 'deleted'}")
        say(f"{size(freed)} {'would be freed; nothing was deleted' if dry_run else 'freed'}")
    for one in kept:
        note(f"{one.name}: kept: {one.problem}")
    return DAMAGE_EXIT if kept else 0
