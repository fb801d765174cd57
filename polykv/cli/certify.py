"""`polykv certify`: what a policy does to the model itself."""

from __future__ import annotations

from typing import Any

import click

from polykv.certify_stages import (
    Budget,
    CertifyConfig,
    CertifyOutcome,
    CertifyRequest,
    certify_into,
    prepare_certification,
    run_certification,
)
from polykv.cli.console import figure, note, progress, say, say_json, say_table
from polykv.cli.options import apply, split_commas
from polykv.errors import InputError

FAIL_ON = ("fail", "inconclusive", "never")


certify_options = apply(
    click.option("--model", required=True, help="A directory, a .gguf file, smollm2, or a hub id."),
    click.option(
        "--policy",
        "policies",
        multiple=True,
        required=True,
        help="Named policies or .json files, with commas; repeatable.",
    ),
    click.option("--corpus", multiple=True, help="Text files, globs or .jsonl to evaluate on; repeatable."),
    click.option(
        "--store", help="Capture whose split calibrate gives mean keys (and, without --corpus, the passages)."
    ),
    click.option("--passages", default=10, show_default=True, help="Passages to evaluate, evenly over the documents."),
    click.option("--tokens", default=512, show_default=True, help="Tokens in a passage."),
    click.option("--shared-tokens", type=int, help="Tokens coded by the pool [default: half]."),
    click.option("--score-from", type=int, help="First token that is scored [default: --shared-tokens]."),
    click.option("--bucket", default=64, show_default=True, help="Tokens in a position bucket."),
    click.option("--max-ppl-increase", default="1%", show_default=True, help='Budget: "1%", "0.01" or "none".'),
    click.option("--max-kl", default="none", show_default=True, help='Budget: mean KL in nats, or "none".'),
    click.option("--uncentred", is_flag=True, help="Leave keys as they are where a policy would centre them."),
    click.option("--text-field", default="text", show_default=True, help="The text's field in .jsonl files."),
    click.option("--seed", default=42, show_default=True, help="Seed of the bootstrap."),
    click.option("--model-cache", help="Directory for dequantised GGUF weights."),
    click.option("--fail-on", type=click.Choice(FAIL_ON), default="fail", show_default=True, help="What exits with 1."),
)


@click.command()
@certify_options
@click.option("--out", help="Run directory for certify.parquet and certify.json.")
@click.option("--json", "as_json", is_flag=True, help="Print the receipt as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def certify(out: str | None, fail_on: str, as_json: bool, quiet: bool, **asked: Any) -> int:
    """Apply policies inside the MODEL, all layers and heads at once, and measure real perplexity.

    Baseline and policies see the same passages; every difference is paired by passage. Controls run
    first: an exact policy must change nothing, an emptied cache must wreck the model, no prediction
    may see a later token, and a lossy policy must show.

    \b
    polykv certify --model smollm2 --policy int8 --corpus books/*.txt
    polykv certify --model smollm2 --policy two_tier --store captures/mine --corpus held-out.txt --out runs/cert
    """
    prepared = prepare_certification(certify_request(asked), out=out)
    for text in prepared.notes:
        note(f"note: {text}")
    with progress("certify", "forward passes", quiet or as_json) as advance:
        if out is None:
            outcome, place = run_certification(prepared, advance), None
        else:
            outcome, place = certify_into(out, prepared, advance)
    if as_json:
        say_json(outcome.receipt)
    else:
        say_certification(outcome)
        if place is not None:
            say(f"written to {place}: certify.parquet, certify.json")
    return exit_code(outcome, fail_on)


def certify_request(asked: dict[str, Any]) -> CertifyRequest:
    """The CertifyRequest of a command's options."""
    return CertifyRequest(
        model=asked["model"],
        policies=split_commas(asked["policies"]),
        corpus=tuple(asked["corpus"]),
        store=asked["store"],
        config=_config(asked),
        text_field=asked["text_field"],
        uncentred=asked["uncentred"],
        model_cache=asked["model_cache"],
    )


def parse_limit(text: str, name: str) -> float | None:
    """A limit from text: "1%" → .01, "0.01" → .01, "none" → None."""
    word = text.strip().lower()
    if word == "none":
        return None
    scale, number = (0.01, word[:-1]) if word.endswith("%") else (1.0, word)
    try:
        return float(number) * scale
    except ValueError as error:
        raise InputError(f'{name} is {text!r}, must be a number, a percentage or "none"') from error


def exit_code(outcome: CertifyOutcome, fail_on: str) -> int:
    """1 when a policy's verdict is one that `fail_on` asks to fail on."""
    bad = {"fail": {"fail"}, "inconclusive": {"fail", "inconclusive"}, "never": set()}[fail_on]
    return int(any(row["verdict"] in bad for row in outcome.summary))


def none_holds(outcome: CertifyOutcome, fail_on: str) -> bool:
    """Whether a calibration should exit with 1: no policy of it is better than `fail_on` asks to fail on."""
    bad = {"fail": {"fail"}, "inconclusive": {"fail", "inconclusive"}, "never": set()}[fail_on]
    return all(row["verdict"] in bad for row in outcome.summary)


def _config(numbers: dict[str, Any]) -> CertifyConfig:
    budget = Budget(
        parse_limit(numbers["max_ppl_increase"], "--max-ppl-increase"), parse_limit(numbers["max_kl"], "--max-kl")
    )
    return CertifyConfig(
        n_passages=numbers["passages"],
        n_tokens=numbers["tokens"],
        shared_tokens=numbers["shared_tokens"],
        score_from=numbers["score_from"],
        bucket_tokens=numbers["bucket"],
        budget=budget,
        seed=numbers["seed"],
    )


def say_certification(outcome: CertifyOutcome) -> None:
    """Print a certification for people: a row a policy, documents, and what is undecided."""
    first = outcome.summary[0]
    say(
        f"model {outcome.receipt['model']['id']}: baseline perplexity {first['ppl_baseline']:.2f} over "
        f"{first['n_passages']} passages, tokens {first['first_token']} to {first['end_token'] - 1}"
    )
    say_table("", _COLUMNS, [_cells(row) for row in outcome.summary])
    documents = [row for row in outcome.rows if row["slice_kind"] == "document"]
    if first["n_documents"] > 1:
        say()
        say_table(
            "", ["policy", "document", "baseline", "ΔPPL", "95 % interval", "KL"], [_by_document(r) for r in documents]
        )
    for row in outcome.summary:
        if row["verdict"] == "inconclusive":
            say(_inconclusive(row))


_MOST_SHOWN = 100.0
_COLUMNS = [
    "policy",
    "ΔPPL",
    "95 % interval",
    "KL",
    "top-1",
    "B/token",
    "× float16",
    "at 4k",
    "at 32k",
    "decodes saved",
    "verdict",
]


def _cells(row: dict[str, Any]) -> list[str]:
    saved = 1 - row["decoded_values_total"] / max(1, row["full_decode_value_count"])
    return [
        row["policy"],
        f"{row['ppl_increase']:+.2%}",
        interval_text(row),
        figure(row["kl_mean"], ".4g"),
        figure(row["top1_agreement"], ".3f"),
        figure(row["bytes_per_token"], ",.0f"),
        figure(row["ratio_to_float16"], ".2f"),
        figure(row["ratio_to_float16_at_4k"], ".2f"),
        figure(row["ratio_to_float16_at_32k"], ".2f"),
        f"{saved:.0%}",
        row["verdict"],
    ]


def _by_document(row: dict[str, Any]) -> list[str]:
    return [
        row["policy"],
        row["document"],
        figure(row["ppl_baseline"], ".2f"),
        f"{row['ppl_increase']:+.2%}",
        interval_text(row),
        figure(row["kl_mean"], ".4g"),
    ]


def interval_text(row: dict[str, Any]) -> str:
    """The interval of a row's PPL increase; "–" when there is none."""
    low, high = row["ppl_increase_low"], row["ppl_increase_high"]
    if low is None or high is None:
        return "–"
    return f"{low:+.2%} … " + (f"{high:+.2%}" if high < _MOST_SHOWN else f"beyond {_MOST_SHOWN:+.0%}")


def _inconclusive(row: dict[str, Any]) -> str:
    needed = row["passages_to_decide"]
    told = f"about {needed} passages would decide" if needed else "no number of passages would decide soon"
    reason = f" ({row['verdict_reason']})" if row["verdict_reason"] else ""
    return f"{row['policy']}: inconclusive{reason}; {told}"
