"""A nightly calibration without a worker: this process waits and runs it.

    prefect server start                       # in another terminal
    export PREFECT_API_URL=http://127.0.0.1:4200/api
    python -m flows.schedule --store captures/mine --out runs/nightly --cron "0 3 * * *"

With a work pool use flows/prefect.yaml instead.
"""

from __future__ import annotations

import sys
from typing import Any

import click
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.schedules import Cron

from flows.calibrate import calibrate
from flows.common import has_server, run_command
from polykv.cli.options import engine_of, layers_option, sweep_options
from polykv.cli.sweep import sweep_request
from polykv.errors import InputError
from polykv.stages import check_sweep

NO_SERVER = (
    "a schedule needs a Prefect server, and none is configured: run `prefect server start` and set PREFECT_API_URL "
    "(for example http://127.0.0.1:4200/api); without one nothing would ever fire"
)


@click.command()
@click.option("--store", required=True, help="The capture store to calibrate on.")
@layers_option
@sweep_options
@click.option("--out", required=True, help="Run directory; each night continues it, so only changes are computed.")
@click.option("--baseline", help="An earlier run directory that no cell may be worse than.")
@click.option("--cron", default="0 3 * * *", show_default=True, help="When, as a cron line.")
def command(store: str, cron: str, baseline: str | None, fail_on: str, **asked: Any) -> int:
    """Serve the calibration on a schedule until stopped; one run at a time, missed ones are dropped."""
    if not has_server():
        raise InputError(NO_SERVER)
    engine = engine_of(asked["serial"], asked["workers"], asked["scheduler"])
    request = sweep_request(store, asked)
    check_sweep(request)
    calibrate.serve(
        name="nightly",
        schedule=Cron(cron),
        parameters={"request": request, "engine": engine.name, "baseline": baseline, "quiet": True},
        global_limit=ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW),
    )
    return 0


if __name__ == "__main__":
    sys.exit(run_command(command))
