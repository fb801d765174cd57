"""A policy inside a transformers model, for engines and for trying it out (needs torch and transformers).

import polykv.hf
with polykv.hf.compressed(model, "runs/mine/kivi4.policy.json") as cache:
    model.generate(**tokenizer("Once upon a time", return_tensors="pt"), max_new_tokens=20)
print(cache.costs()["ratio_to_float16"])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike, fspath
from typing import Any

import numpy as np

from polykv.capture.forward import probe_layers
from polykv.certify.applied import CompressedCache, applied
from polykv.certify.cells import centred_cells, plan_cells
from polykv.certify.means import fit_key_means
from polykv.certify_stages import own_means
from polykv.errors import InputError, PolicyError
from polykv.policy import CompressionPolicy
from polykv.policy_files import load_policy
from polykv.storage import CaptureStore
from polykv.types import Cell, LayerSpec

__all__ = ["CompressedCache", "compressed"]

# enough to reach every layer once, and to see its rules
_PROBE_TOKENS = 4

Artifacts = Callable[[str], Mapping[str, np.ndarray]]
Means = Mapping[Cell, np.ndarray] | CaptureStore | str


@contextmanager
def compressed(
    model: Any,
    policy: CompressionPolicy | str | PathLike[str],
    artifacts: Artifacts | None = None,
    means: Means | None = None,
    shared_tokens: int | None = None,
    uncentred: bool = False,
) -> Iterator[CompressedCache]:
    """While inside, `model` attends to its cache as `policy` compresses it, in all layers and heads.

    Any forward over a whole sequence, and `generate` on the default cache (use_cache=True): each
    query sees sinks and recent window exactly and the older tokens through the codecs, as the
    certification defines it, so that decoding step by step equals one forward over the whole sequence
    with the same `shared_tokens`, within rounding. The yielded cache says what it takes: `nbytes`,
    `costs()`, `decoded_values`.

    model: a causal language model of transformers in evaluation mode, on any device and dtype;
    attention itself is computed in float32 on the processor, and the cache is coded anew in every
    step: it shows what a policy does, not its speed. policy: the object, a named one, or a .json file,
    whose artifacts are found beside it. artifacts: loads trained state by digest, where the policy is
    an object. means: mean keys [head_dim] by cell, or a capture (CaptureStore, path or URL) whose
    split calibrate gives them; None: the policy's own artifact; `uncentred` leaves keys as they are.
    shared_tokens: first tokens coded by the pool; None: half of the forward that begins a sequence
    (of the prompt, in `generate`).

    One sequence at a time. Raises InputError for a batch, padding, a static cache and one filled
    outside; PolicyError or CodecError, before any token is read, for a policy this model cannot take;
    UnsupportedModelError for a model whose attention cannot be replaced.
    """
    if shared_tokens is not None and (isinstance(shared_tokens, bool) or shared_tokens < 0):
        raise InputError(f"shared_tokens is {shared_tokens!r}, must be a whole number ≥ 0, or None for half")
    if getattr(model, "training", False):
        raise InputError(f"{type(model).__name__} is in training mode, and no gradient passes a codec: model.eval()")
    if not isinstance(policy, CompressionPolicy):
        policy, found = load_policy(fspath(policy))
        artifacts = artifacts or found
    specs, _ = probe_layers(model, np.arange(_PROBE_TOKENS))
    wanted = None if uncentred else _means(policy, specs, artifacts, means)
    plans = plan_cells(policy, specs, wanted, artifacts)
    with applied(model, plans, specs, shared_tokens) as cache:
        yield cache


def _means(
    policy: CompressionPolicy, specs: Mapping[int, LayerSpec], artifacts: Artifacts | None, means: Means | None
) -> Mapping[Cell, np.ndarray] | None:
    """The mean keys of the cells that the policy centres; None when it centres none."""
    cells = centred_cells(policy, specs)
    if not cells:
        return None
    if isinstance(means, str):
        means = CaptureStore.open(means)
    if isinstance(means, CaptureStore):
        store = means
        return fit_key_means(lambda *cell: store.cell(*cell, with_logits=False), cells)
    if means is not None:
        return means
    own = None if artifacts is None else own_means(policy, artifacts)
    if own is None:
        raise PolicyError(
            f"policy {policy.name!r} subtracts mean keys, and none are given: pass means= (a capture of this model with "
            "a split calibrate, or the means themselves), or uncentred=True to leave keys as they are"
        )
    return own[1]
