"""`polykv capture`: real keys and values of a real model, into a capture store."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

import click

from polykv.cli.console import note, progress, say, say_json, size
from polykv.cli.options import apply, dry_run_option, json_option, layer_numbers, model_options, quiet_option
from polykv.errors import InputError
from polykv.stages import CaptureConfig, capture_stage, plan_capture_stage


@click.command()
@model_options
@apply(
    click.option("--out", required=True, help="Where the store goes: a new path or fsspec URL."),
    dry_run_option,
    json_option,
    quiet_option,
)
def capture(out: str, dry_run: bool, as_json: bool, quiet: bool, **asked: Any) -> None:
    """Run a model over a corpus and keep its post-RoPE keys, values, queries and attention outputs.

    Every captured head is recomputed from what was captured and must equal the model's own
    attention output; otherwise nothing is sealed. Needs the extra `hf` (make hf).

    \b
    polykv capture --model smollm2 --corpus persuasion.txt --out captures/persuasion
    polykv capture --model ./llama --corpus 'calibrate:a/*.txt' --corpus 'confirm:b/*.txt' \\
                   --corpus 'select:c/*.txt' --tokens 512 --out s3://bucket/llama --dry-run
    """
    config = capture_config(asked)
    plan = plan_capture_stage(config, out, None if quiet else lambda: note(f"loading {config.model} …"))
    for name, reason in plan.corpus.skipped:
        note(f"left out: {name}: {reason}")
    if plan.logits_detail and not quiet:
        note(f"no logit data: {plan.logits_detail}")
    if not quiet:
        note(
            f"{plan.meta.n_passages} passages × {plan.meta.n_tokens} tokens, {len(plan.meta.layers)} layers: about "
            f"{size(plan.estimated_bytes)} before compression, {plan.estimated_seconds:.0f} s"
        )
    if dry_run:
        _say_plan(plan, as_json)
        return
    with progress("capture", "passages", quiet) as advance:
        summary = capture_stage(plan, out, lambda done, total: advance(done, 0, total))
    if as_json:
        say_json({"store": out, **asdict(summary)})
        return
    say(
        f"captured {summary.n_passages} passages, {summary.n_tokens} tokens of {plan.meta.model_id} into {out} in "
        f"{summary.seconds:.0f} s; worst recomputation error {summary.worst_relative_error:.1e}"
    )
    say(f"next: polykv calibrate --store {out} --out runs/NAME")


def capture_config(asked: dict[str, Any]) -> CaptureConfig:
    """The CaptureConfig of a command's options; what was typed goes with it."""
    if not asked["model"]:
        raise InputError("--model is missing: a directory, a .gguf file, smollm2, or a hub id")
    if not asked["corpus"]:
        raise InputError("--corpus is missing: at least one text file, glob or .jsonl file")
    return CaptureConfig(
        model=asked["model"],
        corpus=tuple(asked["corpus"]),
        n_tokens=asked["tokens"],
        n_passages=asked["passages"],
        n_queries=asked["queries"],
        text_field=asked["text_field"],
        split_by=asked["split_by"],
        skip_short=asked["skip_short"],
        layers=layer_numbers(asked["layers"]),
        layer_stride=asked["layer_stride"],
        store_dtype=asked["dtype"],
        compute_dtype=asked["compute_dtype"],
        batch_size=asked["batch_size"],
        n_labels=asked["labels"],
        command=" ".join(["polykv", *sys.argv[1:]]),
    )


def _say_plan(plan: Any, as_json: bool) -> None:
    meta = plan.meta
    if as_json:
        say_json(
            {
                "meta": meta.to_dict(),
                "estimated_bytes": plan.estimated_bytes,
                "estimated_seconds": plan.estimated_seconds,
            }
        )
        return
    counts = ", ".join(f"{len(meta.passages(split))} {split}" for split in ("calibrate", "select", "confirm"))
    say(f"dry run: {meta.model_id}, {len(meta.cells)} cells, {counts} (splits {meta.split_rule}); nothing was written")
