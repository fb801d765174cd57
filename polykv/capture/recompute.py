"""Is what was captured what the model did? Attention recomputed in numpy must equal its output."""

from __future__ import annotations

import numpy as np

from polykv.attention import attend, relative_error
from polykv.capture.session import AttentionRecord
from polykv.errors import CaptureError, InputError, NonFiniteError
from polykv.types import LayerCapture, LayerSpec

# Largest relative error of one head's recomputed attention against attention in float32: a
# right capture measures 1e-7 … 3e-6, a wrong rule 1e-2 and more.
HEAD_LIMIT = 1e-4
# Largest relative error of a whole layer against an output that the model made in bfloat16,
# where the scores themselves are rounded to 1 part in 256: right captures measure up to 8e-3
# (SmolLM2; single heads 2e-2) and 1.3e-2 (Gemma 3). Wrong rules are found by HEAD_LIMIT.
BFLOAT16_LAYER_LIMIT = 3e-2
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


def check_attention(capture: LayerCapture, record: AttentionRecord, positions: np.ndarray, place: str) -> float:
    """The largest relative error of a layer's output; raises CaptureError naming head and both numbers.

    Every head is held against the layer's float32 attention: its output, or, where the model
    ran in bfloat16, the output of its own attention function on the same tensors in float32;
    the bfloat16 output is then held against the recomputed one for the layer as a whole.
    positions [query] int; `place` begins the message.
    """
    spec = record.spec
    heads = range(spec.n_q_heads)
    sinks = [None] * spec.n_q_heads if record.sink_logits is None else record.sink_logits.tolist()
    recomputed = [
        attend(
            capture.q[h], capture.k[h // spec.group_size], capture.v[h // spec.group_size], positions, spec, sinks[h]
        )
        for h in heads
    ]
    exact = capture.out if record.exact_out is None else record.exact_out
    errors = [relative_error(recomputed[head], exact[head]) for head in heads]
    for head in heads:
        _within(errors[head], HEAD_LIMIT, f"{place}: attention of layer {spec.layer}, head {head}", spec)
    if record.exact_out is None:
        return max(errors)
    error = relative_error(np.array(recomputed), capture.out)
    _within(error, BFLOAT16_LAYER_LIMIT, f"{place}: attention of layer {spec.layer}, all heads in bfloat16", spec)
    return error


def _within(error: float, limit: float, what: str, spec: LayerSpec) -> None:
    if not error <= limit:
        raise CaptureError(
            f"{what}, recomputed from the captured tensors, differs from the model's output by {error:.3g} (relative), "
            f"more than {limit:.3g}; the capture does not say what the model did ({_rules_in_words(spec)})"
        )


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
