"""The stages of a reader: a report of one run, or of two side by side.

Nothing here prints; what is written comes back as a path.
"""

from __future__ import annotations

from pathlib import Path

from polykv.errors import InputError
from polykv.report.comparison import comparison_page
from polykv.report.page import report_page
from polykv.report.tables import RunTables
from polykv.storage.atomic import write_bytes

REPORT_FILE = "report.html"
COMPARISON_FILE = "comparison.html"


def report_stage(run: str | Path, baseline: str | Path | None = None, out: str | Path | None = None) -> Path:
    """Write the report of `run`, or of `run` against `baseline`; returns the file's path.

    `out` None: report.html (comparison.html) in the run's own directory. A finished file stands
    there whole or not at all. Raises StoreError for a run without tables, InputError for two runs
    that share no cell, MissingExtraError without matplotlib.
    """
    tables = RunTables.read(run)
    name = REPORT_FILE if baseline is None else COMPARISON_FILE
    target = tables.path / name if out is None else Path(out)
    if target.is_dir() or not target.parent.is_dir():
        what = "is a folder" if target.is_dir() else f"cannot be written: there is no folder {target.parent}"
        raise InputError(f"{target} {what}; name a file, for example -o {name}")
    page = report_page(tables) if baseline is None else comparison_page(RunTables.read(baseline), tables)
    return write_bytes(target, page.encode())
