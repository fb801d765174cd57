"""One cell, one policy, one split: every candidate_k, as rows of the results table.

K and V are encoded once per passage, scored once per query and ranked once; every
candidate_k is a prefix of that ranking. A passage's value is the mean over its queries and
query heads, the cell's the mean of its passages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from polykv.policy import MEAN_UNSELECTED, CompressionPolicy
from polykv.replay.config import SweepConfig
from polykv.replay.cost import byte_figures
from polykv.replay.figures import CellFigures, PassageFigures
from polykv.replay.labels import label_figures
from polykv.replay.passage import Passage, TierCodecs, encode_passage, passages_of, replay_passage, shared_tokens_of
from polykv.replay.rotation import cell_rotation, check_decodable
from polykv.replay.rows import candidate_rows
from polykv.rotation import Rotation
from polykv.types import CellData

# Why a row of a centring policy was measured without.
NOT_CENTRED = "keys_not_centred: no calibrate data"

Artifacts = Callable[[str], Mapping[str, np.ndarray]]


def sweep_cell(
    data: CellData,
    policy: CompressionPolicy,
    config: SweepConfig,
    key_mean: np.ndarray | None = None,
    artifacts: Artifacts | None = None,
) -> list[dict[str, Any]]:
    """Rows for one cell under one policy over all passages of `data`'s split.

    One row per candidate_k, then the `window_only` row. Rows hold every column of
    `schemas.RESULTS` but run_id and row_digest. `key_mean` [head_dim] float32 is what a policy
    that centres its keys subtracts (of un-rotated keys where it codes them before RoPE); without one keys stay as they are, and `reason` says so.
    Raises InputError for a split that cannot be replayed, NonFiniteError naming the place of a
    NaN, CodecError for a head_dim that a codec cannot take.
    """
    here = policy.for_cell(data.spec.layer, data.kv_head)
    mean = key_mean if here.center_keys != "off" else None
    codecs = cell_codecs(here, data, artifacts)
    rotation = cell_rotation(policy, data.spec, data.kv_head, artifacts)
    if rotation is not None:
        check_decodable(codecs.pool_key, here)
        check_decodable(codecs.shell_key, here)
    budgets = np.array([0, *config.candidate_ks])
    figures = CellFigures(
        [_replay_one(data, passage, here, codecs, config, budgets, mean, rotation) for passage in passages_of(data)]
    )
    costs = byte_figures(here, codecs, data.spec, figures.code_bytes, figures.n_tokens)
    rows = candidate_rows(data, policy, config, figures, costs)
    if here.center_keys != "off" and mean is None:
        return [row | {"reason": NOT_CENTRED} for row in rows]
    return rows


def cell_codecs(policy: CompressionPolicy, data: CellData, artifacts: Artifacts | None = None) -> TierCodecs:
    """The four codecs of a cell; a head_dim that one cannot take is refused before any work."""
    layer, kv_head, spec = data.spec.layer, data.kv_head, data.spec
    built = [
        policy.codec(tier, stream, layer, kv_head, width, artifacts)
        for tier in ("pool", "shell")
        for stream, width in (("key", spec.head_dim), ("value", spec.value_dim))
    ]
    return TierCodecs(*built)


def _replay_one(
    data: CellData,
    passage: Passage,
    policy: CompressionPolicy,
    codecs: TierCodecs,
    config: SweepConfig,
    budgets: np.ndarray,
    mean: np.ndarray | None,
    rotation: Rotation | None,
) -> PassageFigures:
    where = f"layer {data.spec.layer}, passage {passage.index}"
    shared = shared_tokens_of(passage.n_tokens, config.shared_tokens, where)
    encoded = encode_passage(passage, codecs, shared, mean, rotation)
    exact, fills = (policy.sink_tokens, policy.recent_window), policy.unselected_values == MEAN_UNSELECTED
    heads = replay_passage(data, passage, encoded, budgets, *exact, mean, fills)
    labels = None
    if data.logits is not None:
        row = int(np.flatnonzero(data.passages == passage.index)[0])
        asked = data.query_position[row] >= 0
        labels = [
            label_figures(data.logits, row, head, asked, figures.exact_output, figures.outputs)
            for head, figures in enumerate(heads)
        ]
    return PassageFigures(passage, heads, labels, encoded.nbytes())
