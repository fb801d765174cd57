"""One passage of one cell: encode both tiers once, then replay every query head."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from polykv.codecs.arrays import finite_scores, pairwise_dot
from polykv.codecs.base import Codec, Codes
from polykv.errors import InputError, NonFiniteError
from polykv.replay.head import HeadFigures, HeadInputs, exact_token_mask, replay_head
from polykv.rotation import Rotation
from polykv.types import CellData


@dataclass(frozen=True, eq=False)
class Passage:
    """One passage without its padding: keys [token, head_dim], values [token, value_dim],
    queries [group, query, head_dim], outputs [group, query, value_dim], positions [query]."""

    index: int
    document: int
    keys: np.ndarray
    values: np.ndarray
    queries: np.ndarray
    outputs: np.ndarray
    positions: np.ndarray

    @property
    def n_tokens(self) -> int:
        return len(self.keys)


@dataclass(frozen=True)
class TierCodecs:
    """The four codecs of a cell: pool and shell, key and value."""

    pool_key: Codec
    pool_value: Codec
    shell_key: Codec
    shell_value: Codec


@dataclass(frozen=True, eq=False)
class EncodedPassage:
    """Both tiers' codes of one passage; tokens [0, shared_tokens) are the pool.

    With a `rotation` the key codes hold un-rotated keys less `pre_mean` [head_dim] float32 (None:
    nothing), and scores need no offset; without one, scores lack the mean key's part.
    """

    codecs: TierCodecs
    pool_key: Codes
    pool_value: Codes
    shell_key: Codes
    shell_value: Codes
    rotation: Rotation | None = None
    pre_mean: np.ndarray | None = None

    def scores(self, queries: np.ndarray) -> np.ndarray:
        """[query, token] float32 estimates of q·k from the codes, pool first."""
        if self.rotation is not None:
            return finite_scores(pairwise_dot(queries, self._rotated_keys))
        pool = self.codecs.pool_key.scores(queries, self.pool_key)
        shell = self.codecs.shell_key.scores(queries, self.shell_key)
        return np.concatenate([pool, shell], axis=1).astype(np.float32, copy=False)

    @cached_property
    def _rotated_keys(self) -> np.ndarray:
        """[token, head_dim] float32 decoded keys, turned to their positions."""
        keys = np.concatenate(
            [self.codecs.pool_key.decode(self.pool_key), self.codecs.shell_key.decode(self.shell_key)]
        )
        if self.pre_mean is not None:
            keys = keys + self.pre_mean
        return self.rotation.apply(keys, np.arange(len(keys)))

    def values(self) -> np.ndarray:
        """[token, value_dim] float32 decoded values, pool first."""
        pool = self.codecs.pool_value.decode(self.pool_value)
        return np.concatenate([pool, self.codecs.shell_value.decode(self.shell_value)])

    def nbytes(self) -> int:
        """Bytes of all codes of the passage, K and V."""
        codecs = self.codecs
        return (
            codecs.pool_key.nbytes(self.pool_key)
            + codecs.pool_value.nbytes(self.pool_value)
            + codecs.shell_key.nbytes(self.shell_key)
            + codecs.shell_value.nbytes(self.shell_value)
        )


def passages_of(data: CellData) -> list[Passage]:
    """The passages that have queries, padding cut off; NaN or infinity is refused with its place."""
    found = []
    for row, index in enumerate(data.passages):
        length = int(data.lengths[row])
        asked = data.query_position[row] >= 0
        if not asked.any():
            continue
        positions = data.query_position[row][asked]
        if positions.max() >= length:
            raise InputError(
                f"layer {data.spec.layer}, passage {index}: query position {positions.max()} is beyond its {length} tokens"
            )
        passage = Passage(
            int(index),
            int(data.documents[row]),
            data.keys[row, :length],
            data.values[row, :length],
            data.queries[row][:, asked],
            data.outputs[row][:, asked],
            positions,
        )
        _check_finite(passage, data)
        found.append(passage)
    if not found:
        raise InputError(
            f"layer {data.spec.layer}, KV head {data.kv_head}: no passage of split {data.split!r} has a query to replay"
        )
    return found


def shared_tokens_of(n_tokens: int, shared_tokens: int | None, where: str) -> int:
    """Tokens in the pool: half the passage unless given; both tiers must be non-empty."""
    shared = n_tokens // 2 if shared_tokens is None else shared_tokens
    if not 0 < shared < n_tokens:
        raise InputError(
            f"{where}: shared_tokens {shared} must split {n_tokens} tokens into a non-empty pool and shell; "
            f"choose 1 to {n_tokens - 1}"
        )
    return shared


def encode_passage(
    passage: Passage,
    codecs: TierCodecs,
    shared: int,
    key_mean: np.ndarray | None,
    rotation: Rotation | None = None,
) -> EncodedPassage:
    """Code both tiers of a passage, as `encode_tiers` does."""
    return encode_tiers(passage.keys, passage.values, codecs, shared, key_mean, rotation)


def encode_tiers(
    keys: np.ndarray,
    values: np.ndarray,
    codecs: TierCodecs,
    shared: int,
    key_mean: np.ndarray | None,
    rotation: Rotation | None = None,
) -> EncodedPassage:
    """Code keys [token, head_dim] and values [token, value_dim]: the first `shared` tokens are the pool.

    Keys, token t at position t, are un-rotated first (`rotation` None: stay as they are), then
    `key_mean` [head_dim] is subtracted (None: nothing): with a rotation it is a mean of un-rotated keys.
    """
    if rotation is not None:
        keys = rotation.undo(keys, np.arange(len(keys)))
    keys = keys if key_mean is None else keys - key_mean
    return EncodedPassage(
        codecs,
        codecs.pool_key.encode(keys[:shared]),
        codecs.pool_value.encode(values[:shared]),
        codecs.shell_key.encode(keys[shared:]),
        codecs.shell_value.encode(values[shared:]),
        rotation,
        None if rotation is None else key_mean,
    )


def replay_passage(
    data: CellData,
    passage: Passage,
    encoded: EncodedPassage,
    budgets: np.ndarray,
    sink_tokens: int,
    recent_window: int,
    key_mean: np.ndarray | None,
    fills_unselected: bool = False,
) -> list[HeadFigures]:
    """Figures of every query head that shares the KV head, in head order; `fills_unselected` as in `HeadInputs`."""
    exact = exact_token_mask(passage.positions, passage.n_tokens, data.spec.sliding_window, sink_tokens, recent_window)
    decoded = encoded.values()
    figures = []
    for head, queries in enumerate(passage.queries):
        offset = np.zeros(len(queries))
        if key_mean is not None and encoded.rotation is None:
            offset = queries.astype(np.float64) @ key_mean.astype(np.float64)
        sink = None if data.sink_logits is None else float(data.sink_logits[head])
        inputs = HeadInputs(
            queries,
            passage.positions,
            passage.keys,
            passage.values,
            encoded.scores(queries),
            offset,
            decoded,
            exact,
            sink,
            fills_unselected,
        )
        figures.append(replay_head(inputs, data.spec, budgets))
    return figures


def _check_finite(passage: Passage, data: CellData) -> None:
    for name in ("keys", "values", "queries", "outputs"):
        array = getattr(passage, name)
        finite = np.isfinite(array)
        if not finite.all():
            place = tuple(int(i) for i in np.argwhere(~finite)[0])
            raise NonFiniteError(
                f"layer {data.spec.layer}, KV head {data.kv_head}, passage {passage.index}: {name}{list(place)} is "
                f"{array[place]}; the capture is damaged: capture this model again"
            )
