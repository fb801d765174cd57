"""`polykv show`: what a finished run found."""

from __future__ import annotations

from dataclasses import asdict

import click

from polykv.cli.console import say, say_json
from polykv.cli.findings import say_findings
from polykv.cli.options import json_option
from polykv.stages import read_findings


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
