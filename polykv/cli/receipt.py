"""`polykv receipt`: replay a fixture, show a run's cell, verify a file, export a fixture."""

from __future__ import annotations

from typing import Any

import click

from polykv.cli.console import note, say, say_json
from polykv.cli.options import apply, json_option, quiet_option, split_commas
from polykv.errors import InputError
from polykv.receipt_stages import (
    GATE_NAMES,
    Evidence,
    export_fixture,
    replay_fixture,
    save_text,
    show_receipt,
    verify_receipt,
)
from polykv.receipts import pretty_json

VERDICT_EXIT = 1

gate_options = apply(
    *(
        click.option(
            f"--{name.replace('_', '-')}", type=float, help=f"Gate {name} (default: the file's, else the seed's)."
        )
        for name in GATE_NAMES
    )
)


@click.group()
def receipt() -> None:
    """Receipts: make one from a fixture, show a cell's, check one, export a fixture."""


@receipt.command()
@click.argument("fixture")
@click.option("--ks", multiple=True, help='Budgets in the order tried, with commas; "full" is every row.')
@click.option("--policy", default="reference", show_default=True, help="A named policy or a policy .json file.")
@gate_options
@click.option("--out", help="Write the receipt here instead of printing it.")
@quiet_option
def replay(fixture: str, ks: tuple[str, ...], policy: str, out: str | None, quiet: bool, **limits: float | None) -> int:
    """Replay a captured FIXTURE and print its receipt; exit code 1 when its gates fail.

    \b
    polykv receipt replay fixture.json --ks 8,16,32
    polykv receipt replay fixture.json --ks 16,full --policy two_tier --min-output-cosine 0.999
    """
    asked = {name: limit for name, limit in limits.items() if limit is not None}
    made, notes = replay_fixture(fixture, _budgets(ks), policy, asked)
    for line in notes:
        note(f"warning: {line}")
    _give(made.to_dict(), out)
    if not quiet:
        verdict = "pass" if made.passed else f"fail: {'; '.join(made.blockers)}"
        note(f"candidate_k {made.selected_candidate_k}: {verdict}")
    return 0 if made.passed else VERDICT_EXIT


@receipt.command()
@click.argument("run")
@click.option("--layer", type=int, required=True, help="The model's layer index.")
@click.option("--head", type=int, required=True, help="KV head within the layer.")
@click.option("--policy", help="Name of the policy, where the run has several.")
@click.option("--split", default="confirm", show_default=True, type=click.Choice(["select", "confirm"]))
@click.option("--out", help="Write the receipt here instead of printing it.")
def show(run: str, layer: int, head: int, policy: str | None, split: str, out: str | None) -> None:
    """Rebuild the receipt of one cell from a RUN directory's results.

    \b
    polykv receipt show runs/demo --layer 7 --head 1 --policy two_tier
    """
    _give(show_receipt(run, layer, head, policy, split).to_dict(), out)


@receipt.command()
@click.argument("file")
@click.option("--fixture", help="Replay this fixture again and compare every figure.")
@click.option("--policy", help="The policy to replay with, where the receipt's is not a named one.")
@click.option("--run", help="The run directory that the receipt was shown from.")
@click.option("--pool", help="Folder of the saved pool the receipt is of.")
@click.option("--shell", help="Folder of the saved shell the receipt is of (with --pool).")
@json_option
def verify(file: str, as_json: bool, **evidence: Any) -> None:
    """Check a receipt or manifest FILE: its own figures, and what it is given; exit code 3 when it does not hold.

    \b
    polykv receipt verify receipt.json
    polykv receipt verify receipt.json --fixture fixture.json
    """
    if evidence["shell"] and not evidence["pool"]:
        raise InputError("--shell needs --pool: a shell is opened with the pool it belongs to")
    schema, checked = verify_receipt(file, Evidence(**evidence))
    if as_json:
        say_json({"file": file, "schema_version": schema, "holds": True, "checked": list(checked)})
        return
    say(f"{file}: {schema} holds; {len(checked)} fields checked")


@receipt.command()
@click.argument("store")
@click.option("--layer", type=int, required=True, help="The model's layer index.")
@click.option("--head", type=int, required=True, help="KV head within the layer.")
@click.option("--queries", type=int, default=8, show_default=True, help="Queries, evenly spaced over the passage.")
@click.option("--q-head", type=int, default=0, show_default=True, help="Query head within the KV head's group.")
@click.option(
    "--passage", type=int, help="Passage of the capture (default: the first of the split with enough queries)."
)
@click.option("--split", default="confirm", show_default=True, type=click.Choice(["calibrate", "select", "confirm"]))
@click.option("--shared-tokens", type=int, help="Rows in the pool (default: half of the shortest query's).")
@click.option("--seed", default=42, show_default=True, help="Seed of the fixture's pools and shells.")
@click.option(
    "--synthetic-projection",
    is_flag=True,
    help="The seed's projection instead of the model's (captures without logits).",
)
@click.option("--out", required=True, help="The fixture file to write.")
def export(store: str, head: int, queries: int, out: str, **asked: Any) -> None:
    """Write real queries, keys and values of a capture STORE as a fixture in the seed's JSON.

    \b
    polykv receipt export captures/mine --layer 7 --head 1 --queries 8 --out fixture.json
    """
    fixture = export_fixture(store, kv_head=head, n_queries=queries, **asked)
    fixture.save(out)
    note(f"{out}: {len(fixture.queries)} queries, {fixture.shared_tokens} shared tokens; {fixture.note}")


def _budgets(texts: tuple[str, ...]) -> list[int | str]:
    found: list[int | str] = []
    for text in split_commas(texts):
        if text != "full" and not text.isdecimal():
            raise InputError(f'candidate_k {text!r} is neither a whole number nor "full"')
        found.append(text if text == "full" else int(text))
    return found


def _give(value: Any, out: str | None) -> None:
    if out is None:
        say_json(value)
    else:
        save_text(out, pretty_json(value))
