"""`polykv replay` and `polykv calibrate`: the sweep over a capture, and the whole job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from polykv.calibrated_stages import certify_calibration, certify_skipped
from polykv.cli.capture import capture_config
from polykv.cli.certify import none_holds, say_certification
from polykv.cli.console import note, progress, say, say_json
from polykv.cli.findings import say_findings, say_report
from polykv.cli.gonogo import say_gonogo
from polykv.cli.options import (
    apply,
    certify_switch,
    dry_run_option,
    engine_of,
    gonogo_switch,
    json_option,
    layer_numbers,
    layers_option,
    model_options,
    quiet_option,
    report_switch,
    split_commas,
    sweep_options,
)
from polykv.errors import InputError
from polykv.gonogo_stages import GonogoRequest, gonogo_rows, gonogo_stage, publish_gonogo
from polykv.report_stages import closing_report
from polykv.stages import (
    CaptureConfig,
    CheckedSweep,
    Engine,
    ReplaySummary,
    RunFindings,
    SweepRequest,
    capture_stage,
    check_request,
    check_sweep,
    plan_capture_stage,
    read_findings,
    sweep_stage,
)

VERDICT_EXIT = 1
DAMAGE_EXIT = 3
# Measured on one core at 12 passages × 256 tokens × 24 queries; only a dry run's estimate uses it.
SECONDS_PER_JOB = 0.3
CAPTURED_HERE = "{}-capture"


@click.command()
@click.argument("store")
@layers_option
@sweep_options
@apply(click.option("--out", required=True, help="Run directory; the same command resumes it."), dry_run_option)
@report_switch(False)
@json_option
@quiet_option
def replay(store: str, dry_run: bool, with_report: bool, as_json: bool, quiet: bool, fail_on: str, **asked: Any) -> int:
    """Replay attention over compressed copies of a capture STORE and judge every layer × head cell.

    A killed or failed run is finished by the same command; only what is missing is computed.

    \b
    polykv replay data/smollm2-sample --out runs/sample
    polykv replay s3://bucket/llama --out runs/llama --policy two_tier,mine.json \\
                  --ks 16,64,full --scheduler tcp://head:8786
    """
    code, told = _sweep(store, asked, dry_run, as_json, quiet, fail_on)
    _end(asked["out"], with_report and not dry_run, told)
    return code


@click.command()
@click.option("--store", help="A capture store to calibrate on; then no model is needed.")
@model_options
@sweep_options
@gonogo_switch
@certify_switch
@report_switch(True)
@apply(click.option("--out", required=True, help="Run directory; the same command resumes it."), dry_run_option)
@json_option
@quiet_option
def calibrate(
    store: str | None,
    out: str,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    fail_on: str,
    with_gonogo: bool,
    with_certify: bool,
    with_report: bool,
    **asked: Any,
) -> int:
    """The whole job: capture a model (or take a --store), sweep it, and say how far it compresses; with
    a model, what that costs its perplexity. It ends with a report: one HTML file in the run directory.

    \b
    polykv calibrate --store data/smollm2-sample --out runs/sample
    polykv calibrate --model smollm2 --corpus book.txt --out runs/book   # capture goes to runs/book-capture
    """
    asked["out"] = out
    check_source(store, asked)
    config = None if store is not None else capture_config(asked)
    skipped = certify_skipped(with_certify, config)
    if store is None:
        check_request(sweep_request(CAPTURED_HERE.format(out.rstrip("/")), asked))
        store = _captured(asked, out, dry_run, quiet)
        if dry_run:
            return 0
    code, told = _sweep(store, asked, dry_run, as_json, quiet, fail_on, {"certify": skipped or "in certify/"})
    if with_gonogo and not dry_run:
        code = max(code, _gonogo(store, out, asked, quiet or as_json))
    if config is not None and skipped is None:
        code = max(code, _certify(store, config, asked, quiet or as_json, fail_on))
    elif skipped and config is not None and not quiet:
        note(f"{skipped} (certify)")
    elif not quiet:
        note("skipped: no model (capture, certify)")
    _end(out, with_report and not dry_run, told)
    return code


def check_source(store: str | None, asked: dict[str, Any]) -> None:
    """Refuse a calibration of a store that is also told how to make one: a capture is not cut anew."""
    names = {"model": "--model", "corpus": "--corpus", "layer_stride": "--layer-stride"}
    beside = [option for name, option in names.items() if asked[name]]
    if store is not None and beside:
        raise InputError(
            f"--store and {beside[0]} are both given; {beside[0]} says how to capture, a store is captured"
        )


def _end(out: str, with_report: bool, told: dict[str, Any] | None) -> None:
    """The report of a finished run, and all of it as JSON when `told` is what to print."""
    closing = closing_report(out) if with_report else None
    if told is not None:
        say_json(told if closing is None else {**told, "report": closing.path and str(closing.path)})
    if closing is not None and (told is None or closing.path is None):
        say_report(closing)


def _certify(store: str, config: CaptureConfig, asked: dict[str, Any], quiet: bool, fail_on: str) -> int:
    with progress("certify", "forward passes", quiet) as advance:
        outcome = certify_calibration(
            asked["out"], store, config, split_commas(asked["policies"]), asked["shared_tokens"], advance
        )
    if not quiet:
        say()
        say_certification(outcome)
    return VERDICT_EXIT if none_holds(outcome, fail_on) else 0


def _gonogo(store: str, out: str, asked: dict[str, Any], quiet: bool) -> int:
    engine = engine_of(asked["serial"], asked["workers"], asked["scheduler"])
    with progress("gonogo", "jobs", quiet) as advance:
        request = GonogoRequest(store, f"{out}/gonogo", layer_numbers(asked["layers"]))
        summary = gonogo_stage(request, engine, advance)
    publish_gonogo(out)
    if not quiet:
        say()
        say_gonogo(summary, gonogo_rows(f"{out}/gonogo"))
    return DAMAGE_EXIT if summary.jobs_failed else 0


def sweep_request(store: str, asked: dict[str, Any]) -> SweepRequest:
    """The SweepRequest of a command's options."""
    return SweepRequest(
        store=store,
        out=asked["out"],
        policies=split_commas(asked["policies"]),
        ks=split_commas(asked["ks"]),
        gates=tuple(asked["gates"]),
        shared_tokens=asked["shared_tokens"],
        seed=asked["seed"],
        ks_per_job=asked["ks_per_job"],
        layers=layer_numbers(asked["layers"]),
    )


def _captured(asked: dict[str, Any], out: str, dry_run: bool, quiet: bool) -> str:
    store = CAPTURED_HERE.format(out.rstrip("/"))
    plan = plan_capture_stage(capture_config(asked), store)
    if not quiet:
        note(f"capture: {plan.meta.n_passages} passages into {store}, about {plan.estimated_seconds:.0f} s")
    if not dry_run:
        with progress("capture", "passages", quiet) as advance:
            capture_stage(plan, store, lambda done, total: advance(done, 0, total))
    return store


def _sweep(
    store: str,
    asked: dict[str, Any],
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    fail_on: str,
    records: Mapping[str, str] | None = None,
) -> tuple[int, dict[str, Any] | None]:
    """Sweep, or say what a sweep would do; returns the exit code and, for --json, what to print."""
    engine = engine_of(asked["serial"], asked["workers"], asked["scheduler"])
    checked = check_sweep(sweep_request(store, asked))
    for line in () if quiet else checked.notes:
        note(f"note: {line}")
    if dry_run:
        return 0, _dry_run(checked, engine, as_json)
    with progress("replay", "jobs", quiet or as_json) as advance:
        summary = sweep_stage(checked, engine, advance, records)
    findings = read_findings(asked["out"])
    told = {**asdict(findings), "verdict": findings.verdict, "replay": asdict(summary)} if as_json else None
    if told is None:
        for line in () if quiet else summary.notes:
            note(f"note: {line}")
        say_findings(findings, summary)
    return exit_code(findings, summary, fail_on), told


def exit_code(findings: RunFindings, summary: ReplaySummary, fail_on: str) -> int:
    """3 for a failed cell, 1 for the verdict, else 0."""
    if summary.rows_failed:
        return DAMAGE_EXIT
    return VERDICT_EXIT if findings.fails(fail_on) else 0


def _dry_run(checked: CheckedSweep, engine: Engine, as_json: bool) -> dict[str, Any] | None:
    meta, ks = checked.store.meta, checked.config.candidate_ks
    per_job = checked.request.ks_per_job or len(ks)
    cells = checked.cells
    jobs = 2 * len(cells) * (1 + len(checked.policies) * -(-len(ks) // per_job))
    workers = engine.local_workers if engine.kind == "local" else 1
    queries = meta.n_tokens * meta.n_passages * meta.n_queries * max(s.group_size for s in meta.layers)
    seconds = jobs * SECONDS_PER_JOB * queries / (256 * 24 * 24) / workers
    told = {
        "cells": len(cells),
        "policies": [policy.name for policy in checked.policies],
        "candidate_ks": list(ks),
        "jobs": jobs,
        "rows": 2 * len(cells) * len(checked.policies) * (len(ks) + 1),
        "estimated_seconds": round(seconds, 1),
    }
    if as_json:
        return told
    say(
        f"dry run: {told['cells']} cells, policies {', '.join(told['policies'])}, {len(ks)} candidate_ks: {jobs} jobs, "
        f"{told['rows']} rows, very roughly {seconds:.0f} s on {engine.kind}; nothing was written"
    )
    return None
