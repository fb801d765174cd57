"""The calibration flow: capture (or a store), replay, the dictionary go/no-go, with a model certification, a report.

    python -m flows.calibrate --store data/smollm2-sample --out runs/sample
    python -m flows.calibrate --model smollm2 --corpus book.txt --out runs/book --baseline runs/last

With --baseline the flow fails when a cell is worse than the baseline's interval allows, and
leaves an artifact that names it.
"""

# Annotations stay objects here: Prefect validates parameters against them in a process of its own,
# where names in postponed annotations cannot be resolved.

import sys
from typing import Any, NamedTuple

import click
from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.task_runners import ThreadPoolTaskRunner

from flows.capture import capture
from flows.certify import certify_found
from flows.common import leave_report, run_command
from flows.gonogo import gonogo
from flows.replay import LAYERS_AT_ONCE, sweep
from polykv.calibrated_stages import certify_skipped
from polykv.certify_stages import CertifyOutcome
from polykv.cli.capture import capture_config
from polykv.cli.certify import none_holds, say_certification
from polykv.cli.console import note
from polykv.cli.findings import say_findings, say_report
from polykv.cli.gonogo import say_gonogo
from polykv.cli.options import (
    certify_switch,
    engine_of,
    gonogo_switch,
    model_options,
    quiet_option,
    report_switch,
    sweep_options,
)
from polykv.cli.sweep import CAPTURED_HERE, VERDICT_EXIT, check_source, exit_code, sweep_request
from polykv.gonogo_stages import GonogoRequest, GonogoSummary, gonogo_rows, publish_gonogo
from polykv.report_stages import ClosingReport
from polykv.stages import (
    CaptureConfig,
    Engine,
    ReplaySummary,
    SweepRequest,
    check_request,
    check_sweep,
    moved_cells,
    read_findings,
)


class Calibrated(NamedTuple):
    """What each stage of a calibration ended with; None where it was left out."""

    summary: ReplaySummary
    judged: GonogoSummary | None
    certified: CertifyOutcome | None
    report: ClosingReport | None


@flow(name="calibrate", task_runner=ThreadPoolTaskRunner(max_workers=LAYERS_AT_ONCE))
def calibrate(
    request: SweepRequest,
    engine: str = "local",
    capture_from: CaptureConfig | None = None,
    baseline: str | None = None,
    quiet: bool = False,
    with_gonogo: bool = True,
    with_certify: bool = True,
    with_report: bool = True,
) -> Calibrated:
    """Capture into `request.store` when `capture_from` is given, sweep it into `request.out`,
    judge sparse dictionaries there (`with_gonogo`) and, where a model was captured, certify in it
    what the sweep found (`with_certify`). The report (`with_report`) shows all of that.

    Raises MovedError when a cell is worse than `baseline`'s interval allows.
    """
    logger = get_run_logger()
    if capture_from is not None:
        capture(capture_from, request.store)
    else:
        logger.info("capture skipped: no model")
    skipped = certify_skipped(with_certify, capture_from)
    records = {
        "capture": "skipped: no model" if capture_from is None else request.store,
        "certify": skipped or "in certify/",
    }
    summary = sweep(request, Engine.parse(engine), quiet, records)
    judged = None
    if with_gonogo:
        judged = gonogo(GonogoRequest(request.store, f"{request.out}/gonogo", request.layers), engine, quiet)
        publish_gonogo(request.out)
    certified = None
    if capture_from is not None and skipped is None:
        certified = certify_found(request, capture_from, quiet)
    else:
        logger.info("certify %s", skipped)
    report = leave_report(request.out) if with_report else None
    if baseline is not None:
        _hold_to_baseline(baseline, request.out)
    return Calibrated(summary, judged, certified, report)


class MovedError(RuntimeError):
    """A cell is worse than the baseline's interval allows."""


def _hold_to_baseline(baseline: str, out: str) -> None:
    moved = moved_cells(baseline, out)
    worse = [m for m in moved if not m.better]
    lines = "\n".join(f"- {m}" for m in moved) or "no cell left its interval"
    create_markdown_artifact(key="polykv-baseline", markdown=lines, description=f"{out} against {baseline}")
    if worse:
        raise MovedError(f"{len(worse)} cells are worse than {baseline} allows; the first: {worse[0]}")


@click.command()
@click.option("--store", help="A capture store to calibrate on; then no model is needed.")
@model_options
@sweep_options
@click.option("--out", required=True, help="Run directory; the same command resumes it.")
@gonogo_switch
@certify_switch
@report_switch(True)
@click.option("--baseline", help="An earlier run directory that no cell may be worse than.")
@quiet_option
def command(
    store: str | None,
    out: str,
    baseline: str | None,
    quiet: bool,
    fail_on: str,
    with_gonogo: bool,
    with_certify: bool,
    with_report: bool,
    **asked: Any,
) -> int:
    """Calibrate as a Prefect flow (the options of `polykv calibrate`, and --baseline)."""
    check_source(store, asked)
    engine = engine_of(asked["serial"], asked["workers"], asked["scheduler"])
    place = CAPTURED_HERE.format(out.rstrip("/")) if store is None else store
    request = sweep_request(place, asked | {"out": out})
    # a user's mistake is told before Prefect starts
    if store is None:
        check_request(request)
    else:
        check_sweep(request)
    if baseline:
        read_findings(baseline)
    try:
        config = capture_config(asked) if store is None else None
        summary, judged, certified, closing = calibrate(
            request, engine.name, config, baseline, quiet, with_gonogo, with_certify, with_report
        )
    except MovedError as error:
        note(f"polykv: {error}")
        return VERDICT_EXIT
    if judged is not None:
        say_gonogo(judged, gonogo_rows(f"{out}/gonogo"))
        click.echo()
    findings = read_findings(out)
    say_findings(findings, summary)
    code = exit_code(findings, summary, fail_on)
    if certified is not None:
        click.echo()
        say_certification(certified)
        code = max(code, int(none_holds(certified, fail_on)))
    if closing is not None:
        say_report(closing)
    return code


if __name__ == "__main__":
    sys.exit(run_command(command))
