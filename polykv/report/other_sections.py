"""Go/no-go and certification, where the run holds them; columns that an older run lacks read as "–"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polykv.report.markup import Html, between, details, figure, section, table, tag

Row = Mapping[str, Any]

_SIGNS = {"go": "✓", "inconclusive": "?", "no-go": "✕"}
_SHADES = {"go": "v-pass", "inconclusive": "v-inconclusive", "no-go": "v-fail"}
ALL_HEADS = -1


def gonogo_section(rows: Sequence[Row]) -> Html | None:
    """Where the sparse dictionary beats its fair rivals: one mark a layer and stream, and the figures."""
    primary = sorted((r for r in rows if r.get("is_primary")), key=lambda r: (r["stream"], r["kv_head"], r["layer"]))
    if not primary:
        return None
    counts = {name: sum(row.get("verdict") == name for row in primary) for name in _SIGNS}
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "none could be judged"
    return section(
        "Go / no-go: sparse dictionary against fair rivals",
        "gonogo",
        tag("p", f"Of {len(primary)} layer × stream dictionaries: {told}. A margin above 0 means that the dictionary's "
            "error is smaller than that of the best rival at no more bits."),
        _map(primary),
        details("The numbers", table("Primary dictionaries", _COLUMNS, map(_line, primary), range(3, 8))),
    )  # fmt: skip


def certify_section(rows: Sequence[Row]) -> Html | None:
    """Real perplexity with a policy on, all layers and heads at once."""
    whole = [row for row in rows if row.get("slice_kind") == "all"]
    if not whole:
        return None
    columns = (
        "policy", "verdict", "perplexity", "of the model itself", "increase", "95 % interval", "KL (nats)",
        "same top token", "bytes, 1 / float16", "tokens scored",
    )  # fmt: skip
    shown = [
        (
            row["policy"],
            row.get("verdict"),
            figure(row.get("ppl_policy"), ".3f"),
            figure(row.get("ppl_baseline"), ".3f"),
            _percent(row.get("ppl_increase")),
            _percents(row.get("ppl_increase_low"), row.get("ppl_increase_high")),
            figure(row.get("kl_mean"), ".2e"),
            _percent(row.get("top1_agreement"), sign=False),
            figure(row.get("ratio_to_float16"), ".1f"),
            figure(row.get("n_tokens_scored"), "d"),
        )
        for row in whole
    ]
    return section(
        "Certification: perplexity in the model itself",
        "certify",
        tag("p", "The policy applied inside the model, all layers and heads at once, on held-out text; every "
            "difference is paired by passage."),
        table("Perplexity with each policy", columns, shown, range(2, 10)),
    )  # fmt: skip


_COLUMNS = (
    "layer", "stream", "head", "error", "rival's error", "margin", "95 % interval", "bits per value", "best rival",
    "verdict",
)  # fmt: skip


def _line(row: Row) -> tuple[Any, ...]:
    return (
        row["layer"],
        row["stream"],
        "all" if row["kv_head"] == ALL_HEADS else row["kv_head"],
        figure(row.get("confirm_relative_error")),
        figure(row.get("rival_relative_error")),
        figure(row.get("margin"), "+.4f"),
        between(row.get("margin_low"), row.get("margin_high"), "+.4f"),
        figure(row.get("bits_per_value"), ".2f"),
        row.get("rival"),
        row.get("verdict") or row.get("reason"),
    )


def _map(rows: Sequence[Row]) -> Html:
    layers = sorted({row["layer"] for row in rows})
    lines: dict[tuple[str, int], dict[int, Row]] = {}
    for row in rows:
        lines.setdefault((row["stream"], row["kv_head"]), {})[row["layer"]] = row
    body = []
    for number, ((stream, head), by_layer) in enumerate(lines.items()):
        name = stream if head == ALL_HEADS else f"{stream} {head}"
        cells = [_cell(by_layer.get(layer), (number, place) == (0, 0)) for place, layer in enumerate(layers)]
        body.append(tag("tr", tag("th", name, scope="row"), *cells))
    head_row = tag("tr", tag("th", "stream", scope="col"), *(tag("th", layer, scope="col") for layer in layers))
    grid = tag(
        "table",
        tag("caption", "Verdict by layer and stream", tag("span", " layers →", class_="axis")),
        tag("thead", head_row),
        tag("tbody", *body),
        class_="map middle",
        role="grid",
        style="--w:28px",
    )
    return tag("div", grid, class_="scroll")


def _cell(row: Row | None, first: bool) -> Html:
    if row is None:
        return tag("td", class_="empty")
    verdict = row.get("verdict")
    words = (
        f"layer {row['layer']}, {row['stream']}: {verdict or 'failed'}; margin {figure(row.get('margin'), '+.4f')} "
        f"{between(row.get('margin_low'), row.get('margin_high'), '+.4f')} over {row.get('rival') or 'no rival'}; "
        f"relative error {figure(row.get('confirm_relative_error'))}"
    )
    sign = tag("span", _SIGNS.get(verdict or "", "!"), aria_hidden="true")
    return tag("td", sign, class_=_SHADES.get(verdict or "", "v-failed"), aria_label=words, tabindex=0 if first else -1)


def _percent(share: float | None, sign: bool = True) -> str:
    return "–" if share is None else f"{100 * share:+.2f} %" if sign else f"{100 * share:.1f} %"


def _percents(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"[{100 * low:+.2f}, {100 * high:+.2f}] %"
