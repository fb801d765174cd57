"""`polykv policy search`: from a budget to a policy."""

from __future__ import annotations

from typing import Any

import click

from polykv.cli.certify import FAIL_ON, exit_code, parse_limit, say_certification
from polykv.cli.console import figure, note, progress, say, say_json, say_table
from polykv.cli.options import dry_run_option, json_option, quiet_option
from polykv.errors import InputError
from polykv.policy import MEAN_UNSELECTED, UNSELECTED_VALUES
from polykv.search_stages import (
    METRICS,
    SENSITIVITIES,
    SearchOutcome,
    SearchRequest,
    expected_passes,
    prepare_search,
    run_search,
)

UNFINISHED_EXIT = 3
VERDICT_EXIT = 1
MINIMISED = ("bytes", "kl")


@click.command()
@click.argument("store")
@click.option(
    "--model", required=True, help="The model that was captured: a directory, a .gguf file, smollm2, a hub id."
)
@click.option("--budget-ppl", help='Perplexity increase allowed, "1%" or "0.01" [default: 1%, without --budget-bytes].')
@click.option("--budget-bytes", type=float, help="Bytes of codes a token may take, K and V of all layers.")
@click.option("--minimise", type=click.Choice(MINIMISED), help="bytes with --budget-ppl, kl with --budget-bytes.")
@click.option(
    "--margin", default=0.5, show_default=True, help="Share of the PPL budget the KL on split select may use."
)
@click.option(
    "--min-cosine",
    default="0.9998",
    show_default=True,
    help='A head decodes the values that keep this cosine ("none": all).',
)
@click.option(
    "--rate", default="fixed", show_default=True,
    help="fixed: a byte a group, any row alone; entropy: a bitstream in blocks of 64 tokens (extra `entropy`).",
)  # fmt: skip
@click.option(
    "--metric", type=click.Choice(METRICS), default="fisher", show_default=True,
    help="What an error costs: by the model's gradients, or by attention outputs and one-layer KLs.",
)  # fmt: skip
@click.option(
    "--gradient-passages", default=16, show_default=True,
    help="Texts of split calibrate for gradients, passages or 512 tokens of one; each counts as 9 forward passes.",
)  # fmt: skip
@click.option(
    "--unselected", "unselected_values", type=click.Choice(UNSELECTED_VALUES), default=MEAN_UNSELECTED, show_default=True,
    help="Values a head does not decode: their weight goes to the mean of all, or is dropped.",
)  # fmt: skip
@click.option("--floor-bytes", default=3.0, show_default=True, help="Least bytes of a vector.")
@click.option("--select-passages", default=8, show_default=True, help="Passages of split select a trial is judged on.")
@click.option(
    "--sensitivities", type=click.Choice(SENSITIVITIES), default="layers", show_default=True,
    help="Whose true KL is measured to judge the proxies: layers' streams, single heads too, none.",
)  # fmt: skip
@click.option("--sensitivity-passages", default=2, show_default=True, help="Passages a true KL is measured on.")
@click.option("--confirm-passages", default=20, show_default=True, help="Passages of the verdict.")
@click.option(
    "--corpus", multiple=True, help="Texts of the verdict [default: the store's confirm passages]; repeatable."
)
@click.option("--max-passes", default=1000, show_default=True, help="Forward passes before the verdict, at most.")
@click.option("--reuse", metavar="RUN", help="Another search of this store: what it measured is not measured again.")
@click.option("--after-rope", is_flag=True, help="Code keys as the cache holds them, RoPE left on.")
@click.option("--name", default="searched", show_default=True, help="Name of the policy.")
@click.option("--seed", default=0, show_default=True, help="Seed of the codewords and of the labels of gradients.")
@click.option("--model-cache", help="Directory for dequantised GGUF weights.")
@click.option("--out", required=True, help="Run directory; the same command resumes it.")
@click.option("--fail-on", type=click.Choice(FAIL_ON), default="fail", show_default=True, help="What exits with 1.")
@dry_run_option
@json_option
@quiet_option
def search(out: str, fail_on: str, dry_run: bool, as_json: bool, quiet: bool, **asked: Any) -> int:
    """Find the policy that meets a budget in the model of STORE, and certify it on text it never saw.

    Codecs are fitted on split calibrate. The model's gradients say what an error in each head's keys
    and values costs, bytes are shared out by it, and the sharing is moved until the whole model, all
    layers compressed at once, meets the budget on split select. The verdict stands on split confirm.

    \b
    polykv policy search captures/mine --model smollm2 --budget-ppl 1% --minimise bytes --out runs/searched
    polykv policy search captures/mine --model smollm2 --budget-bytes 2880 --minimise kl --out runs/small --dry-run
    """
    request = search_request(out, asked)
    store = prepare_search(request)
    if dry_run:
        _say_plan(expected_passes(request, store), as_json)
        return 0
    outcome = run_search(request, lambda label, unit: progress(label, unit, quiet or as_json))
    if as_json:
        say_json(_plain(outcome))
    else:
        _say_search(outcome, quiet)
    if outcome.certified is not None:
        return exit_code(outcome.certified, fail_on)
    return VERDICT_EXIT if outcome.found.complete else UNFINISHED_EXIT


def search_request(out: str, asked: dict[str, Any]) -> SearchRequest:
    """The SearchRequest of a command's options."""
    given = dict(asked)
    ppl, minimise, cosine = given.pop("budget_ppl"), given.pop("minimise"), given.pop("min_cosine")
    if ppl is not None and given["budget_bytes"] is not None:
        raise InputError("--budget-ppl and --budget-bytes are both given; one is the budget, the other is made small")
    ppl = "1%" if ppl is None and given["budget_bytes"] is None else ppl
    goal = "kl" if ppl is None else "bytes"
    if minimise not in (None, goal):
        raise InputError(f"--minimise {minimise} does not go with this budget, which leaves {goal} to be made small")
    after_rope = given.pop("after_rope")
    limit = None if ppl is None else parse_limit(ppl, "--budget-ppl")
    if ppl is not None and limit is None:
        raise InputError('--budget-ppl is "none"; a search needs a budget')
    return SearchRequest(
        out=out,
        max_ppl_increase=limit,
        min_cosine=parse_limit(cosine, "--min-cosine"),
        before_rope=not after_rope,
        **given | {"corpus": tuple(given["corpus"])},
    )


def _say_plan(passes: dict[str, int], as_json: bool) -> None:
    if as_json:
        say_json({"forward_passes": passes})
        return
    say("would take about " + ", ".join(f"{n} forward passes for the {what}" for what, n in passes.items()))
    say("a pass with a policy takes 1.5 to 4 times one without; nothing was computed or written")


def _say_search(outcome: SearchOutcome, quiet: bool) -> None:
    ranked = list(outcome.agreement.values())
    parts = [part for part in ranked[0] if any(found[part] is not None for found in ranked)]
    if parts:
        say_table("how well cheap proxies rank what matters (Spearman with the true KL of one stream alone)", ["proxy", *parts], [
            [name, *(figure(found[part], ".2f") for part in parts)] for name, found in outcome.agreement.items()
        ])  # fmt: skip
        say()
    say_table("", ["trial", "B/token", "× float16", "predicted KL", "KL", "ΔPPL", "in budget"], [
        [
            f"{row['trial']}{' ←' if row['is_best'] else ''}", figure(row["bytes_per_token"], ",.0f"),
            figure(row["ratio_to_float16"], ".2f"), figure(row["predicted_kl"], ".4g"), figure(row["kl_mean"], ".4g"),
            f"{row['ppl_increase']:+.2%}", "yes" if row["meets_budget"] else "no",
        ]
        for row in outcome.trials
    ])  # fmt: skip
    if outcome.certified is not None:
        say()
        say_certification(outcome.certified)
    for text in outcome.notes:
        note(f"note: {text}")
    if not quiet:
        note(f"{outcome.passes} forward passes before the verdict")
    say(f"policy: {outcome.policy}" if outcome.policy else "no policy was written")
    say(f"written to {outcome.path}: search.parquet, sensitivity.parquet{', search.svg' if outcome.picture else ''}")


def _plain(outcome: SearchOutcome) -> dict[str, Any]:
    return {
        "policy": None if outcome.policy is None else str(outcome.policy),
        "complete": outcome.found.complete,
        "agreement": outcome.agreement,
        "trials": outcome.trials,
        "certified": [] if outcome.certified is None else outcome.certified.summary,
        "forward_passes": outcome.passes,
        "notes": list(outcome.notes),
    }
