"""A policy in force inside a transformers model: whole sequences, and decoding token by token.

    with applied(model, plans, specs) as cache:
        model.generate(input_ids)        # every layer attends to the compressed cache
    cache.nbytes                         # what the sequence's codes take

A query sees the cache exactly as the certification defines it (`polykv.certify.attention`), so a
sequence decoded step by step gives what one forward over all of it gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from polykv.attention import visible_mask
from polykv.capture.adapter import attention_replaced, layer_index, layer_rules, sink_logits, to_numpy
from polykv.capture.models import hf_modules
from polykv.certify.attention import CellUse, LayerInputs, attend_layer
from polykv.certify.cells import CellPlan
from polykv.certify.cost import model_bytes
from polykv.certify.inject import mask_fault
from polykv.errors import InputError
from polykv.types import Cell, LayerSpec

_START_INSIDE = (
    "a static or quantised cache, one filled outside this block, or one that was cut or reordered (beam search, assisted "
    "decoding) cannot be compressed: start the sequence inside, with the default dynamic cache"
)


@dataclass(frozen=True, eq=False)
class _Held:
    """One layer's vectors of the sequence so far: keys [kv_head, token, head_dim], values likewise, and
    how many first tokens the pool codes."""

    keys: np.ndarray
    values: np.ndarray
    shared: int


class CompressedCache:
    """What the model's layers hold of the sequence they are in, and what it cost.

    Figures are of the newest sequence; they stay readable after the block.
    """

    def __init__(self, plans: Mapping[Cell, CellPlan], specs: Mapping[int, LayerSpec], shared: int | None) -> None:
        self.plans = plans
        self.specs = specs
        self._shared = shared
        self._held: dict[int, _Held] = {}
        self._code_bytes: dict[Cell, int] = {}
        self._values = dict.fromkeys(self.specs, np.zeros(3, np.int64))

    @property
    def n_tokens(self) -> int:
        """Tokens of the sequence."""
        return max((held.keys.shape[1] for held in self._held.values()), default=0)

    @property
    def nbytes(self) -> int:
        """Bytes of the sequence's codes, K and V, all layers and heads."""
        return sum(self._code_bytes.values())

    @property
    def decoded_values(self) -> int:
        """Compressed values that the sequence's queries decoded, over all query heads."""
        return int(self._counts[0])

    @property
    def exact_values(self) -> int:
        """Sink and window values they attended exactly."""
        return int(self._counts[1])

    @property
    def visible_values(self) -> int:
        """Values they could see."""
        return int(self._counts[2])

    def costs(self) -> dict[str, float]:
        """Bytes per token, fixed bytes and ratios to float16: the byte columns of `schemas.CERTIFY`.

        Raises InputError before the first forward.
        """
        if not self._code_bytes:
            raise InputError("nothing was compressed yet: run the model inside the block first")
        per_token = {cell: n_bytes / self.n_tokens for cell, n_bytes in self._code_bytes.items()}
        return model_bytes(self.plans, self.specs, per_token)

    @property
    def _counts(self) -> np.ndarray:
        return sum(self._values.values(), np.zeros(3, np.int64))

    def attend(self, given: LayerInputs, attention_mask: Any) -> np.ndarray:
        """[query, q_head, value_dim] float32: one layer's output for its newest tokens.

        `given.keys` and `given.values` are the model's own cache with the new tokens at its end; a
        sliding-window layer has dropped the tokens that no query sees any more.
        """
        layer, n_new = given.spec.layer, given.queries.shape[1]
        held, starts = self._grown(given), given.keys.shape[1] == n_new
        _check_mask(attention_mask, given, held.keys.shape[1])
        whole = replace(given, keys=held.keys, values=held.values)
        out, uses = attend_layer(whole, self.plans, held.shared)
        self._held[layer] = held
        self._count(layer, uses, starts)
        return out

    def _grown(self, given: LayerInputs) -> _Held:
        """The layer's vectors with the new ones; refused when the model's cache is not what is held."""
        n_given, n_new = given.keys.shape[1], given.queries.shape[1]
        if n_given == n_new:
            return _Held(given.keys, given.values, n_new // 2 if self._shared is None else self._shared)
        layer, n_cached = given.spec.layer, n_given - n_new
        held = self._held.get(layer)
        n_held = 0 if held is None else held.keys.shape[1]
        window = given.spec.sliding_window
        if held is None or n_cached != (n_held if window is None else min(n_held, window - 1)):
            raise InputError(f"layer {layer} was given {n_cached} cached keys where {n_held} are held: {_START_INSIDE}")
        if not np.array_equal(given.keys[:, :n_cached], held.keys[:, n_held - n_cached :]):
            raise InputError(f"layer {layer} was given cached keys that it did not compute: {_START_INSIDE}")
        keys = np.concatenate([held.keys, given.keys[:, n_cached:]], axis=1)
        values = np.concatenate([held.values, given.values[:, n_cached:]], axis=1)
        return _Held(keys, values, held.shared)

    def _count(self, layer: int, uses: list[CellUse], starts: bool) -> None:
        self._code_bytes.update({use.cell: use.code_bytes for use in uses})
        new = np.array([[use.decoded.sum(), use.exact.sum(), use.visible.sum()] for use in uses]).sum(axis=0)
        self._values[layer] = new if starts else self._values[layer] + new


@contextmanager
def applied(
    model: Any, plans: Mapping[Cell, CellPlan], specs: Mapping[int, LayerSpec], shared: int | None = None
) -> Iterator[CompressedCache]:
    """While inside, every attention layer of `model` attends to its cache as `plans` compress it.

    Inference with one sequence at a time: any forward over a whole sequence, and `generate` (greedy or
    sampling) on transformers' default cache. The first `shared` tokens are coded by the pool, later
    ones by the shell; None: half of the tokens of the forward that begins the sequence.

    It shows what a policy does and what it would take, not its speed: the exact vectors stay in
    memory, and all codes are made anew in every step. Raises InputError inside for a batch of more
    than one, padding, and a cache that is not the model's own of this sequence. While inside, numpy's
    BLAS runs on one thread (reproducible sums, and no fight with the model's own threads).
    """
    torch, _ = hf_modules()
    cache = CompressedCache(plans, specs, shared)

    def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
        if query.shape[0] != 1:
            raise InputError(f"a batch of {query.shape[0]} sequences was given: one at a time can be compressed")
        spec = layer_rules(layer_index(module), query, key, value, kwargs)
        given = LayerInputs(spec, *(to_numpy(tensor[0]) for tensor in (query, key, value)), sink_logits(kwargs))
        out = torch.from_numpy(cache.attend(given, attention_mask))[None]
        return out.to(dtype=query.dtype, device=query.device), None

    with attention_replaced(model, attention), threadpool_limits(limits=1, user_api="blas"):
        yield cache


def _check_mask(attention_mask: Any, given: LayerInputs, n_tokens: int) -> None:
    """Raise InputError unless every query sees what the layer's rules say."""
    n_given, n_new = given.keys.shape[1], given.queries.shape[1]
    positions = np.arange(n_tokens - n_new, n_tokens)
    expected = visible_mask(positions, n_tokens, given.spec.sliding_window)[:, n_tokens - n_given :]
    fault = mask_fault(attention_mask, given.spec, expected)
    if fault is not None:
        raise InputError(f"{fault}: give one sequence without padding (packed sequences are refused too)")
