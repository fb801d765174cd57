"""One forward pass over a batch of passages, recorded through one bounded session a passage."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from polykv.capture.adapter import AttentionCall, check_calls, tapped, to_numpy
from polykv.capture.models import hf_modules
from polykv.capture.session import AttentionRecord, CaptureSession, capturing
from polykv.types import LayerSpec


@dataclass(frozen=True, eq=False)
class Row:
    """One passage of a batch: token_ids [token] int64, positions [query] int64 without padding."""

    index: int
    token_ids: np.ndarray
    positions: np.ndarray


@dataclass(frozen=True, eq=False)
class Padded:
    """A left-padded batch as tensors: `pads` [row] says how many padding tokens each row begins with."""

    input_ids: Any
    attention_mask: Any
    position_ids: Any
    pads: tuple[int, ...]


def probe_layers(model: Any, token_ids: np.ndarray) -> tuple[dict[int, LayerSpec], dict[int, np.ndarray]]:
    """({layer: rules}, {layer: sink logits}) from a forward over `token_ids` [token].

    Raises UnsupportedModelError, naming class and counts, unless every layer attends once.
    """
    specs: dict[int, LayerSpec] = {}
    sinks: dict[int, np.ndarray] = {}

    def receive(call: AttentionCall) -> None:
        specs[call.spec.layer] = call.spec
        if call.sink_logits is not None:
            sinks[call.spec.layer] = call.sink_logits

    with tapped(model, receive) as calls:
        run(model, pad_left(model, [token_ids]), keep=[-1])
    check_calls(model, calls)
    return specs, sinks


def record_batch(
    model: Any, rows: Sequence[Row], layers: Mapping[int, LayerSpec]
) -> tuple[list[CaptureSession], list[np.ndarray]]:
    """Run `rows` at once; returns a session for each row and the logits at their queries.

    Only `layers` are recorded, all are counted; padding is never recorded. The logits are
    [row][query, vocabulary] float32. Raises CaptureError when a session dropped a vector.
    """
    batch = pad_left(model, [row.token_ids for row in rows])
    with sessions_for(rows, layers) as sessions:

        def receive(call: AttentionCall) -> None:
            if call.spec.layer in layers:
                for i, (row, session) in enumerate(zip(rows, sessions, strict=True)):
                    record_row(session, call, i, batch.pads[i], row.positions)

        with tapped(model, receive) as calls:
            logits = query_logits(model, batch, rows)
        check_calls(model, calls)
    return sessions, logits


@contextmanager
def sessions_for(rows: Sequence[Row], layers: Mapping[int, LayerSpec]) -> Iterator[list[CaptureSession]]:
    """One session a row, with room for exactly its own tokens in the layer with most KV heads."""
    n_layer = max(layers) + 1
    most_heads = max(spec.n_kv_heads for spec in layers.values())
    with ExitStack() as stack:
        yield [stack.enter_context(capturing(n_layer, len(row.token_ids) * most_heads)) for row in rows]


def record_row(session: CaptureSession, call: AttentionCall, row: int, pad: int, positions: np.ndarray) -> None:
    """Hand one row of one attention call to its session: K and V of real tokens, q and out at the queries."""
    spec = call.spec
    for k_not_v, heads in ((True, call.key), (False, call.value)):
        vectors = to_numpy(heads[row, :, pad:].transpose(0, 1))
        n_tokens, n_kv_heads, width = vectors.shape
        session.record(spec.layer, k_not_v, vectors, n_tokens * n_kv_heads, width)
    places = (positions + pad).tolist()
    q, out = to_numpy(call.query[row][:, places]), to_numpy(call.out[row][places].transpose(0, 1))
    exact = None if call.exact_out is None else to_numpy(call.exact_out[row][places].transpose(0, 1))
    session.record_attention(spec.layer, AttentionRecord(q, out, spec, call.sink_logits, exact))


def pad_left(model: Any, sequences: Sequence[np.ndarray]) -> Padded:
    """Sequences [token] int64 as one batch, shorter ones padded on the left.

    Positions count from each row's first real token, so that padding shifts nothing.
    """
    torch, _ = hf_modules()
    longest = max(len(ids) for ids in sequences)
    pads = tuple(longest - len(ids) for ids in sequences)
    ids, mask = np.zeros((2, len(sequences), longest), np.int64)
    for i, (sequence, pad) in enumerate(zip(sequences, pads, strict=True)):
        ids[i, pad:], mask[i, pad:] = sequence, 1
    positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    device = model.device
    return Padded(*(torch.from_numpy(array).to(device) for array in (ids, mask, positions)), pads)


def query_logits(model: Any, batch: Padded, rows: Sequence[Row]) -> list[np.ndarray]:
    """Run the batch; [row][query, vocabulary] float32 logits at each row's queries."""
    places = [row.positions + pad for row, pad in zip(rows, batch.pads, strict=True)]
    keep = np.unique(np.concatenate(places))
    logits = run(model, batch, keep.tolist())
    return [to_numpy(logits[i][np.searchsorted(keep, wanted).tolist()]) for i, wanted in enumerate(places)]


def run(model: Any, batch: Padded, keep: Sequence[int]) -> Any:
    """Logits [row, kept, vocabulary] at the positions `keep` of a padded batch; no cache is filled."""
    torch, _ = hf_modules()
    with torch.inference_mode():
        return forward(model, batch, keep)


def forward(model: Any, batch: Padded, keep: Sequence[int]) -> Any:
    """What `run` gives, in whatever gradient mode the caller is."""
    torch, _ = hf_modules()
    accepts = inspect.signature(model.forward).parameters
    arguments = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, "use_cache": False}
    if "position_ids" in accepts:
        arguments["position_ids"] = batch.position_ids
    places = torch.tensor(list(keep), device=batch.input_ids.device) % batch.input_ids.shape[1]
    if "logits_to_keep" in accepts:
        arguments["logits_to_keep"] = places
    logits = model(**arguments).logits
    return logits if "logits_to_keep" in accepts else logits[:, places]
