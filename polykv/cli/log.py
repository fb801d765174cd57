"""`polykv log`: a finished run told to MLflow or Weights & Biases."""

from __future__ import annotations

import click

from polykv.cli.console import note, say, say_json
from polykv.cli.options import dry_run_option, json_option, quiet_option
from polykv.tracking_stages import Logged, log_stage


@click.command()
@click.argument("run")
@click.option("--to", required=True, metavar="TRACKER", help="mlflow or wandb.")
@click.option(
    "--project", "--experiment", "project", default="polykv", show_default=True, help="The project (experiment) there."
)
@click.option("--offline", is_flag=True, help="Stay on this machine: mlflow.db, or wandb/ for `wandb sync` later.")
@dry_run_option
@json_option
@quiet_option
def log(run: str, to: str, project: str, offline: bool, dry_run: bool, as_json: bool, quiet: bool) -> None:
    """Tell an experiment tracker what a finished RUN found: figures, tables, policy files, report.

    Figures are a handful a policy (cells by verdict, medians, what the certification measured); those
    that do not exist are left out. Each call makes a new run there, tagged with this one's id.

    \b
    polykv log runs/demo --to mlflow --offline
    polykv log runs/demo --to wandb --project kv-cache --dry-run
    """
    logged = log_stage(run, to, project, offline, dry_run)
    if as_json:
        say_json(_plain(logged))
    elif logged.place is None:
        _say_rehearsal(logged)
    else:
        say(f"logged {run} to {to}: {logged.place}")
        if not quiet:
            record = logged.record
            note(f"{len(record.metrics)} metrics, {len(record.params)} parameters, {len(record.files)} files")


def _plain(logged: Logged) -> dict[str, object]:
    record = logged.record
    return {
        "tracker": logged.tracker,
        "project": logged.project,
        "place": logged.place,
        "metrics": dict(record.metrics),
        "params": dict(record.params),
        "files": list(record.files),
    }


def _say_rehearsal(logged: Logged) -> None:
    record = logged.record
    say(f"would log {record.name} to {logged.tracker}, project {logged.project!r}; nothing was sent or written")
    for title, lines in (
        ("parameters", [f"{name} = {value}" for name, value in record.params.items()]),
        ("metrics", [f"{name} = {value:.6g}" for name, value in record.metrics.items()]),
        ("files", [name if path.is_file() else f"{name} (to be written)" for name, path in record.files.items()]),
    ):
        say(f"{len(lines)} {title}")
        for line in lines:
            say(f"  {line}")
