"""What an error in one cached vector costs the model's predictions: the Fisher information of keys and values.

For small errors the KL of the predictions is ½ eᵀ F e, with F the mean of g gᵀ over labels drawn
from the model itself, g the gradient of their log probability (Amari 1998). The gradient is taken at the
cache that a policy compresses: a query reaches its sinks and recent window by another path, which
stays exact, so what a window forgives is not counted. Nor is what is not smooth: a token that an error sends to
another expert of a mixture costs more than its gradient knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polykv.attention import visible_mask
from polykv.capture.adapter import attention_replaced, check_calls, layer_index, layer_rules, to_numpy
from polykv.capture.forward import forward, pad_left
from polykv.capture.models import LoadedModel, hf_modules
from polykv.certify.inject import check_mask
from polykv.errors import InputError, NonFiniteError
from polykv.replay.head import exact_token_mask
from polykv.rotation import Rotation
from polykv.types import STREAMS, Cell, LayerSpec

# Rows whose distribution over the vocabulary is held as float64 at once.
_DRAW_ROWS = 64

Place = tuple[Cell, str]
Disturb = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class FisherConfig:
    """sink_tokens and recent_window stay exact; n_draws labels are drawn for each passage's every token."""

    sink_tokens: int = 4
    recent_window: int = 32
    n_draws: int = 4
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Fisher:
    """metrics {(cell, "key" | "value"): [head_dim, head_dim] float64}: M with eᵀMe nats of KL a predicted
    token, e the error of a coded vector whatever its token. disturbed {the same: nats}: what one given
    disturbance is expected to cost, each token's error weighed by that token's own gradient (tokens that are
    attended to most have short values: an error in proportion to them costs far less than M says)."""

    metrics: dict[Place, np.ndarray]
    disturbed: dict[Place, float]


@dataclass(eq=False)
class FisherSums:
    """Sums over the first n_passages of what `Fisher` is the mean of (twice that, and n_scored tokens)."""

    n_passages: int = 0
    n_scored: int = 0
    metrics: dict[Place, np.ndarray] = field(default_factory=dict)
    disturbed: dict[Place, float] = field(default_factory=dict)

    def fisher(self) -> Fisher:
        """Means over the tokens so far."""
        half = 2 * self.n_scored
        metrics, disturbed = (
            {place: total / half for place, total in part.items()} for part in (self.metrics, self.disturbed)
        )
        return Fisher(metrics, disturbed)


def measured_fisher(
    loaded: LoadedModel,
    passages: Sequence[np.ndarray],
    config: FisherConfig,
    rotations: Mapping[int, Rotation] | None = None,
    disturb: Disturb = np.zeros_like,
) -> Fisher:
    """The Fisher information of every cell's keys and values over `passages`, [token] int64 each.

    Keys are as they are before RoPE where `rotations` {layer: rotation} are given. disturb: the errors
    [token, head_dim] of vectors [token, head_dim] as the cache holds them. Raises InputError for a passage with
    no token past sinks and window, NonFiniteError for a model whose gradients are not finite.
    """
    sums = FisherSums()
    for token_ids in passages:
        add_passage(sums, loaded, token_ids, config, rotations, disturb)
    return sums.fisher()


def add_passage(
    sums: FisherSums,
    loaded: LoadedModel,
    token_ids: np.ndarray,
    config: FisherConfig,
    rotations: Mapping[int, Rotation] | None,
    disturb: Disturb,
) -> None:
    """Take in one passage more, as `measured_fisher` does."""
    first = config.sink_tokens + config.recent_window
    if len(token_ids) <= first:
        raise InputError(f"a passage has {len(token_ids)} tokens, none lies past {first} sinks and recent tokens")
    for draw in _gradients(loaded.model, token_ids, first, config, (config.seed, sums.n_passages), disturb):
        for place, gradient, errors in draw:
            turned = None if rotations is None or place[1] == "value" else rotations[place[0].layer]
            _add(sums, place, gradient[config.sink_tokens :], errors, config.sink_tokens, turned)
        sums.n_scored += len(token_ids) - first
    sums.n_passages += 1


def _gradients(
    model: Any, token_ids: np.ndarray, first: int, config: FisherConfig, seed: tuple[int, int], disturb: Disturb
) -> Iterator[list[tuple[Place, np.ndarray, np.ndarray]]]:
    """Yields, for every draw, (place, gradient [token, head_dim], errors of tokens past the sinks) of all places."""
    torch, _ = hf_modules()
    n_tokens = len(token_ids)
    leaves: dict[int, tuple[Any, Any]] = {}
    errors: dict[tuple[int, str], list[np.ndarray]] = {}

    def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
        spec = layer_rules(layer_index(module), query, key, value, kwargs)
        check_mask(attention_mask, spec, n_tokens)
        if spec.layer not in leaves:
            for stream, heads in zip(STREAMS, (key, value), strict=True):
                rows = to_numpy(heads[0, :, config.sink_tokens :])
                errors[spec.layer, stream] = [disturb(one) for one in rows]
        leaves[spec.layer] = tuple(torch.zeros_like(one, requires_grad=True) for one in (key, value))
        masks = _masks(torch, spec, n_tokens, config, key.device)
        # scores are computed anew on the way back: a layer's are large, and all layers' would not fit
        out = torch.utils.checkpoint.checkpoint(
            _attend,
            torch,
            spec,
            masks,
            kwargs.get("s_aux"),
            query,
            key,
            value,
            *leaves[spec.layer],
            use_reentrant=False,
        )
        return out, None

    with attention_replaced(model, attention) as calls, torch.enable_grad():
        logits = forward(model, pad_left(model, [token_ids]), list(range(first, n_tokens)))[0]
        check_calls(model, calls)
        log_probabilities = torch.log_softmax(logits.float(), dim=-1)
        rng = np.random.default_rng(seed)
        streams = [(layer, stream) for layer in sorted(leaves) for stream in STREAMS]
        wanted = [leaves[layer][STREAMS.index(stream)] for layer, stream in streams]
        for draw in range(config.n_draws):
            labels = _draw(torch, log_probabilities.detach(), rng)
            total = log_probabilities.gather(1, labels).sum()
            found = torch.autograd.grad(total, wanted, retain_graph=draw + 1 < config.n_draws)
            yield [
                ((Cell(layer, head), stream), rows, errors[layer, stream][head])
                for (layer, stream), one in zip(streams, found, strict=True)
                for head, rows in enumerate(_finite(to_numpy(one[0])))
            ]


def _masks(torch: Any, spec: LayerSpec, n_tokens: int, config: FisherConfig, device: Any) -> tuple[Any, Any]:
    """(visible, exact) [query, token] bool tensors of one layer."""
    positions, window = np.arange(n_tokens), spec.sliding_window
    exact = exact_token_mask(positions, n_tokens, window, config.sink_tokens, config.recent_window)
    visible = visible_mask(positions, n_tokens, window)
    return torch.from_numpy(visible).to(device), torch.from_numpy(exact).to(device)


def _attend(torch: Any, spec: LayerSpec, masks: Any, sinks: Any, query: Any, key: Any, value: Any, dk: Any, dv: Any):
    """[1, query, q_head, value_dim]: eager attention; dk and dv (zeros) reach pairs that are not exact only."""
    visible, exact = masks

    def heads(tensor: Any) -> Any:
        return tensor.repeat_interleave(spec.group_size, dim=1)

    scores = torch.where(exact, query @ heads(key).transpose(2, 3), query @ heads(key + dk).transpose(2, 3))
    logits = scores * spec.softmax_scale
    if spec.logit_softcap is not None:
        logits = spec.logit_softcap * torch.tanh(logits / spec.logit_softcap)
    logits = logits.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        column = sinks.reshape(1, -1, 1, 1).to(logits.dtype).expand(*logits.shape[:3], 1)
        logits = torch.cat([logits, column], dim=-1)
    weights = torch.softmax(logits, dim=-1)[..., : visible.shape[1]]
    out = (weights * exact) @ heads(value) + (weights * ~exact) @ heads(value + dv)
    return out.transpose(1, 2).contiguous()


def _draw(torch: Any, log_probabilities: Any, rng: np.random.Generator) -> Any:
    """[scored, 1] int64: one token id for each row of log_probabilities [scored, vocabulary]."""
    labels = []
    for rows in log_probabilities.split(_DRAW_ROWS):
        cumulative = rows.double().exp().cumsum(dim=-1)
        chance = torch.from_numpy(rng.random((len(rows), 1))).to(cumulative.device)
        labels.append(torch.searchsorted(cumulative, chance * cumulative[:, -1:], right=True))
    return torch.cat(labels).clamp(max=log_probabilities.shape[1] - 1)


def _finite(gradient: np.ndarray) -> np.ndarray:
    if not np.isfinite(gradient).all():
        raise NonFiniteError("the model's gradients are not finite; load it in float32, or use --metric output")
    return gradient


def _add(
    sums: FisherSums, place: Place, gradient: np.ndarray, errors: np.ndarray, first: int, turned: Rotation | None
) -> None:
    """Take in one draw: gradient and errors [token, head_dim], tokens `first` and later."""
    along = np.einsum("td,td->t", gradient.astype(np.float64), errors)
    sums.disturbed[place] = sums.disturbed.get(place, 0.0) + float(along @ along)
    # a rotation is orthogonal: the gradient turns back as the key does
    rows = gradient if turned is None else turned.undo(gradient, np.arange(first, first + len(gradient)))
    rows = rows.astype(np.float64)
    sums.metrics[place] = sums.metrics.get(place, 0.0) + rows.T @ rows
