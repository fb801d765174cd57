"""The go/no-go flow: learned dictionaries of a capture against int8 and fair rivals.

python -m flows.gonogo data/smollm2-sample --out runs/gonogo
"""

import sys
from typing import Any

import click
from prefect import flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from flows.common import run_command
from polykv.cli.console import progress
from polykv.cli.gonogo import DAMAGE_EXIT, gonogo_options, gonogo_request, say_gonogo
from polykv.cli.options import engine_of, engine_options, quiet_option
from polykv.gonogo_stages import Engine, GonogoRequest, GonogoSummary, check_gonogo, gonogo_rows, gonogo_stage


@task(name="judge-dictionaries", cache_policy=NO_CACHE)
def judge(request: GonogoRequest, engine: str, quiet: bool) -> GonogoSummary:
    """A Dask job per layer and stream, on workers of its own."""
    with progress("gonogo", "jobs", quiet) as advance:
        summary = gonogo_stage(request, Engine.parse(engine), advance)
    get_run_logger().info(
        "%d jobs run, %d reused, %d failed", summary.jobs_run, summary.jobs_reused, summary.jobs_failed
    )
    return summary


@flow(name="gonogo")
def gonogo(request: GonogoRequest, engine: str = "local", quiet: bool = False) -> GonogoSummary:
    """Judge a capture's dictionaries into `request.out`; `engine`: serial, local, local:N or tcp://HOST:PORT."""
    summary = judge(request, engine, quiet)
    lines = ["| layer | stream | margin | legacy | verdict |", "|---|---|---|---|---|"]
    for row in gonogo_rows(request.out):
        margin = "–" if row["margin"] is None else f"{row['margin']:+.4f}"
        lines.append(f"| {row['layer']} | {row['stream']} | {margin} | {row['legacy_verdict']} | {row['verdict']} |")
    create_markdown_artifact(key="polykv-gonogo", markdown="\n".join(lines), description=summary.receipt["verdict"])
    return summary


@click.command()
@click.argument("store")
@gonogo_options
@engine_options
@click.option("--out", required=True, help="Run directory; the same command resumes it.")
@quiet_option
def command(store: str, out: str, quiet: bool, **asked: Any) -> int:
    """Judge dictionaries as a Prefect flow (the options of `polykv gonogo`)."""
    request = gonogo_request(store, out, asked)
    check_gonogo(request)  # a user's mistake is told before Prefect starts
    engine = engine_of(asked["serial"], asked["workers"], asked["scheduler"])
    summary = gonogo(request, engine.name, quiet)
    say_gonogo(summary, gonogo_rows(out))
    return DAMAGE_EXIT if summary.jobs_failed else 0


if __name__ == "__main__":
    sys.exit(run_command(command))
