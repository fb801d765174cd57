"""A search as rows: its trials, its sensitivities, and how far proxies rank as the true KLs do."""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.errors import InputError
from polykv.replay.cost import FLOAT16_BYTES
from polykv.search.loop import Found, Target, Trial
from polykv.search.run import Search
from polykv.search.sensitivity import rank_agreement

PROXIES = ("expected_kl", "output_error", "output_cosine_loss", "relative_mse")
# What a proxy's ranks are compared over: (streams, single heads or all of a layer at once).
PARTS = {
    "key": (("key",), False),
    "value": (("value",), False),
    "pooled": (("key", "value"), False),
    "key heads": (("key",), True),
    "value heads": (("value",), True),
    "pooled heads": (("key", "value"), True),
}


def trial_rows(search: Search, found: Found, target: Target | None, run_id: str) -> list[dict[str, Any]]:
    """Rows of `search.parquet`: every sharing that was judged, in order."""
    return [_trial_row(i, trial, found, target, search, run_id) for i, trial in enumerate(found.trials)]


def _trial_row(
    i: int, trial: Trial, found: Found, target: Target | None, search: Search, run_id: str
) -> dict[str, Any]:
    price = search.sharings[trial.place].price
    float16 = sum(FLOAT16_BYTES * len(unit.basis.mean) for unit in search.units)
    return {
        "run_id": run_id,
        "trial": i,
        "knob": price if np.isfinite(price) else None,
        "bytes_per_token": trial.bytes_per_token,
        "ratio_to_float16": float16 / trial.bytes_per_token,
        "predicted_kl": trial.predicted_kl,
        "kl_mean": trial.kl,
        "log_ratio_mean": trial.log_ratio,
        "log_ratio_standard_error": trial.log_ratio_error,
        "ppl_increase": float(np.expm1(trial.log_ratio)),
        "n_passages": search.judge.n_passages,
        "meets_budget": True if target is None else trial.meets(target),
        "is_best": trial == found.best,
    }


def sensitivity_rows(search: Search, best: Trial | None, run_id: str) -> list[dict[str, Any]]:
    """Rows of `sensitivity.parquet`: true KLs and proxies of streams, and the bytes that `best` gives them."""
    given = {} if best is None else dict(zip(search.units, search.sharings[best.place].options, strict=True))
    rows = []
    for one in search.sensitivities:
        units = [
            unit
            for unit in search.units
            if (unit.cell.layer, unit.stream) == (one.layer, one.stream) and one.kv_head in (None, unit.cell.kv_head)
        ]
        figures = {name: _joined(name, [getattr(unit.proxies, name) for unit in units]) for name in PROXIES}
        sizes = [unit.sizes[int(given[unit])] for unit in units if unit in given]
        rows.append(
            {"run_id": run_id, "layer": one.layer, "kv_head": one.kv_head, "stream": one.stream, "true_kl": one.kl}
            | figures
            | {"bytes_per_vector": float(np.mean(sizes)) if sizes else None}
        )
    return rows


def proxy_agreement(rows: list[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """{proxy: {part: Spearman with the true KL}}, parts in PARTS; None where there is nothing to rank."""
    found: dict[str, dict[str, float | None]] = {}
    for proxy in PROXIES:
        found[proxy] = {}
        for name, (streams, by_head) in PARTS.items():
            chosen = [row for row in rows if row["stream"] in streams and (row["kv_head"] is not None) == by_head]
            known = [(row[proxy], row["true_kl"]) for row in chosen if row[proxy] is not None]
            try:
                found[proxy][name] = rank_agreement(*np.array(known, np.float64).reshape(-1, 2).T)
            except InputError:
                found[proxy][name] = None
    return found


def _joined(name: str, figures: list[float | None]) -> float | None:
    """One figure of several heads: nats add up, shares are averaged."""
    if None in figures:
        return None
    return float(np.sum(figures) if name == "expected_kl" else np.mean(figures))
