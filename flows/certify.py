"""The certification flow: policies inside the model itself, and the perplexity they cost.

python -m flows.certify --model smollm2 --policy int8 --corpus held-out.txt --out runs/certified
"""

# Annotations stay objects here: Prefect validates parameters against them in a process of its own,
# where names in postponed annotations cannot be resolved.

import os
import sys
from typing import Any

import click
from prefect import flow, get_run_logger, task
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from flows.common import run_command
from polykv.calibrated_stages import certify_calibration
from polykv.certify_stages import CertifyOutcome, CertifyRequest, certify_into, prepare_certification
from polykv.cli.certify import certify_options, certify_request, exit_code, interval_text, say_certification
from polykv.cli.console import note, progress
from polykv.cli.options import quiet_option
from polykv.stages import CaptureConfig, SweepRequest


@task(name="certify-policies", cache_policy=NO_CACHE)
def certify_policies(request: CertifyRequest, out: str, quiet: bool) -> CertifyOutcome:
    """Every policy in one pass over the passages: they share the baseline, and the model is loaded once."""
    with progress("certify", "forward passes", quiet) as advance:
        outcome, _ = certify_into(out, prepare_certification(request), advance)
    return told(outcome)


@task(name="certify-calibration", cache_policy=NO_CACHE)
def certify_found(request: SweepRequest, capture: CaptureConfig, quiet: bool) -> CertifyOutcome:
    """What the sweep in `request.out` found, in the model that was captured."""
    with progress("certify", "forward passes", quiet) as advance:
        outcome = certify_calibration(
            request.out, request.store, capture, request.policies, request.shared_tokens, advance
        )
    leave_certification(outcome, request.out)
    return told(outcome)


@flow(name="certify")
def certify(request: CertifyRequest, out: str, quiet: bool = False) -> CertifyOutcome:
    """Certify policies into the run directory `out`; leaves the table as an artifact."""
    outcome = certify_policies(request, out, quiet)
    leave_certification(outcome, out)
    return outcome


def told(outcome: CertifyOutcome) -> CertifyOutcome:
    """`outcome`, after a log line a policy."""
    for row in outcome.summary:
        get_run_logger().info("%s: %s, perplexity %+.2f %%", row["policy"], row["verdict"], 100 * row["ppl_increase"])
    return outcome


def leave_certification(outcome: CertifyOutcome, out: str) -> None:
    """A row a policy and a link to the run directory, in Prefect's artifacts."""
    lines = ["| policy | ΔPPL | 95 % interval | KL (nats) | × float16 | verdict |", "|---|---|---|---|---|---|"]
    for row in outcome.summary:
        lines.append(
            f"| {row['policy']} | {row['ppl_increase']:+.2%} | {interval_text(row)} | {row['kl_mean']:.4g} | "
            f"{row['ratio_to_float16']:.2f} | {row['verdict']} |"
        )
    create_markdown_artifact(
        key="polykv-certify", markdown="\n".join(lines), description=outcome.receipt["claim_boundary"]
    )
    create_link_artifact(key="polykv-certify-run", link=f"file://{os.path.abspath(out)}", link_text="run directory")


@click.command()
@certify_options
@click.option("--out", required=True, help="Run directory for certify.parquet and certify.json.")
@quiet_option
def command(out: str, quiet: bool, fail_on: str, **asked: Any) -> int:
    """Certify as a Prefect flow (the options of `polykv certify`)."""
    request = certify_request(asked)
    for text in prepare_certification(request, out=out).notes:  # a user's mistake is told before Prefect starts
        note(f"note: {text}")
    outcome = certify(request, out, quiet)
    say_certification(outcome)
    return exit_code(outcome, fail_on)


if __name__ == "__main__":
    sys.exit(run_command(command))
