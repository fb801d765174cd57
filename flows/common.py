"""What the flows share: Prefect's settings, running one as a command, artifacts."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from prefect import get_run_logger
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_SERVER_ANALYTICS_ENABLED,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    temporary_settings,
)

from polykv.cli import INTERRUPTED, INTERRUPTED_TEXT, main
from polykv.report_stages import ClosingReport, closing_report
from polykv.stages import RunFindings

# A cold ephemeral server needs longer than Prefect's 20 s on a busy machine; nothing is reported home.
DEFAULTS = {
    PREFECT_SERVER_ANALYTICS_ENABLED: False,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: 120,
}
VERDICT_ORDER = {
    name: place for place, name in enumerate(("failed", "invalid", "fail", "inconclusive", "insensitive", "pass"))
}
MAX_ARTIFACT_ROWS = 200


@contextmanager
def prefect_defaults() -> Iterator[None]:
    """Our settings wherever the user's environment says nothing."""
    os.environ.setdefault("DO_NOT_TRACK", "1")
    unset = {setting: value for setting, value in DEFAULTS.items() if setting.name not in os.environ}
    # Prefect set its loggers up when it was imported: they are turned down here, not by a setting.
    if "PREFECT_LOGGING_LEVEL" not in os.environ:
        logging.getLogger("prefect").setLevel(logging.WARNING)
    # Dask sets its loggers up when it is imported, later than this; Prefect's handlers would print them.
    os.environ.setdefault("DASK_DISTRIBUTED__LOGGING__DISTRIBUTED", "error")
    with temporary_settings(updates=unset):
        yield


def run_command(command: click.Command, argv: list[str] | None = None) -> int:
    """Run a flow's command line: exit codes and one-line errors as everywhere in polykv."""
    with prefect_defaults():
        return main(argv, command)


@contextmanager
def stopping_at_once(run_ends: Callable[[str], None]) -> Iterator[None]:
    """Ctrl-C inside a flow: end the run as interrupted, and the process with it when there is no server.

    The ephemeral API dies of the same signal, and Prefect would wait two minutes for it. A signal
    to this process alone leaves the API running: it is stopped, for nothing else would.
    """
    try:
        yield
    except KeyboardInterrupt:
        if has_server():
            raise
        run_ends("interrupted")
        SubprocessASGIServer().stop()  # one object a process: the one that Prefect started
        click.echo(INTERRUPTED_TEXT, err=True)
        os._exit(INTERRUPTED)


def has_server() -> bool:
    """Whether a Prefect server is configured; without one an ephemeral API serves this process alone."""
    return bool(PREFECT_API_URL.value())


def leave_artifacts(findings: RunFindings) -> None:
    """The cells as a table and a link to the run directory, in Prefect's artifacts."""
    create_markdown_artifact(
        key="polykv-cells",
        markdown=f"{findings.sentence}\n\n{cells_markdown(list(findings.cells))}",
        description=f"Verdict per layer and head of run {findings.run_id}",
    )
    create_link_artifact(key="polykv-run", link=f"file://{os.path.abspath(findings.path)}", link_text="run directory")


def leave_report(out: str) -> ClosingReport:
    """Write the report of the finished run `out` and leave a link to it; without one, the reason in the log."""
    closing = closing_report(out)
    get_run_logger().info(closing.line)
    if closing.path is not None:
        create_link_artifact(key="polykv-report", link=closing.path.absolute().as_uri(), link_text="report")
    return closing


def cells_markdown(rows: list[dict[str, Any]]) -> str:
    """The selection as a Markdown table, the cells that do not pass first."""
    rows = sorted(rows, key=lambda r: (VERDICT_ORDER[r["verdict"]], r["policy"], r["layer"], r["kv_head"]))
    lines = ["| policy | layer | head | candidate_k | cosine | verdict |", "|---|---|---|---|---|---|"]
    for row in rows[:MAX_ARTIFACT_ROWS]:
        cosine = row["confirm_output_cosine_mean"]
        shown = "–" if cosine is None else f"{cosine:.4f}"
        k = "–" if row["candidate_k"] is None else row["candidate_k"]
        lines.append(f"| {row['policy']} | {row['layer']} | {row['kv_head']} | {k} | {shown} | {row['verdict']} |")
    if len(rows) > MAX_ARTIFACT_ROWS:
        lines.append(f"\n{len(rows) - MAX_ARTIFACT_ROWS} more in selection.parquet")
    return "\n".join(lines)
