"""Putting our attention inside a transformers model, for one strict forward pass.

The model calls our function in every layer, so later layers see what earlier ones lost. The
mask the model would have used is compared with the rules we attend by: an attention without a
causal mask makes every model look good, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from polykv.attention import visible_mask
from polykv.capture.adapter import (
    attention_replaced,
    check_calls,
    layer_index,
    layer_rules,
    own_attention,
    sink_logits,
    to_numpy,
)
from polykv.capture.forward import pad_left, run
from polykv.capture.models import hf_modules
from polykv.certify.attention import CellUse, LayerInputs, attend_layer
from polykv.certify.cells import CellPlan
from polykv.errors import CertifyError
from polykv.types import Cell, LayerSpec

Attend = Callable[[LayerInputs], np.ndarray | None]


def baseline_logits(model: Any, token_ids: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """[kept, vocabulary] float32 logits of the model's own attention at the positions `keep`."""
    return _forward(model, token_ids, keep, None)


def policy_logits(
    model: Any, token_ids: np.ndarray, keep: np.ndarray, plans: Mapping[Cell, CellPlan], shared: int
) -> tuple[np.ndarray, list[CellUse]]:
    """(logits [kept, vocabulary] float32, what every cell used) with all cells of `plans` compressed at once.

    A layer without a plan keeps the model's own attention.
    """
    uses: list[CellUse] = []
    planned = {cell.layer for cell in plans}

    def attend(inputs: LayerInputs) -> np.ndarray | None:
        if inputs.spec.layer not in planned:
            return None
        out, used = attend_layer(inputs, plans, shared)
        uses.extend(used)
        return out

    return _forward(model, token_ids, keep, attend), uses


def zeroed_logits(model: Any, token_ids: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """Logits with an empty cache: every layer's attention returns zeros, through the same door."""

    def attend(inputs: LayerInputs) -> np.ndarray:
        spec = inputs.spec
        return np.zeros((inputs.keys.shape[1], spec.n_q_heads, spec.value_dim), np.float32)

    return _forward(model, token_ids, keep, attend)


def _forward(model: Any, token_ids: np.ndarray, keep: np.ndarray, attend: Attend | None) -> np.ndarray:
    """One pass over one passage [token]; where `attend` is None, or gives None, the model attends itself."""
    torch, _ = hf_modules()

    def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
        spec = layer_rules(layer_index(module), query, key, value, kwargs)
        check_mask(attention_mask, spec, key.shape[2])
        inputs = LayerInputs(spec, *(to_numpy(tensor[0]) for tensor in (query, key, value)), sink_logits(kwargs))
        found = None if attend is None else attend(inputs)
        if found is None:
            return own_attention(module)(module, query, key, value, attention_mask, *args, **kwargs)
        out = torch.from_numpy(found)[None]
        return out.to(dtype=query.dtype, device=query.device), None

    with attention_replaced(model, attention) as calls:
        logits = run(model, pad_left(model, [token_ids]), keep.tolist())
    check_calls(model, calls)
    return to_numpy(logits[0])


def check_mask(attention_mask: Any, spec: LayerSpec, n_tokens: int) -> None:
    """Raise CertifyError unless the model's mask lets each query see what `spec` says, and no more."""
    fault = mask_fault(attention_mask, spec, visible_mask(np.arange(n_tokens), n_tokens, spec.sliding_window))
    if fault is not None:
        raise CertifyError(f"{fault}, and a perplexity under another mask means nothing")


def mask_fault(attention_mask: Any, spec: LayerSpec, expected: np.ndarray) -> str | None:
    """Where the model's mask differs from `expected` [query, token] bool, in words; None when nowhere.

    The queries are those of the last tokens; the tokens may begin later than the sequence.
    """
    n_queries, n_tokens = expected.shape
    if attention_mask is None:
        seen = np.ones_like(expected)
    else:
        mask = attention_mask[0, 0, :, :n_tokens]
        seen = ((mask == 0) if mask.is_floating_point() else mask).cpu().numpy()
    if np.array_equal(seen, expected):
        return None
    query, token = np.argwhere(seen != expected)[0]
    window = "" if spec.sliding_window is None else f" and a window of {spec.sliding_window}"
    return (
        f"layer {spec.layer}: the query at position {query + n_tokens - n_queries} "
        f"{'sees' if seen[query, token] else 'does not see'} token {token}; a causal mask{window} was expected"
    )
