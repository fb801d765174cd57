"""Does attention's output enter the residual linearly? Shown on the model itself, or not used.

Logit data lets a replay say what a change of one head does to the model's logits. It is right
only for a model that computes, at every captured layer, mid = in + W_o·out (+ bias) and
out = mid + mlp, and in the end logits = W_lm·(γ · residual / rms). `ResidualTap` reads those
residuals where they pass; `linear_projection` compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polykv.attention import relative_error
from polykv.capture.adapter import layer_count, to_numpy

NO_LINEAR_PROJECTION = "no_linear_projection"
LIMIT = 1e-4
# One float32 addition to a residual much larger than its addend rounds by this much of it.
_ROUNDING = 1e-6
_LAYER_PARTS = ("self_attn", "post_attention_layernorm", "mlp")


@dataclass(eq=False)
class ResidualTap:
    """Residuals at the queries of each row of a batch, [row][query, hidden] float32, by place.

    Places: (layer, "in" | "mid" | "mlp" | "out"), and ("final",) before the last norm.
    """

    at: dict[tuple[Any, ...], list[np.ndarray]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Projections:
    """The linear maps from one layer's attention output to the logits, as float32 copies."""

    model: Any

    def w_o(self, layer: int) -> np.ndarray:
        """[hidden, q_head·value_dim]: the output projection of a layer."""
        return to_numpy(self._o_proj(layer).weight)

    def bias(self, layer: int) -> np.ndarray:
        """[hidden], or [1] zero where the output projection has no bias."""
        bias = getattr(self._o_proj(layer), "bias", None)
        return np.zeros(1, np.float32) if bias is None else to_numpy(bias)

    def wlm_gamma(self, label_ids: np.ndarray) -> np.ndarray:
        """[label, hidden]: rows of the language-model head times the final norm's weight."""
        rows = self.model.get_output_embeddings().weight[np.asarray(label_ids, np.int64).tolist()]
        return to_numpy(rows) * to_numpy(self.model.base_model.norm.weight)

    @property
    def epsilon(self) -> float:
        """What the final norm adds to the mean square."""
        return float(_epsilon(self.model.base_model.norm))

    def _o_proj(self, layer: int) -> Any:
        return self.model.base_model.layers[layer].self_attn.o_proj


def _epsilon(norm: Any) -> float | None:
    return getattr(norm, "variance_epsilon", getattr(norm, "eps", None))


def missing_parts(model: Any, layers: Sequence[int]) -> str | None:
    """What keeps `model` from being read as Llama-like, in words; None when it has every part."""
    base, head = model.base_model, model.get_output_embeddings()
    if head is None or not hasattr(head, "weight"):
        return "it has no output embedding"
    if not hasattr(base, "layers") or not hasattr(getattr(base, "norm", None), "weight"):
        return f"{type(base).__name__} has no layers and norm"
    if _epsilon(base.norm) is None:
        return f"{type(base.norm).__name__} has no epsilon"
    for layer in layers:
        lacking = [name for name in _LAYER_PARTS if not hasattr(base.layers[layer], name)]
        if lacking:
            return f"{type(base.layers[layer]).__name__} has no {lacking[0]}"
        projection = getattr(base.layers[layer].self_attn, "o_proj", None)
        if getattr(getattr(projection, "weight", None), "ndim", 0) != 2:
            return f"{type(base.layers[layer].self_attn).__name__} has no linear o_proj"
    return None


@contextmanager
def residuals(model: Any, layers: Sequence[int], places: Sequence[np.ndarray]) -> Iterator[ResidualTap]:
    """While inside, a forward pass leaves the residuals at `places` [row][query] in the tap yielded."""
    tap, base, handles = ResidualTap(), model.base_model, []

    def keep(*key: Any) -> Callable[[Any], None]:
        def store(hidden: Any) -> None:
            tensor = hidden[0] if isinstance(hidden, tuple) else hidden
            tap.at[key] = [to_numpy(tensor[row][wanted.tolist()]) for row, wanted in enumerate(places)]

        return store

    try:
        for layer in layers:
            module = base.layers[layer]
            handles.append(_before(module, keep(layer, "in")))
            handles.append(_before(module.post_attention_layernorm, keep(layer, "mid")))
            handles.append(_after(module.mlp, keep(layer, "mlp")))
            handles.append(_after(module, keep(layer, "out")))
        handles.append(_after(base.layers[layer_count(model) - 1], keep("last")))
        handles.append(_before(base.norm, keep("final")))
        yield tap
    finally:
        for handle in handles:
            handle.remove()


def linear_projection(
    tap: ResidualTap, row: int, outs: Mapping[int, np.ndarray], projections: Projections
) -> str | None:
    """Why a row's residuals are not made as said above, in words; None when they are.

    outs {layer: [q_head, query, value_dim]}: the captured outputs.
    """
    for layer, out in outs.items():
        lacking = [place for place in ("in", "mid", "mlp", "out") if (layer, place) not in tap.at]
        if lacking:
            return f"layer {layer}: its {lacking[0]!r} residual never passed"
        added = out.transpose(1, 0, 2).reshape(out.shape[1], -1) @ projections.w_o(layer).T + projections.bias(layer)
        before, mid, mlp, after = (tap.at[layer, place][row] for place in ("in", "mid", "mlp", "out"))
        for what, start, step, end in (("W_o·out", before, added, mid), ("mlp", mid, mlp, after)):
            error = _addition_error(start, step, end)
            if not error <= LIMIT:
                return f"layer {layer}: residual + {what} misses the model's own residual by {error:.3g} of {what}"
    error = _addition_error(tap.at[("last",)][row], np.zeros(1), tap.at[("final",)][row])
    return None if error <= LIMIT else "the last layer's residual is not what the final norm reads"


def logits_error(wlm_gamma: np.ndarray, final: np.ndarray, rms: np.ndarray, full: np.ndarray) -> float:
    """Relative error of W_lm·γ·(residual / rms) against the model's logits.

    wlm_gamma [label, hidden]; final [query, hidden]; rms [query]; full [query, label].
    """
    normed = final.astype(np.float64) / rms[:, None]
    return relative_error(normed @ wlm_gamma.astype(np.float64).T, full)


def residual_rms(final: np.ndarray, epsilon: float) -> np.ndarray:
    """[query] float32 √(mean(residual²) + epsilon), the divisor of an RMS norm."""
    return np.sqrt(np.mean(final.astype(np.float64) ** 2, axis=1) + epsilon).astype(np.float32)


def _addition_error(start: np.ndarray, step: np.ndarray, end: np.ndarray) -> float:
    """‖start + step − end‖ beyond what adding in float32 rounds, over ‖step‖ (over ‖end‖ when the step is 0)."""
    start, step, end = (np.asarray(array, np.float64) for array in (start, step, end))
    error = np.linalg.norm(start + step - end) - _ROUNDING * np.linalg.norm(end)
    scale = np.linalg.norm(step) or np.linalg.norm(end) or 1.0
    return float(max(0.0, error) / scale) if np.isfinite(error) else float("inf")


def _before(module: Any, store: Callable[[Any], None]) -> Any:
    """Call `store` with the hidden states a module is given (first argument, or by name)."""

    def hook(_: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        store(arguments[0] if arguments else named["hidden_states"])

    return module.register_forward_pre_hook(hook, with_kwargs=True)


def _after(module: Any, store: Callable[[Any], None]) -> Any:
    """Call `store` with what a module returns."""
    return module.register_forward_hook(lambda _, __, output: store(output))
