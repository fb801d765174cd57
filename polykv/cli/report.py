"""`polykv report`: one self-contained HTML file."""

from __future__ import annotations

import click

from polykv.cli.console import note, say, say_json, size
from polykv.cli.options import json_option, quiet_option
from polykv.report_stages import report_stage


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN [NEWER_RUN]")
@click.option("-o", "--out", help="The HTML file to write (default: report.html in the run).")
@click.option(
    "--with",
    "certification",
    metavar="CERT_RUN",
    help="Show the certification of this run directory in the report too.",
)
@json_option
@quiet_option
def report(runs: tuple[str, ...], out: str | None, certification: str | None, as_json: bool, quiet: bool) -> None:
    """Write what a RUN found as one HTML file that opens anywhere, offline; of two runs, what moved.

    Given two runs, the first is the baseline: the page shows every cell of the second that left
    the first one's 95 % interval.

    \b
    polykv report runs/demo
    polykv report runs/monday runs/tuesday -o tuesday.html
    polykv report runs/mine --with runs/certified   # made by polykv certify --out runs/certified
    """
    if len(runs) > 2:
        raise click.UsageError(f"{len(runs)} runs are given; a report is of one run, or of two side by side")
    if certification is not None and len(runs) == 2:
        raise click.UsageError("--with goes with one run; a comparison of two shows no certification")
    baseline = runs[0] if len(runs) == 2 else None
    written = report_stage(runs[-1], baseline, out, certification)
    n_bytes = written.stat().st_size
    if as_json:
        say_json({"report": str(written), "bytes": n_bytes})
        return
    say(f"wrote {written}")
    if not quiet:
        note(f"{size(n_bytes)}, complete in itself: open it in any browser, or mail it")
