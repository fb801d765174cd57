"""The tables that only some runs have: the dictionary go/no-go and the certification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polykv.report.cellmaps import Shade, cell_map, legend
from polykv.report.headline import Verdict
from polykv.report.markup import Html, between, figure, section, table, tag
from polykv.report.tables import RunTables

_GONOGO_SIGNS = {"go": "✓", "no-go": "✕", "inconclusive": "?"}
_KINDS = {"go": "pass", "no-go": "fail"}
_GONOGO_WORDS = {
    "go": "go: the dictionary beats every fair rival at no more bits, for the whole 95 % interval",
    "no-go": "no-go: a rival is at least as good",
    "inconclusive": "inconclusive: the interval holds zero, or there are too few passages",
}

Row = Mapping[str, Any]


def gonogo_section(rows: Sequence[Row]) -> Html | None:
    """The map of the sparse dictionary's verdicts; None without primary rows."""
    primary = [row for row in rows if row["is_primary"]]
    if not primary:
        return None
    seen = {_gonogo_verdict(row) for row in primary}
    return section(
        "Sparse dictionary: go or no-go",
        "gonogo",
        tag("p", gonogo_sentence(primary), class_="lead"),
        cell_map("Verdict", primary, _gonogo_shade, _gonogo_words, line=_stream_line, corner="stream"),
        legend((f"v-{name}", _GONOGO_SIGNS[name], words) for name, words in _GONOGO_WORDS.items() if name in seen),
        tag("p", "The rule the idea came with (“legacy”) stands in each cell's note; it says go even on noise.", class_="quiet"),
    )  # fmt: skip


def gonogo_sentence(rows: Sequence[Row]) -> str:
    """How many (layer, stream) say what, in one sentence."""
    primary = [row for row in rows if row["is_primary"]]
    counts = {name: sum(_gonogo_verdict(row) == name for row in primary) for name in _GONOGO_WORDS}
    failed = len(primary) - sum(counts.values())
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    lost = f", {failed} failed" if failed else ""
    return f"A sparse dictionary against fair rivals at no more bits: {said or 'nothing'}{lost} of {len(primary)} layer × stream verdicts."


def certify_section(run: RunTables) -> Html | None:
    """What each policy does to the model itself; None where nothing was certified.

    A certification of another run directory stands after the run's own, under its run's name.
    """
    tables = [shown for source in run.certifications for shown in _certify_table(run, source)]
    if not tables:
        return None
    return section(
        "Certification: what the model itself loses",
        "certify",
        tag("p", "Every policy applied inside the model, all layers and heads at once, against the same passages uncompressed."),
        *tables,
    )  # fmt: skip


def certify_notes(run: RunTables) -> list[str]:
    """Each certification in one sentence, for the head of a sweep's report."""
    return [certify_sentence(source.rows("certify"), source.model_id) for source in run.certifications]


def _certify_table(run: RunTables, source: RunTables) -> list[Html]:
    whole = [row for row in source.rows("certify") if row["slice_kind"] == "all"]
    columns = ("policy", "verdict", "perplexity", "increase", "95 % interval", "KL (nats)", "same top-1", "of float16", "tokens scored")  # fmt: skip
    title = "Perplexity with the policy on" if source is run else f"Run {source.run_id}: perplexity with the policy on"
    shown = table(title, columns, [_certified(row) for row in whole], numeric=range(2, 9))
    if source.model_id == run.model_id:
        return [shown]
    other = f"Run {source.run_id} certified {source.model_id}, while this run's vectors are those of {run.model_id}."
    return [tag("p", other, class_="warning", role="note"), shown]


def certify_sentence(rows: Sequence[Row], model_id: str) -> str:
    """The certification in one sentence, about the policy that does best in the fewest bytes."""
    whole = [row for row in rows if row["slice_kind"] == "all"]
    best = min(whole, key=_by_merit)
    words = {"pass": "Certified", "inconclusive": "Not proven yet", "fail": "Not certified"}
    interval = between(_percent(best["ppl_increase_low"]), _percent(best["ppl_increase_high"]), "+.2f")
    size = f" in {100 / best['ratio_to_float16']:.0f} % of float16's bytes" if best["ratio_to_float16"] else ""
    others = f", the best of {len(whole)} policies" if len(whole) > 1 else ""
    return (
        f"{words.get(best['verdict'], best['verdict'])}: with {best['policy']}{size} the perplexity of {model_id} "
        f"changes by {100 * best['ppl_increase']:+.2f} % {interval}{others}."
    )


def other_verdict(run: RunTables) -> Verdict | None:
    """The verdict of a run that is no sweep, from its certification, go/no-go or search; None when it has none."""
    certified = [row for row in run.rows("certify") if row["slice_kind"] == "all"]
    if certified:
        return Verdict(min(certified, key=_by_merit)["verdict"], certify_sentence(certified, run.model_id), None)
    judged = [row for row in run.rows("gonogo") if row["is_primary"]]
    if judged:
        overall = str(run.receipts.get("gonogo", {}).get("verdict", "inconclusive"))
        return Verdict(_KINDS.get(overall, "inconclusive"), gonogo_sentence(judged), None)
    if run.rows("search"):
        return Verdict("fail", "No policy: no sharing of bytes that the search tried met the budget.", None)
    return None


def _by_merit(row: Row) -> tuple[int, float]:
    order = ("pass", "inconclusive", "fail")
    return (order.index(row["verdict"]) if row["verdict"] in order else len(order), row["bytes_per_token"])


def _certified(row: Row) -> tuple[Any, ...]:
    return (
        row["policy"],
        tag("span", row["verdict"], class_=f"badge v-{row['verdict']}"),
        f"{row['ppl_baseline']:.3f} → {row['ppl_policy']:.3f}",
        f"{100 * row['ppl_increase']:+.2f} %",
        between(_percent(row["ppl_increase_low"]), _percent(row["ppl_increase_high"]), "+.2f"),
        f"{row['kl_mean']:.2e}",
        f"{100 * row['top1_agreement']:.1f} %",
        f"{100 / row['ratio_to_float16']:.0f} %" if row["ratio_to_float16"] else None,
        row["n_tokens_scored"],
    )


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _gonogo_verdict(row: Row) -> str:
    return "failed" if row["status"] != "ok" or not row["verdict"] else row["verdict"].lower()


def _gonogo_shade(row: Row) -> Shade:
    verdict = _gonogo_verdict(row)
    return Shade(f"v-{verdict}", _GONOGO_SIGNS.get(verdict, "!"))


def _gonogo_words(row: Row) -> str:
    head = "all heads" if row["kv_head"] < 0 else f"head {row['kv_head']}"
    if row["status"] != "ok":
        return f"layer {row['layer']}, {row['stream']}, {head}: failed; {row['reason']}"
    return "; ".join(
        (
            f"layer {row['layer']}, {row['stream']}, {head}: {row['verdict']}",
            f"relative error {figure(row['confirm_relative_error'])} at {figure(row['bits_per_value'], '.2f')} bits a value",
            f"best rival {row['rival']} {figure(row['rival_relative_error'])}",
            f"margin {figure(row['margin'], '+.4f')} {between(row['margin_low'], row['margin_high'], '+.4f')}",
            f"attention margin {figure(row['attention_margin'], '+.4f')}",
            f"legacy rule: {row['legacy_verdict']}",
        )
    )


def _stream_line(row: Row) -> str:
    return row["stream"] if row["kv_head"] < 0 else f"{row['stream']} {row['kv_head']}"
