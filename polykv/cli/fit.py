"""`polykv policy fit`: from a capture to residual VQ codebooks and the policy that uses them."""

from __future__ import annotations

from typing import Any

import click

from polykv.cli.console import figure, note, progress, say, say_json, size
from polykv.cli.options import dry_run_option, json_option, layer_numbers, layers_option, quiet_option
from polykv.fit_stages import METRICS, FitPlan, FitRequest, ResidualVqSettings, plan_fit, run_fit


@click.command()
@click.argument("store")
@click.option("--stages", default=16, show_default=True, help="Codebooks of a vector, whose codewords add up to it.")
@click.option("--bits", default=8, show_default=True, help="Of a codeword's index, 5 to 8.")
@click.option("--beam", default=4, show_default=True, help="Candidates kept at every stage when coding.")
@click.option("--iterations", default=8, show_default=True, help="Of k-means, for every stage.")
@click.option(
    "--metric", type=click.Choice(METRICS), default="output_error", show_default=True,
    help="What a key's error costs: the change of the attention output, or its plain square.",
)  # fmt: skip
@click.option("--gain", is_flag=True, help="Code directions, and every vector's size in 2 bytes more.")
@click.option("--sinks", "sink_tokens", default=4, show_default=True, help="First tokens that stay exact.")
@click.option("--recent-window", default=32, show_default=True, help="Newest tokens that stay exact.")
@layers_option
@click.option("--name", default="residual_vq", show_default=True, help="Name of the policy.")
@click.option("--seed", default=0, show_default=True, help="Seed of the first codewords.")
@click.option("--out", required=True, help="Folder for NAME.policy.json and its artifacts.")
@dry_run_option
@json_option
@quiet_option
def fit(
    store: str, layers: str | None, name: str, out: str, dry_run: bool, as_json: bool, quiet: bool, **settings: Any
) -> None:
    """Train residual VQ codebooks for every head of STORE, on split calibrate alone.

    Codes have one size, and any token decodes alone. Layers left out stay int8. What the policy
    costs the model is said by `polykv certify`.

    \b
    polykv policy fit captures/mine --stages 12 --out policies
    polykv certify --model smollm2 --store captures/mine --policy policies/residual_vq.policy.json
    """
    request = FitRequest(store, out, layer_numbers(layers), name, ResidualVqSettings(**settings))
    plan = plan_fit(request)
    if dry_run:
        _say(plan, None, as_json)
        return
    with progress("fit", "cells", quiet or as_json) as tick:
        path = run_fit(plan, tick)
    _say(plan, str(path), as_json)


def _say(plan: FitPlan, path: str | None, as_json: bool) -> None:
    if as_json:
        say_json({
            "policy": path, "cells": len(plan.cells), "calibration_vectors": plan.n_vectors,
            "bytes_per_token": plan.bytes_per_token, "float16_ratio": plan.float16_ratio,
            "codebook_bytes": plan.codebook_bytes,
        })  # fmt: skip
        return
    say(f"{len(plan.cells)} cells, {plan.n_vectors:,} calibration vectors of keys and of values each")
    ratio = figure(plan.float16_ratio, ".2f")
    say(f"codes      {plan.bytes_per_token:,} bytes a token, {ratio} × less than float16")
    say(f"codebooks  {size(plan.codebook_bytes)} once, whatever the context")
    if path is None:
        say("nothing was computed or written")
    else:
        say(f"policy     {path}")
        note("how much it costs the model: polykv certify --policy FILE")
