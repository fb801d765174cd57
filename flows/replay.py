"""The replay flow: a capture store into a run directory, a task a layer, a Dask job a cell.

python -m flows.replay data/smollm2-sample --out runs/sample
"""

# Annotations stay objects here: Prefect validates parameters against them in a process of its own,
# where names in postponed annotations cannot be resolved.

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import click
from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.utilities.annotations import quote

from flows.common import leave_artifacts, leave_report, run_command, stopping_at_once
from polykv.cli.console import progress
from polykv.cli.findings import say_findings, say_report
from polykv.cli.options import engine_of, layers_option, quiet_option, report_switch, sweep_options
from polykv.cli.sweep import exit_code, sweep_request
from polykv.report_stages import ClosingReport
from polykv.stages import (
    Engine,
    Replay,
    ReplaySummary,
    Session,
    SweepRequest,
    check_sweep,
    open_run,
    open_session,
    plan_sweep,
    read_findings,
)

# Layers that a cluster works on at once; each waits for its own jobs only.
LAYERS_AT_ONCE = 8


class Replayed(NamedTuple):
    """What a replay ended with; `report` None: not asked for."""

    summary: ReplaySummary
    report: ClosingReport | None


@task(name="replay-layer", task_run_name="layer-{layer}", cache_policy=NO_CACHE)
def replay_layer(layer: int, replay: Replay, session: Session) -> tuple[int, int]:
    """One layer's cells as jobs on the shared session; returns (jobs run, jobs failed)."""
    with stopping_at_once(replay.end):
        done, failed = replay.run_layer(layer, session)
    get_run_logger().info("layer %d: %d jobs, %d failed", layer, done, failed)
    return done, failed


@flow(name="replay", task_runner=ThreadPoolTaskRunner(max_workers=LAYERS_AT_ONCE))
def replay(request: SweepRequest, engine: str = "local", quiet: bool = False, with_report: bool = True) -> Replayed:
    """Sweep a capture store into `request.out`; `engine`: serial, local, local:N or tcp://HOST:PORT."""
    summary = sweep(request, Engine.parse(engine), quiet)
    return Replayed(summary, leave_report(request.out) if with_report else None)


def sweep(
    request: SweepRequest, engine: Engine, quiet: bool = False, records: Mapping[str, str] | None = None
) -> ReplaySummary:
    """The body of the flow: plan, a task per layer, collect; `records`: what run.json says of other stages."""
    checked = check_sweep(request)
    with open_run(checked) as run:
        for name, text in (records or {"capture": "skipped: no model"}).items():
            run.record(name, text)
        with progress("replay", "jobs", quiet) as advance, open_session(engine) as session:
            planned = plan_sweep(checked, run, advance)
            run_layers(planned, session, one_by_one=engine.kind in ("serial", "local"))
        summary = planned.finish(engine)
    leave_artifacts(read_findings(request.out))
    return summary


def run_layers(planned: Replay, session: Session, one_by_one: bool) -> None:
    """A task per layer: in turn on one machine, whose workers a layer keeps busy; at once on a cluster."""
    if one_by_one:
        for layer in planned.layers:
            replay_layer(layer, quote(planned), quote(session))
        return
    futures = [replay_layer.submit(layer, quote(planned), quote(session)) for layer in planned.layers]
    for future in futures:
        future.result()


@click.command()
@click.argument("store")
@layers_option
@sweep_options
@click.option("--out", required=True, help="Run directory; the same command resumes it.")
@report_switch(True)
@quiet_option
def command(store: str, quiet: bool, fail_on: str, with_report: bool, **asked: Any) -> int:
    """Replay as a Prefect flow (the options of `polykv replay`)."""
    engine = engine_of(asked["serial"], asked["workers"], asked["scheduler"])
    request = sweep_request(store, asked)
    check_sweep(request)  # a user's mistake is told before Prefect starts
    summary, closing = replay(request, engine.name, quiet, with_report)
    findings = read_findings(request.out)
    say_findings(findings, summary)
    if closing is not None:
        say_report(closing)
    return exit_code(findings, summary, fail_on)


if __name__ == "__main__":
    sys.exit(run_command(command))
