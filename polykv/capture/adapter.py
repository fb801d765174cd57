"""Reading attention out of a transformers model: one attention function, in while it captures.

While a model is tapped, each of its attention layers calls our function, which lets the model's
own eager attention do the work (so soft-cap, sinks and head repetition stay the model's) and
hands query, key, value, output and rules to a receiver. Outside, the model carries its former
attention again.

The mask function matters as much as the attention function: an attention implementation for
which transformers knows no mask gets none at all, and eager attention is then not causal.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from polykv.capture.models import quiet
from polykv.errors import UnsupportedModelError
from polykv.types import LayerSpec


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """What one layer's attention was given and gave back, as the model's tensors.

    query [batch, q_head, token, head_dim], key [batch, kv_head, token, head_dim], value
    [batch, kv_head, token, value_dim], out [batch, token, q_head, value_dim]. sink_logits
    [q_head] float32 or None. exact_out: what the same attention gives for the same tensors in
    float32, None when it ran in float32 anyway.
    """

    spec: LayerSpec
    query: Any
    key: Any
    value: Any
    out: Any
    sink_logits: np.ndarray | None
    exact_out: Any = None


def layer_count(model: Any) -> int:
    """Layers the model's configuration announces."""
    return int(model.config.get_text_config(decoder=True).num_hidden_layers)


@contextmanager
def tapped(model: Any, receive: Callable[[AttentionCall], None]) -> Iterator[Counter[int]]:
    """While inside, `receive` gets every attention call of `model`; yields the calls per layer.

    Leaving checks nothing: see `check_calls`. The model's attention implementation is put back
    whatever happened.
    """

    def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
        attend = own_attention(module)
        out, weights = attend(module, query, key, value, attention_mask, *args, **kwargs)
        exact = _in_float32(attend, module, (query, key, value, attention_mask), args, kwargs)
        rules = layer_rules(layer_index(module), query, key, value, kwargs)
        receive(AttentionCall(rules, query, key, value, out, sink_logits(kwargs), exact))
        return out, weights

    with attention_replaced(model, attention) as calls:
        yield calls


@contextmanager
def attention_replaced(model: Any, attention: Callable[..., tuple[Any, Any]]) -> Iterator[Counter[int]]:
    """While inside, every attention layer of `model` calls `attention`; yields the calls per layer.

    `attention(module, query, key, value, attention_mask, *args, **kwargs)` returns (out, weights)
    as transformers' own functions do, and is given the eager mask. The model's attention
    implementation is put back whatever happened.
    """
    import transformers
    from transformers import AttentionInterface, AttentionMaskInterface

    calls: Counter[int] = Counter()
    former = _implementations(model)
    name = f"polykv_capture_{id(calls)}"

    def counted(module: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        calls[layer_index(module)] += 1
        return attention(module, *args, **kwargs)

    AttentionInterface.register(name, counted)
    register_mask(name)
    try:
        with quiet(transformers):
            _switch(model, name)
        yield calls
    finally:
        with quiet(transformers):
            model.set_attn_implementation(former)
        for interface in (AttentionInterface, AttentionMaskInterface):
            getattr(interface, "_global_mapping", {}).pop(name, None)


def layer_index(module: Any) -> int:
    """Which layer an attention module is; raises UnsupportedModelError when it does not say."""
    layer = getattr(module, "layer_idx", None)
    if layer is None:
        raise UnsupportedModelError(f"{type(module).__name__} does not say which layer it is (no layer_idx)")
    return layer


def register_mask(name: str) -> None:
    """Let transformers build the eager mask (causal, windowed, without padding) for `name`."""
    from transformers import AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionMaskInterface.register(name, eager_mask)


def own_attention(module: Any) -> Callable[..., tuple[Any, Any]]:
    """The eager attention of the model file that defines `module`'s class (or a base of it)."""
    for cls in type(module).__mro__:
        found = getattr(sys.modules.get(cls.__module__), "eager_attention_forward", None)
        if found is not None:
            return found
    raise UnsupportedModelError(f"{type(module).__name__} has no eager attention of its own to capture")


def layer_rules(layer: int, query: Any, key: Any, value: Any, kwargs: Mapping[str, Any]) -> LayerSpec:
    """The layer's rules as its attention call states them."""
    scaling, softcap = kwargs.get("scaling"), kwargs.get("softcap")
    return LayerSpec(
        layer=layer,
        n_q_heads=query.shape[1],
        n_kv_heads=key.shape[1],
        head_dim=key.shape[-1],
        value_dim=value.shape[-1],
        softmax_scale=float(query.shape[-1] ** -0.5 if scaling is None else scaling),
        sliding_window=kwargs.get("sliding_window") or None,
        logit_softcap=None if softcap is None else float(softcap),
        has_sink_logits=kwargs.get("s_aux") is not None,
    )


def sink_logits(kwargs: Mapping[str, Any]) -> np.ndarray | None:
    """[q_head] float32 learned sink logits of the call, or None."""
    sinks = kwargs.get("s_aux")
    return None if sinks is None else to_numpy(sinks).reshape(-1)


def _in_float32(attend: Any, module: Any, tensors: tuple[Any, ...], args: tuple[Any, ...], kwargs: Any) -> Any:
    """The output of `attend` on float32 copies of lower-precision tensors; None when they are float32."""
    if tensors[0].element_size() >= 4:
        return None
    return attend(module, *(None if t is None else t.float() for t in tensors), *args, **kwargs)[0]


def to_numpy(tensor: Any) -> np.ndarray:
    """A float32 copy in main memory: the model may grow or reuse its own tensor later."""
    return np.array(tensor.detach().float().cpu().numpy(), dtype=np.float32, order="C", copy=True)


def check_calls(model: Any, calls: Mapping[int, int]) -> None:
    """Raise UnsupportedModelError unless each layer attended exactly once, through the interface."""
    n_layers = layer_count(model)
    wrong = {layer: n for layer, n in sorted(calls.items()) if n != 1 or not 0 <= layer < n_layers}
    if len(calls) == n_layers and not wrong:
        return
    told = f"{sum(calls.values())} attention calls in {len(calls)} layers"
    if wrong:
        told += f" ({', '.join(f'layer {layer}: {n}' for layer, n in wrong.items())})"
    raise UnsupportedModelError(
        f"{type(model).__name__} cannot be captured: {told}, expected one in each of its {n_layers} layers; "
        "its attention does not go through transformers' attention interface, or not in every layer"
    )


def _switch(model: Any, name: str) -> None:
    try:
        model.set_attn_implementation(name)
    except (ValueError, ImportError, AttributeError) as error:
        raise UnsupportedModelError(f"{type(model).__name__} does not take another attention: {error}") from error


def _implementations(model: Any) -> str | dict[str, Any]:
    """The attention implementation now set, sub-configurations included, in the form that sets it again."""

    def of(config: Any) -> str | dict[str, Any]:
        parts = {key: getattr(config, key, None) for key in getattr(config, "sub_configs", {})}
        nested = {key: of(part) for key, part in parts.items() if part is not None}
        own = config._attn_implementation
        return {"": own, **nested} if nested else own

    return of(model.config)
