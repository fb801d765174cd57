"""`polykv policy`: take a policy out of a run, look at one, print the schema of its file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from polykv.cli.console import figure, note, say, say_json, say_table
from polykv.cli.fit import fit
from polykv.cli.options import json_option, quiet_option
from polykv.cli.search import search
from polykv.errors import InputError
from polykv.policy import DROP_UNSELECTED, KEEP_ROTATION, CompressionPolicy
from polykv.policy_stages import OTHERWISE, export_policy, policy_json_schema, read_policy_file, write_export

FORMATS = ("json", "csv")
MAX_CELLS = 60


@click.group()
def policy() -> None:
    """Policies: search one for a budget, train codebooks, export one from a run, show a file, print its JSON Schema.

    \b
    polykv policy search captures/mine --model smollm2 --budget-ppl 1% --out runs/searched
    polykv policy export runs/demo --policy int8 -o int8.json
    polykv policy show int8.json
    """


policy.add_command(search)
policy.add_command(fit)


@policy.command()
@click.argument("run")
@click.option("--policy", "name", help="Name of the policy, where the run has several.")
@click.option(
    "--format", "form", type=click.Choice(FORMATS), help="Policy file or table (default: by --out, else json)."
)
@click.option(
    "--otherwise",
    type=click.Choice(OTHERWISE),
    default="exact",
    show_default=True,
    help="What a cell gets that does not pass: float32, or its codecs decoded in full.",
)
@click.option("-o", "--out", help="The file to write instead of printing.")
@quiet_option
def export(run: str, name: str | None, form: str | None, otherwise: str, out: str | None, quiet: bool) -> None:
    """Take a policy out of a RUN: per cell its candidate_k, interval, reason and receipt digest.

    The JSON file is a policy: every command takes it, and so does polykv.Policy.load in an engine.

    \b
    polykv policy export runs/demo --policy int8 -o int8.json
    polykv policy export runs/demo --policy kivi4 --otherwise full --format csv
    """
    if form is None:
        form = "csv" if out is not None and out.endswith(".csv") else "json"
    if form == "json" and out is not None and not out.endswith(".json"):
        raise InputError(f"--out {out}: a policy file's name must end in .json, so that commands know it from a name")
    exported = export_policy(run, name, otherwise, Path(out).parent if out else ".")
    if out is None:
        click.echo(exported.to_csv() if form == "csv" else exported.to_json(), nl=False)
        return
    write_export(exported, out, form)
    if not quiet:
        kept = [cell["kept"] for cell in exported.evidence["cells"].values()]
        note(f"wrote {out}: {kept.count('compressed')} of {len(kept)} cells compressed, the rest exact")


@policy.command()
@click.argument("file")
@click.option("--all", "all_cells", is_flag=True, help="Every cell, however many.")
@json_option
def show(file: str, all_cells: bool, as_json: bool) -> None:
    """Say what a policy FILE (or a named policy) does, cell by cell where it says so.

    \b
    polykv policy show int8.json
    polykv policy show two_tier --json
    """
    found, evidence = read_policy_file(file)
    if as_json:
        told = {**found.to_dict(), "digest": found.digest()}
        say_json(told if evidence is None else {**told, "evidence": evidence})
        return
    _describe(found, evidence)
    if found.cells:
        say()
        _say_cells(found, evidence, all_cells)


@policy.command()
def schema() -> None:
    """Print the JSON Schema (draft 2020-12) of a policy file.

    \b
    polykv policy schema > policy.schema.json
    """
    say_json(policy_json_schema())


def _describe(found: CompressionPolicy, evidence: Mapping[str, Any] | None) -> None:
    say(f"policy       {found.name} (digest {found.digest()[:16]})")
    say(f"exact        {found.sink_tokens} sink tokens, {found.recent_window} newest tokens")
    say(f"keys         {'centred on the calibrate mean' if found.center_keys != 'off' else 'not centred'}")
    if found.key_rotation != KEEP_ROTATION:
        say(f"rotation     keys are coded before RoPE (artifact {found.key_rotation[:16]})")
    for tier in ("pool", "shell"):
        codecs = getattr(found, tier)
        same = codecs["key"] == codecs["value"]
        streams = {"key and value": codecs["key"]} if same else codecs
        for stream, codec in streams.items():
            say(f"{tier:12} {stream}: {codec_words(codec)}")
    k = "found by a sweep" if found.candidate_k is None else found.candidate_k
    say(f"candidate_k  {k}{', overridden per cell' if found.cells else ''}")
    if found.unselected_values != DROP_UNSELECTED:
        say("unselected   their weight goes to the mean of the candidates' decoded values")
    if found.artifacts:
        say(f"artifacts    {len(found.artifacts)} beside the file")
    if evidence is not None:
        kept = [cell["kept"] for cell in evidence["cells"].values()]
        say(f"evidence     run {evidence['run_id']} of {evidence.get('model_id')}")
        say(f"cells        {kept.count('compressed')} of {len(kept)} compressed, {kept.count('exact')} kept exact")


def codec_words(codec: Mapping[str, Any]) -> str:
    """A codec as "id (argument=value, …)"."""
    arguments = ", ".join(f"{key}={value}" for key, value in codec.items() if key != "id")
    return f"{codec['id']} ({arguments})" if arguments else str(codec["id"])


def _say_cells(found: CompressionPolicy, evidence: Mapping[str, Any] | None, all_cells: bool) -> None:
    keys = sorted(found.cells, key=lambda key: tuple(map(int, key.split("/"))))
    shown = keys if all_cells else keys[:MAX_CELLS]
    known = evidence["cells"] if evidence else {}
    say_table("", _COLUMNS, [_cell_row(key, found, known.get(key)) for key in shown])
    if len(shown) < len(keys):
        note(f"{len(keys) - len(shown)} more cells; --all prints every one")


_COLUMNS = ("layer", "head", "candidate_k", "pool key", "cosine", "low", "rel. error", "high", "verdict", "receipt", "reason")  # fmt: skip


def _cell_row(key: str, found: CompressionPolicy, cell: Mapping[str, Any] | None) -> list[str]:
    layer, _, head = key.partition("/")
    here = found.for_cell(int(layer), int(head))
    k = "sweep" if here.candidate_k is None else str(here.candidate_k)
    row = [layer, head, k, str(here.pool["key"]["id"])]
    if cell is None:
        return [*row, *["–"] * (len(_COLUMNS) - len(row))]
    cosine, error = cell["output_cosine"], cell["output_relative_error"]
    return [
        *row,
        figure(cosine["mean"]),
        figure(cosine["low"]),
        figure(error["mean"]),
        figure(error["high"]),
        cell["verdict"],
        (cell["receipt_digest"] or "–")[:12],
        cell["reason"] or "–",
    ]
