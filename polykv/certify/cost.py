"""Bytes a policy really needs for a whole model, per token, at several context lengths."""

from __future__ import annotations

from collections.abc import Mapping

from polykv.certify.cells import CellPlan
from polykv.replay.cost import CONTEXTS, FLOAT16_BYTES, FLOAT32_BYTES
from polykv.types import Cell, LayerSpec


def model_bytes(
    plans: Mapping[Cell, CellPlan], specs: Mapping[int, LayerSpec], code_bytes: Mapping[Cell, float]
) -> dict[str, float]:
    """Byte columns of a certify row, K and V of all layers, in bytes per token.

    `code_bytes`: measured bytes of codes per token of each cell. At a context length everything is
    charged that is kept once: sinks and window as float16 copies beside their codes, mean keys and
    the running means of decoded values as float32, codebooks once for each distinct codec of the
    model. A sliding layer keeps no more tokens than its window, in float16 too.
    """
    figures = {
        "bytes_per_token": sum(code_bytes.values()),
        "float16_bytes_per_token": float(sum(_width(specs, cell) * FLOAT16_BYTES for cell in plans)),
        "fixed_bytes": fixed_bytes(plans, specs),
    }
    figures["ratio_to_float16"] = figures["float16_bytes_per_token"] / figures["bytes_per_token"]
    for name, context in CONTEXTS.items():
        share = {cell: _kept_tokens(specs[cell.layer], context) / context for cell in plans}
        codes = sum(code_bytes[cell] * share[cell] for cell in plans)
        half = sum(_width(specs, cell) * FLOAT16_BYTES * share[cell] for cell in plans)
        figures[name] = codes + figures["fixed_bytes"] / context
        figures[name.replace("bytes_per_token", "ratio_to_float16")] = half / figures[name]
    return figures


def fixed_bytes(plans: Mapping[Cell, CellPlan], specs: Mapping[int, LayerSpec]) -> float:
    """Bytes kept once, whatever the context: exact tokens, mean keys, means of decoded values, codebooks."""
    total = 0
    for cell, plan in plans.items():
        exact = plan.policy.sink_tokens + plan.policy.recent_window
        total += exact * _width(specs, cell) * FLOAT16_BYTES
        total += 0 if plan.key_mean is None else len(plan.key_mean) * FLOAT32_BYTES
        total += specs[cell.layer].value_dim * FLOAT32_BYTES if plan.fills_unselected else 0
    codecs = {codec.digest(): codec for plan in plans.values() for codec in plan.all_codecs}
    return float(total + sum(codec.side_nbytes() for codec in codecs.values()))


def _width(specs: Mapping[int, LayerSpec], cell: Cell) -> int:
    """Numbers in one token's K and V of one cell."""
    return specs[cell.layer].head_dim + specs[cell.layer].value_dim


def _kept_tokens(spec: LayerSpec, context: int) -> int:
    return context if spec.sliding_window is None else min(context, spec.sliding_window)
