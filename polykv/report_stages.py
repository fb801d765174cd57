"""The stages of a reader: a report of one run, or of two side by side.

    report_stage     run → report.html; the caller asked for it, so what is wrong is an error
    closing_report   the same at the end of a sweep, which a report that cannot be made does not undo

Nothing here prints; what is written comes back as a path.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from polykv.errors import InputError, PolykvError
from polykv.report.comparison import comparison_page
from polykv.report.page import report_page
from polykv.report.tables import RunTables
from polykv.storage.atomic import write_bytes

REPORT_FILE = "report.html"
COMPARISON_FILE = "comparison.html"


def report_stage(
    run: str | Path,
    baseline: str | Path | None = None,
    out: str | Path | None = None,
    certification: str | Path | None = None,
) -> Path:
    """Write the report of `run`, or of `run` against `baseline`; returns the file's path.

    `out` None: report.html (comparison.html) in the run's own directory. A finished file stands
    there whole or not at all. `certification`: another run directory whose certification the report
    of one run shows too. Raises StoreError for a run without tables or a `certification` without
    one, InputError for two runs that share no cell, MissingExtraError without matplotlib.
    """
    tables = RunTables.read(run)
    if certification is not None:
        if baseline is not None:
            raise InputError("a certification is shown in the report of one run, not in a comparison of two")
        tables = replace(tables, certified_by=RunTables.certification(certification))
    name = REPORT_FILE if baseline is None else COMPARISON_FILE
    target = tables.path / name if out is None else Path(out)
    if target.is_dir() or not target.parent.is_dir():
        what = "is a folder" if target.is_dir() else f"cannot be written: there is no folder {target.parent}"
        raise InputError(f"{target} {what}; name a file, for example -o {name}")
    page = report_page(tables) if baseline is None else comparison_page(RunTables.read(baseline), tables)
    return write_bytes(target, page.encode())


@dataclass(frozen=True)
class ClosingReport:
    """The report a run ended with: its `path`, or None and the `reason` in one line."""

    path: Path | None
    reason: str | None = None

    @property
    def line(self) -> str:
        """What the end of a run says of its report."""
        return f"no report: {self.reason}" if self.path is None else f"report: {self.path}"


def closing_report(run: str | Path) -> ClosingReport:
    """Write the report at the end of a sweep; never an error, because the run's tables are there already.

    There is none when no cell was measured, when matplotlib is not installed, or when the file cannot be written.
    """
    try:
        if not any(row["status"] == "ok" for row in RunTables.read(run).rows("results")):
            return ClosingReport(None, "no cell was measured")
        return ClosingReport(report_stage(run, out=Path(run) / REPORT_FILE))
    except PolykvError as error:
        return ClosingReport(None, str(error))
