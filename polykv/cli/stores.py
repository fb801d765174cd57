"""`polykv inspect` and `polykv verify`: looking at a capture store."""

from __future__ import annotations

from typing import Any

import click

from polykv.cli.console import note, progress, say, say_json, say_table, size
from polykv.errors import StoreError
from polykv.storage import CaptureStore


@click.command()
@click.argument("store")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def inspect(store: str, as_json: bool) -> None:
    """Say what a capture STORE (a path or fsspec URL) holds, without reading its vectors.

    \b
    polykv inspect data/smollm2-sample
    polykv inspect s3://bucket/captures/llama --json
    """
    found = CaptureStore.open(store).inspect()
    if as_json:
        say_json(found)
        return
    _describe(found)


@click.command()
@click.argument("store")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def verify(store: str, as_json: bool, quiet: bool) -> None:
    """Read every slab of a capture STORE and check it against the seal; exit code 3 when one is damaged.

    \b
    polykv verify data/smollm2-sample
    """
    opened = CaptureStore.open(store)
    with progress("verify", "slabs", quiet or as_json) as advance:
        report = opened.verify(lambda done, total: advance(done, 0, total))
    if as_json:
        say_json(report.to_dict())
    elif report.ok:
        say(f"{store}: sound; {report.n_slabs} slabs, {size(report.n_bytes)} read, digest {report.digest[:16]}")
    for damage in () if as_json else report.damage:
        note(damage.reason)
    if not report.ok:
        raise StoreError(
            f"{store} is damaged: {len(report.damage)} of {report.n_slabs} slabs; capture again or restore a copy"
        )


def _describe(found: dict[str, Any]) -> None:
    passages, model = found["passages"], found["model"]
    say(f"capture   {found['url']} (sealed, digest {found['digest'][:16]})")
    say(f"model     {model['id']}, weights {str(model['weight_digest'])[:16]}, ran in {model['compute_dtype']}")
    say(
        f"passages  {passages['total']} × {found['n_tokens']} tokens, {found['n_queries']} queries each: "
        f"{passages['calibrate']} calibrate, {passages['select']} select, {passages['confirm']} confirm"
    )
    logits = found["logits"]
    words = f"{logits['n_labels']} labels a query" if logits["n_labels"] else f"none ({logits['reason']})"
    say(f"logits    {words}")
    say(f"size      {size(found['bytes']['stored'])} in {found['n_slabs']} slabs, {found['store_dtype']}")
    say()
    rows = [
        [
            str(layer["layer"]),
            str(layer["n_q_heads"]),
            str(layer["n_kv_heads"]),
            str(layer["head_dim"]),
            str(layer["value_dim"]),
            f"{layer['softmax_scale']:.6g}",
            str(layer["sliding_window"] or "–"),
            str(layer["logit_softcap"] or "–"),
            "yes" if layer["has_sink_logits"] else "–",
        ]
        for layer in found["layers"]
    ]
    say_table(
        "", ["layer", "q heads", "KV heads", "head_dim", "value_dim", "scale", "window", "soft-cap", "sinks"], rows
    )
    say()
    say_table(
        "",
        ["document", "tokens", "passages"],
        [[d["name"], str(d["n_tokens"]), str(d["passages"])] for d in found["documents"]],
    )
