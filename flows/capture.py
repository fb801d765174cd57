"""The capture flow: a model and a corpus into a sealed capture store.

python -m flows.capture --model smollm2 --corpus book.txt --out captures/book
"""

# Annotations stay objects here: Prefect validates parameters against them in a process of its own,
# where names in postponed annotations cannot be resolved.

import sys
from typing import Any

import click
from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE

from flows.common import run_command
from polykv.cli.capture import capture_config
from polykv.cli.console import progress
from polykv.cli.options import model_options
from polykv.stages import CaptureConfig, capture_stage, plan_capture_stage


@task(name="capture-passages", cache_policy=NO_CACHE)
def capture_passages(config: CaptureConfig, out: str) -> str:
    """Every passage of the corpus through the model, checked and sealed; returns the store."""
    logger = get_run_logger()
    plan = plan_capture_stage(config, out)
    logger.info("%d passages, about %.0f s", plan.meta.n_passages, plan.estimated_seconds)
    with progress("capture", "passages") as advance:
        summary = capture_stage(plan, out, lambda done, total: advance(done, 0, total))
    logger.info("captured %d tokens, worst error %.1e", summary.n_tokens, summary.worst_relative_error)
    return out


@flow(name="capture")
def capture(config: CaptureConfig, out: str) -> str:
    """Capture a model over a corpus into a new store at `out` (path or URL); returns `out`."""
    return capture_passages(config, out)


@click.command()
@model_options
@click.option("--out", required=True, help="Where the store goes: a new path or fsspec URL.")
def command(out: str, **asked: Any) -> int:
    """Capture as a Prefect flow (the options of `polykv capture`)."""
    click.echo(f"sealed {capture(capture_config(asked), out)}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(command))
