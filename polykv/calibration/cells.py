"""The go/no-go of one (layer, stream), or of one head of it, as rows of the GONOGO table.

Pure functions over `CellData`, ready to fan out: a job reads the cells, calls `gonogo_cell`,
writes rows and artifacts. The same cells and settings give the same rows and the same artifact bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polykv.calibration.judgement import Judgement, judge_samples
from polykv.calibration.sample import sample_of_cells
from polykv.calibration.settings import GonogoSettings
from polykv.errors import InputError
from polykv.receipts import NUMERICS_VERSION, canonical_json, digest_json
from polykv.schemas import GONOGO
from polykv.types import CellData

ALL_HEADS = -1


@dataclass(frozen=True, eq=False)
class CellGonogo:
    """rows: dicts with every column of GONOGO; artifacts: arrays by the blake3 of their npz; the judgement."""

    rows: list[dict[str, Any]]
    artifacts: Mapping[str, Mapping[str, np.ndarray]]
    judgement: Judgement


def gonogo_cell(
    calibrate: Sequence[CellData],
    confirm: Sequence[CellData],
    stream: str,
    settings: GonogoSettings | None = None,
    per_head: bool = False,
    run_id: str = "",
) -> CellGonogo:
    """Judge one stream ("key" or "value") of the heads given: fitted on calibrate, scored on confirm.

    calibrate, confirm: the same heads of one layer, in the same order; one head when `per_head`,
    else all that are to share a dictionary (the rows then carry kv_head −1). Raises InputError
    for splits that do not fit together and when the primary dictionary cannot be learned,
    NonFiniteError naming layer, head, passage and entry.
    """
    settings = settings or GonogoSettings()
    _check_heads(calibrate, confirm, per_head)
    keep = (stream, settings.sink_tokens, settings.recent_window)
    judgement = judge_samples(
        sample_of_cells(calibrate, *keep, queries_per_passage=0),
        sample_of_cells(confirm, *keep, queries_per_passage=settings.queries_per_passage),
        settings,
    )
    cells = (*calibrate, *confirm)
    slabs = {f"{c.split}/{c.kv_head}/{name}": digest for c in cells for name, digest in c.slab_digests.items()}
    place = {
        "run_id": run_id,
        "layer": confirm[0].spec.layer,
        "stream": stream,
        "kv_head": confirm[0].kv_head if per_head else ALL_HEADS,
    }
    rows = gonogo_rows(judgement, place, slabs)
    return CellGonogo(rows, judgement.arms.dictionaries, judgement)


def gonogo_rows(judgement: Judgement, place: Mapping[str, Any], slabs: Mapping[str, str]) -> list[dict[str, Any]]:
    """One row per arm, then one per grid point that could not be learned. `place`: run_id, layer, stream, kv_head."""
    common = {
        **place,
        "head_dim": judgement.head_dim,
        "unit_kind": judgement.unit_kind,
        "n_units": judgement.n_units,
        "n_calibrate_vectors": judgement.n_vectors["calibrate"],
        "n_trained_vectors": judgement.n_vectors["trained"],
        "n_confirm_vectors": judgement.n_vectors["confirm"],
        "amortised_over_vectors": judgement.settings.amortised_over_vectors,
        "unit_energy": judgement.confirm_energy.tolist(),
    }
    settings = judgement.settings
    rows = [_arm_row(judgement, index, common, slabs) for index in range(len(judgement.arms.arms))]
    for grid, reason in judgement.arms.failed.items():
        rows += failed_rows(place, settings, reason, (grid,), slabs)
    return rows


def failed_rows(
    place: Mapping[str, Any],
    settings: GonogoSettings,
    reason: str,
    grid: Sequence[tuple[int, int]] | None = None,
    slabs: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Rows that say why there are no figures: one per grid point (all of the settings' when None)."""
    rows = []
    for n_atoms, sparsity in settings.grid if grid is None else grid:
        config = {"id": "sparse", "n_atoms": n_atoms, "sparsity": sparsity}
        row = _blank(place, config, settings, slabs or {})
        row |= {"n_atoms": n_atoms, "sparsity": sparsity, "status": "failed", "reason": reason}
        row["is_primary"] = (n_atoms, sparsity) == settings.grid[0]
        rows.append(row)
    return rows


def _arm_row(judgement: Judgement, index: int, common: Mapping[str, Any], slabs: Mapping[str, str]) -> dict[str, Any]:
    arm, figures, primary = judgement.arms.arms[index], judgement.arm_dict(index), index == judgement.primary
    row = _blank(common, arm.config, judgement.settings, slabs)
    row |= {
        "codec": arm.name,
        "is_primary": primary,
        "status": "ok",
        "side_bytes": float(figures["side_nbytes"]),
        "attention_kl_mean": figures["attention_kl_nats"],
        "unit_squared_error": arm.confirm.squared_error.tolist(),
    }
    same_name = ("bits_per_vector", "bits_per_value", "bits_per_vector_amortised", "calibrate_relative_error")
    same_name += ("confirm_relative_error", "confirm_relative_error_low", "confirm_relative_error_high")
    row |= {name: figures[name] for name in same_name}
    if judgement.errors.attention is not None:
        row |= _spread("attention_output_error", judgement.errors.attention[index])
        row["unit_attention_error"] = arm.confirm.attention_error.tolist()
    if arm.grid is not None:
        row |= {"n_atoms": arm.grid[0], "sparsity": arm.grid[1], "artifact": arm.artifact}
        row["coefficients"] = arm.config["coefficients"]
        row |= _comparison_columns(judgement, index)
    if primary:
        legacy = judgement.legacy
        row |= {
            "verdict": judgement.verdict,
            "verdict_reason": judgement.verdict_reason,
            "legacy_verdict": legacy.verdict,
        }
        row |= {"legacy_dictionary_error": legacy.dictionary_error, "legacy_ternary_error": legacy.ternary_error}
    return row


def _comparison_columns(judgement: Judgement, index: int) -> dict[str, Any]:
    found = judgement.errors.comparisons[index]
    columns = {
        "rival": found.rival,
        "rival_relative_error": found.rival_error,
        **_spread("margin", found.margin),
        "amortised_margin": found.amortised_margin,
        "calibrate_ratio": found.calibrate_ratio,
        "verdict": found.verdict,
        "verdict_reason": found.reason,
        "rival_unit_squared_error": found.rival_unit_error.tolist(),
    }
    if found.attention_margin is not None:
        columns |= {"attention_rival": found.attention_rival, **_spread("attention_margin", found.attention_margin)}
        columns["rival_unit_attention_error"] = found.rival_attention_unit_error.tolist()
    return columns


def _blank(
    place: Mapping[str, Any], config: Mapping[str, Any], settings: GonogoSettings, slabs: Mapping[str, str]
) -> dict:
    """Every column of GONOGO: null, but for what identifies the row."""
    row: dict[str, Any] = dict.fromkeys(GONOGO.column_names)
    row |= place
    where = {name: place[name] for name in ("layer", "stream", "kv_head")}
    text = canonical_json(config)
    identity = {**where, "config": config, "settings": settings.to_dict(), "slabs": slabs, "numerics": NUMERICS_VERSION}
    row |= {"codec": config["id"], "config": text.decode(), "config_digest": digest_json(config)}
    row["row_digest"] = digest_json(identity)
    return row


def _spread(name: str, estimate) -> dict[str, float | None]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def _check_heads(calibrate: Sequence[CellData], confirm: Sequence[CellData], per_head: bool) -> None:
    heads = [[c.cell for c in cells] for cells in (calibrate, confirm)]
    if not heads[0] or heads[0] != heads[1]:
        raise InputError(f"calibrate has cells {heads[0]}, confirm {heads[1]}: they must be the same, and at least one")
    if per_head and len(heads[0]) != 1:
        raise InputError(f"per_head judges one head at a time, got {len(heads[0])}")
    for name, cells in (("calibrate", calibrate), ("confirm", confirm)):
        if len(cells[0].passages) == 0:
            raise InputError(f"layer {cells[0].spec.layer}: the {name} split has no passages")
    shared = np.intersect1d(calibrate[0].passages, confirm[0].passages)
    if len(shared):
        raise InputError(f"passage {shared[0]} is in both splits: held-out figures need other passages")
