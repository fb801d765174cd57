"""One verdict over many (layer, stream[, head]) rows, and which layers are worst.

All rows of a run are of the same passages, so one draw of passages serves them all: the
overall margin is the mean margin over the primary rows, and its interval keeps what a hard
passage does to every layer at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polykv.calibration.resampling import bootstrap_sums, interval
from polykv.calibration.settings import GonogoSettings
from polykv.calibration.verdict import GO, INCONCLUSIVE, NO_GO, Estimate, verdict_of
from polykv.errors import InputError
from polykv.receipts import digest_json, to_plain

SCHEMA = "polykv_gonogo_overall_v1"
OVERALL_RULE = (
    "the rule of one layer, applied to the mean over layers of the margins of the primary rows (their rivals as chosen "
    "there), passages drawn once for all; GO only when no row is NO-GO, whatever the mean; inconclusive when a job failed"
)
N_WORST = 5


def overall(rows: Sequence[Mapping[str, Any]], settings: GonogoSettings) -> dict[str, Any]:
    """The run's receipt from its GONOGO rows: verdict of all, of each stream, counts, worst layers.

    Raises InputError when there is no primary row or the rows are of different numbers of units.
    """
    primary = [row for row in rows if row["is_primary"]]
    if not primary:
        raise InputError(f"none of the {len(rows)} go/no-go rows is a primary one: nothing to sum up")
    streams = {s: [r for r in primary if r["stream"] == s] for s in ("key", "value")}
    body = {
        "schema": SCHEMA,
        **_group(primary, settings),
        "rule": OVERALL_RULE,
        "streams": {name: _group(found, settings) for name, found in streams.items() if found},
        "row_digests": sorted(row["row_digest"] for row in rows),
        "settings": settings.to_dict(),
    }
    plain = to_plain(body)
    return {**plain, "digest": digest_json(plain)}


def _group(rows: Sequence[Mapping[str, Any]], settings: GonogoSettings) -> dict[str, Any]:
    done = [row for row in rows if row["status"] == "ok"]
    found: dict[str, Any] = {
        "verdict": INCONCLUSIVE,
        "verdict_reason": None,
        "n_rows": len(rows),
        "n_failed": len(rows) - len(done),
        "verdicts": dict(Counter(row["verdict"] for row in done)),
        "legacy_verdicts": dict(Counter(row["legacy_verdict"] for row in done)),
        "mean_margin": None,
        "mean_attention_margin": None,
        "worst": [],
    }
    if not done:
        return {**found, "verdict_reason": "every job failed"}
    margins = [_mean_margin(done, "unit_squared_error", "rival_unit_squared_error", "unit_energy", settings)]
    probed = [row for row in done if row["unit_attention_error"] is not None]
    if probed:
        margins.append(_mean_margin(probed, "unit_attention_error", "rival_unit_attention_error", None, settings))
    verdict, reason = verdict_of(margins, min(row["n_units"] for row in done), settings.min_units)
    against = found["verdicts"].get(NO_GO, 0)
    if verdict == GO and against:
        verdict, reason = INCONCLUSIVE, f"mixed: {against} of {len(done)} rows are {NO_GO}"
    if len(done) < len(rows):
        verdict, reason = INCONCLUSIVE, f"failed_jobs: {len(rows) - len(done)} of {len(rows)}"
    worst = sorted(done, key=lambda row: (row["margin"], row["layer"], row["kv_head"]))[:N_WORST]
    names = ("layer", "stream", "kv_head", "verdict", "margin", "attention_margin", "rival")
    return {
        **found,
        "verdict": verdict,
        "verdict_reason": reason,
        "mean_margin": to_plain(margins[0]),
        "mean_attention_margin": to_plain(margins[1]) if probed else None,
        "worst": [{name: row[name] for name in names} for row in worst],
    }


def _mean_margin(
    rows: Sequence[Mapping[str, Any]], mine: str, rival: str, energy: str | None, settings: GonogoSettings
) -> Estimate:
    """Mean over rows of √(Σrival/Σenergy) − √(Σmine/Σenergy), Σ over units; without energy of the mean of rival − mine."""
    sizes = {len(row[mine]) for row in rows}
    if len(sizes) > 1:
        raise InputError(
            f"rows to be summed up have {min(sizes)} to {max(sizes)} units ({mine}); they must share their passages"
        )
    n_units = sizes.pop()
    if energy is None:
        stacked = np.array([np.subtract(row[rival], row[mine]) for row in rows]).mean(axis=0)[:, None] / n_units
        margins = np.ravel
    else:
        stacked = np.array([row[name] for row in rows for name in (energy, mine, rival)], dtype=np.float64).T
        margins = _root_margins
    value = float(margins(stacked.sum(axis=0, keepdims=True))[0])
    if n_units < 2:
        return Estimate(value, None, None)
    drawn = margins(bootstrap_sums(stacked, settings.n_resamples, settings.seed))
    return Estimate(value, *interval(drawn, n_units, settings.confidence))


def _root_margins(sums: np.ndarray) -> np.ndarray:
    """[resample] mean margin from sums [resample, 3 · row] in the order energy, mine, rival."""
    energy, mine, rival = np.moveaxis(sums.reshape(len(sums), -1, 3), 2, 0)
    safe = np.where(energy > 0, energy, 1.0)
    return (np.sqrt(rival / safe) - np.sqrt(mine / safe)).mean(axis=1)
