"""A policy laid over a model: the four codecs, the mean key and the budget of every cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from polykv.codecs.base import Codec
from polykv.codecs.exact import ExactCodec
from polykv.errors import DimensionMismatch, PolicyError
from polykv.policy import MEAN_UNSELECTED, CompressionPolicy
from polykv.replay.passage import TierCodecs
from polykv.replay.rotation import cell_rotation, check_decodable
from polykv.rotation import Rotation
from polykv.types import Cell, LayerSpec

Artifacts = Callable[[str], Mapping[str, np.ndarray]]


@dataclass(frozen=True, eq=False)
class CellPlan:
    """How one cell keeps its cache: the policy as it stands there, its codecs, the mean key
    [head_dim] float32 that is subtracted (None: none), the rotation taken off keys before they are
    coded (None: none; with one, the mean key is one of un-rotated keys)."""

    cell: Cell
    policy: CompressionPolicy
    codecs: TierCodecs
    key_mean: np.ndarray | None
    rotation: Rotation | None = None

    @property
    def candidate_k(self) -> int | None:
        """Compressed values decoded per query; None: all."""
        k = self.policy.candidate_k
        return None if k == "full" else k

    @property
    def fills_unselected(self) -> bool:
        """Whether the weight of candidates that are not selected goes to the mean of the decoded values."""
        return self.policy.unselected_values == MEAN_UNSELECTED and self.candidate_k is not None

    @property
    def all_codecs(self) -> tuple[Codec, Codec, Codec, Codec]:
        codecs = self.codecs
        return codecs.pool_key, codecs.pool_value, codecs.shell_key, codecs.shell_value

    def is_lossless(self, n_tokens: int) -> bool:
        """Whether nothing is lost in a passage of `n_tokens`: exact codecs and no selection."""
        whole = self.candidate_k is None or self.candidate_k >= n_tokens
        return whole and all(isinstance(codec, ExactCodec) for codec in self.all_codecs)


def plan_cells(
    policy: CompressionPolicy,
    specs: Mapping[int, LayerSpec],
    means: Mapping[Cell, np.ndarray] | None = None,
    artifacts: Artifacts | None = None,
) -> dict[Cell, CellPlan]:
    """A plan for every cell of `specs`.

    `means` holds the mean key of cells that centre; None leaves all keys as they are. Raises
    PolicyError for a cell the model does not have, for a cell without its mean or a layer without
    its rotation, and for a codec that would code a token together with later ones; CodecError for a
    head_dim that a codec cannot take.
    """
    known = {Cell(layer, head) for layer, spec in specs.items() for head in range(spec.n_kv_heads)}
    foreign = sorted(set(policy.cells) - {cell.key for cell in known})
    if foreign:
        raise PolicyError(
            f"policy {policy.name!r} has a cell {foreign[0]!r} that the model lacks "
            f"({len(specs)} layers, {len(known)} cells); it was made for another model"
        )
    return {cell: _plan(policy, specs[cell.layer], cell, means, artifacts) for cell in sorted(known)}


def centred_cells(policy: CompressionPolicy, specs: Mapping[int, LayerSpec]) -> dict[Cell, int]:
    """{cell whose keys the policy centres: the sink tokens left out of its mean}."""
    cells = [Cell(layer, head) for layer, spec in sorted(specs.items()) for head in range(spec.n_kv_heads)]
    here = {cell: policy.for_cell(*cell) for cell in cells}
    return {cell: own.sink_tokens for cell, own in here.items() if own.center_keys != "off"}


def cell_rotations(
    policy: CompressionPolicy, specs: Mapping[int, LayerSpec], artifacts: Artifacts | None = None
) -> dict[Cell, Rotation]:
    """{cell whose keys the policy codes before RoPE: its rotation}; raises as `plan_cells` does."""
    cells = [Cell(layer, head) for layer, spec in sorted(specs.items()) for head in range(spec.n_kv_heads)]
    found = {cell: cell_rotation(policy, specs[cell.layer], cell.kv_head, artifacts) for cell in cells}
    return {cell: rotation for cell, rotation in found.items() if rotation is not None}


def _plan(
    policy: CompressionPolicy,
    spec: LayerSpec,
    cell: Cell,
    means: Mapping[Cell, np.ndarray] | None,
    artifacts: Artifacts | None,
) -> CellPlan:
    own = policy.for_cell(*cell)
    built = [
        policy.codec(tier, stream, *cell, width, artifacts)
        for tier in ("pool", "shell")
        for stream, width in (("key", spec.head_dim), ("value", spec.value_dim))
    ]
    for codec in built:
        _check_causal(codec, own, cell)
    mean = _mean_of(own, spec, cell, means) if means is not None and own.center_keys != "off" else None
    codecs = TierCodecs(*built)
    rotation = cell_rotation(policy, spec, cell.kv_head, artifacts)
    if rotation is not None:
        check_decodable(codecs.pool_key, own)
        check_decodable(codecs.shell_key, own)
    return CellPlan(cell, own, codecs, mean, rotation)


def _check_causal(codec: Codec, own: CompressionPolicy, cell: Cell) -> None:
    """A group is coded when its last token is there; until then its tokens must stay exact."""
    coupled = codec.coupled_tokens()
    if coupled > max(1, own.recent_window):
        raise PolicyError(
            f"policy {own.name!r}, cell {cell.key}: codec {codec.codec_id} codes {coupled} tokens together, but only "
            f"the {own.recent_window} newest stay exact: a query would see codes made from tokens after it; "
            f"set recent_window to at least {coupled}"
        )


def _mean_of(own: CompressionPolicy, spec: LayerSpec, cell: Cell, means: Mapping[Cell, np.ndarray]) -> np.ndarray:
    if cell not in means:
        raise PolicyError(f"policy {own.name!r} centres the keys of cell {cell.key}, but there is no mean for it")
    mean = np.ascontiguousarray(means[cell], dtype=np.float32)
    if mean.shape != (spec.head_dim,):
        raise DimensionMismatch(f"mean key of cell {cell.key}: expected {spec.head_dim} numbers, got {mean.shape}")
    return mean
