"""Is what was captured what the model did? Attention recomputed in numpy must equal its output."""

from __future__ import annotations

import numpy as np

from polykv.attention import attend, relative_error
from polykv.errors import CaptureError, InputError, NonFiniteError
from polykv.types import LayerCapture, LayerSpec

# Largest relative error, per head, between recomputed and captured output. A right capture
# measures 1e-7 … 3e-6 in float32 and 2e-3 in bfloat16, a wrong rule 1e-2 and more.
RELATIVE_ERROR_LIMIT = {"float32": 1e-4, "bfloat16": 1e-2}
_FLOAT16_MAX = float(np.finfo(np.float16).max)


def check_finite(capture: LayerCapture, layer: int, place: str) -> None:
    """Raise NonFiniteError naming stream, layer, head and row of the first NaN or infinity."""
    for name in ("k", "v", "q", "out"):
        array = getattr(capture, name)
        bad = np.argwhere(~np.isfinite(array))
        if len(bad):
            head, row, _ = bad[0]
            raise NonFiniteError(
                f"{place}: {name} of layer {layer}, head {head}, row {row} is {array[tuple(bad[0])]}: "
                "the model itself produced it; try --compute-dtype float32, or look at its weights"
            )


def check_attention(
    capture: LayerCapture,
    spec: LayerSpec,
    positions: np.ndarray,
    sink_logits: np.ndarray | None,
    limit: float,
    place: str,
) -> float:
    """The largest relative error over the layer's query heads; raises CaptureError past `limit`.

    positions [query] int; sink_logits [q_head] float32 or None; `place` begins the message.
    """
    worst = 0.0
    for head in range(spec.n_q_heads):
        kv_head = head // spec.group_size
        sink = None if sink_logits is None else float(sink_logits[head])
        expected = attend(capture.q[head], capture.k[kv_head], capture.v[kv_head], positions, spec, sink)
        error = relative_error(expected, capture.out[head])
        if not error <= limit:
            raise CaptureError(
                f"{place}: attention of layer {spec.layer}, head {head}, recomputed from the captured tensors, differs "
                f"from the model's output by {error:.3g} (relative), more than {limit:.3g}; the capture does not say "
                f"what the model did ({_rules_in_words(spec)})"
            )
        worst = max(worst, error)
    return worst


def check_storable(capture: LayerCapture, layer: int, store_dtype: str, place: str) -> None:
    """Raise InputError when float16 cannot hold a value: NaN-free stores must not gain infinities."""
    if store_dtype != "float16":
        return
    for name in ("k", "v", "q", "out"):
        array = getattr(capture, name)
        over = np.abs(array) > _FLOAT16_MAX
        if over.any():
            head, row, _ = np.unravel_index(int(np.argmax(over)), array.shape)
            raise InputError(
                f"{place}: {name} of layer {layer}, head {head}, row {row} is {array[over][0]:.6g}, beyond float16 "
                f"(±{_FLOAT16_MAX:.0f}); store float32 (--dtype float32)"
            )


def same_rules(seen: LayerSpec, planned: LayerSpec, place: str) -> None:
    """Raise CaptureError when a layer attends by other rules than when the capture was planned."""
    if seen != planned:
        raise CaptureError(
            f"{place}: layer {seen.layer} attends by other rules than at the start "
            f"({_rules_in_words(seen)}, was {_rules_in_words(planned)}); one capture holds one set of rules"
        )


def recorded_heads(vectors: np.ndarray, n_heads: int, n_tokens: int, what: str) -> np.ndarray:
    """[head, token, width] from token-major rows [token · head, width]; raises CaptureError on another count."""
    if len(vectors) != n_tokens * n_heads:
        raise CaptureError(
            f"{what}: {len(vectors)} vectors were recorded, expected {n_tokens} tokens × {n_heads} heads = "
            f"{n_tokens * n_heads}"
        )
    return np.ascontiguousarray(vectors.reshape(n_tokens, n_heads, -1).transpose(1, 0, 2))


def _rules_in_words(spec: LayerSpec) -> str:
    rules = spec.to_dict()
    return ", ".join(f"{name} {rules[name]}" for name in _RULES)


_RULES = ("n_q_heads", "n_kv_heads", "softmax_scale", "sliding_window", "logit_softcap", "has_sink_logits")
