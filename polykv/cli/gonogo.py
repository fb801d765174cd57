"""`polykv gonogo`: is a sparse dictionary worth it, against int8 and fair rivals?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from polykv.cli.console import figure, note, progress, say, say_json, say_table
from polykv.cli.options import (
    apply,
    dry_run_option,
    engine_of,
    engine_options,
    json_option,
    layer_numbers,
    layers_option,
    quiet_option,
    whole_numbers,
)
from polykv.gonogo_stages import GonogoRequest, GonogoSummary, check_gonogo, gonogo_rows, gonogo_stage, sparse_policy

DAMAGE_EXIT = 3
POLICY_FILE = "sparse.json"
SIGNS = {"go": "+", "no-go": "-", "inconclusive": "?"}

gonogo_options = apply(
    layers_option,
    click.option("--per-head", is_flag=True, help="A dictionary per KV head instead of one per layer."),
    click.option("--atoms", default="256", show_default=True, help="Atoms, with commas; the first gives the verdict."),
    click.option("--sparsity", default="4", show_default=True, help="Atoms per vector, with commas."),
    click.option("--iterations", default=20, show_default=True, help="Rounds of learning."),
    click.option("--method", default="mod", show_default=True, type=click.Choice(["mod", "ksvd"])),
    click.option("--seed", default=0, show_default=True, help="Seed of the bootstrap."),
)


@click.command()
@click.argument("store")
@gonogo_options
@engine_options
@apply(
    click.option("--out", required=True, help="Run directory; the same command resumes it."),
    click.option("--write-policy", is_flag=True, help=f"Write {POLICY_FILE} into --out, for polykv replay --policy."),
    dry_run_option,
    json_option,
    quiet_option,
)
def gonogo(store: str, out: str, write_policy: bool, dry_run: bool, as_json: bool, quiet: bool, **asked: Any) -> int:
    """Learn dictionaries on split calibrate of a capture STORE and judge them on split confirm.

    Rivals at no more bits: int8, uniform, channel-wise, rotated Lloyd-Max and fib codecs. The rule the
    idea came with (it says GO even on noise) is reported beside the verdict as `legacy`.

    \b
    polykv gonogo data/smollm2-sample --out runs/gonogo --layers 0,14
    polykv gonogo captures/mine --out runs/grid --atoms 256,1024 --sparsity 2,4,8 --per-head
    """
    request = gonogo_request(store, out, asked)
    engine = engine_of(asked["serial"], asked["workers"], asked["scheduler"])
    _, settings, n_jobs = check_gonogo(request)
    if dry_run:
        say(f"dry run: {n_jobs} jobs of {len(settings.grid)} dictionaries each on {engine.kind}; nothing was written")
        return 0
    with progress("gonogo", "jobs", quiet or as_json) as advance:
        summary = gonogo_stage(request, engine, advance)
    rows = gonogo_rows(out)
    if write_policy:
        sparse_policy(out, "sparse", rows).save(Path(out) / POLICY_FILE)
    if as_json:
        say_json(summary.receipt)
    else:
        say_gonogo(summary, rows)
        if write_policy:
            note(f"wrote {out}/{POLICY_FILE}; its candidate_k is found by polykv replay --policy {out}/{POLICY_FILE}")
    return DAMAGE_EXIT if summary.jobs_failed else 0


def gonogo_request(store: str, out: str, asked: dict[str, Any]) -> GonogoRequest:
    """The GonogoRequest of a command's options."""
    return GonogoRequest(
        store=store,
        out=out,
        layers=layer_numbers(asked["layers"]),
        per_head=asked["per_head"],
        atoms=whole_numbers(asked["atoms"], "--atoms") or (),
        sparsity=whole_numbers(asked["sparsity"], "--sparsity") or (),
        iterations=asked["iterations"],
        method=asked["method"],
        seed=asked["seed"],
    )


def say_gonogo(summary: GonogoSummary, rows: list[dict[str, Any]]) -> None:
    """Print a go/no-go for people: a line a (layer, stream), then the verdict in one sentence."""
    columns = ("layer", "head", "stream", "bits/value", "error", "best rival", "its error", "margin", "attention margin", "legacy", "verdict")  # fmt: skip
    say_table("", columns, [_row(row) for row in rows])
    say()
    for line in heat_map(rows):
        say(line)
    say()
    receipt = summary.receipt
    counts = ", ".join(f"{n} {verdict}" for verdict, n in sorted(receipt["verdicts"].items()))
    reason = f" ({receipt['verdict_reason']})" if receipt["verdict_reason"] else ""
    legacy = ", ".join(f"{n} {verdict}" for verdict, n in sorted(receipt["legacy_verdicts"].items()))
    say(
        f"sparse dictionary: {receipt['verdict']}{reason}; by layer and stream: {counts or 'none'}; the old rule: {legacy}"
    )
    for worst in receipt["worst"]:
        say(f"worst: layer {worst['layer']} {worst['stream']}: margin {worst['margin']:+.4f} against {worst['rival']}")
    for reason, count in summary.failures.items():
        say(f"failed: {count} jobs: {reason}")
    say(f"wrote {summary.table}")
    say(f"wrote {summary.receipt_file}")


def heat_map(rows: list[dict[str, Any]]) -> list[str]:
    """A line a stream (and head), a sign a layer: the map of a whole model at a glance."""
    layers = sorted({row["layer"] for row in rows})
    signs = {(row["stream"], row["kv_head"], row["layer"]): SIGNS.get(row["verdict"], "x") for row in rows}
    width = max(3, *(len(str(layer)) + 1 for layer in layers))
    lines = [f"{'layer':12}" + "".join(f"{layer:>{width}}" for layer in layers)]
    for stream, head in sorted({(row["stream"], row["kv_head"]) for row in rows}):
        name = stream if head < 0 else f"{stream} {head}"
        lines.append(f"{name:12}" + "".join(f"{signs.get((stream, head, layer), ' '):>{width}}" for layer in layers))
    return [*lines, "(+ go, - no-go, ? inconclusive, x failed)"]


def _row(row: dict[str, Any]) -> list[str]:
    return [
        str(row["layer"]),
        "all" if row["kv_head"] < 0 else str(row["kv_head"]),
        row["stream"],
        figure(row["bits_per_value"], ".2f"),
        figure(row["confirm_relative_error"], ".3f"),
        row["rival"] or "–",
        figure(row["rival_relative_error"], ".3f"),
        figure(row["margin"], "+.4f"),
        figure(row["attention_margin"], "+.4f"),
        row["legacy_verdict"] or "–",
        row["verdict"] or row["status"],
    ]
