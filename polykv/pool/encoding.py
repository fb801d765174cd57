"""One tier's codes: every layer's keys and values, encoded by the policy's codecs.

A token's row is, for each layer and KV head, its key and then its value (seed document 003):
[L0H0 key | L0H0 value | L0H1 key | …], 2 · layers · kv_heads · head_dim numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polykv.codecs.base import Codec, Codes
from polykv.codecs.fib import FibCodec
from polykv.codecs.registry import ArtifactLoader, build_codec
from polykv.errors import DimensionMismatch, InputError, NonFiniteError, PolicyError
from polykv.policy import DROP_UNSELECTED, KEEP_ROTATION, CompressionPolicy
from polykv.receipts import digest_array, digest_json
from polykv.shape import KvTensorShape
from polykv.strict import vector
from polykv.types import STREAMS


@dataclass(frozen=True, eq=False)
class TierLayer:
    """One layer of one tier: codecs and codes of every KV head, [kv_head] each."""

    layer_index: int
    n_tokens: int
    key_codecs: tuple[Codec, ...]
    value_codecs: tuple[Codec, ...]
    key_codes: tuple[Codes, ...]
    value_codes: tuple[Codes, ...]

    def scores(self, kv_head: int, query: np.ndarray) -> np.ndarray:
        """[token] float32 estimates of query·key from the codes; query [head_dim]."""
        return self.key_codecs[kv_head].scores(query[None, :], self.key_codes[kv_head])[0]

    def keys(self, kv_head: int) -> np.ndarray:
        """[token, head_dim] float32 decoded keys."""
        return self.key_codecs[kv_head].decode(self.key_codes[kv_head])

    def values(self, kv_head: int, rows: np.ndarray | None = None) -> np.ndarray:
        """[m, head_dim] float32 decoded values of the chosen tokens (None: all)."""
        return self.value_codecs[kv_head].decode(self.value_codes[kv_head], rows)

    def nbytes(self) -> int:
        """Bytes of the codes, K and V, all heads."""
        pairs = zip(self.key_codecs + self.value_codecs, self.key_codes + self.value_codes, strict=True)
        return sum(codec.nbytes(codes) for codec, codes in pairs)

    def digest(self) -> str:
        """blake3 over the layer's index and the digests of its codes and their codecs."""
        return digest_json(
            {
                "layer_index": self.layer_index,
                "key_digests": _digests(self.key_codecs, self.key_codes),
                "value_digests": _digests(self.value_codecs, self.value_codes),
            }
        )


def encode_tier(
    policy: CompressionPolicy,
    tier: str,
    keys: np.ndarray,
    values: np.ndarray,
    seed: int,
    artifacts: ArtifactLoader | None = None,
) -> tuple[TierLayer, ...]:
    """Encode keys and values [layer, kv_head, token, head_dim] float32 as one tier of the policy."""
    n_layers, n_heads, n_tokens, head_dim = keys.shape
    layers = []
    for layer in range(n_layers):
        pairs = [tier_codecs(policy, tier, layer, head, head_dim, seed, artifacts) for head in range(n_heads)]
        key_codecs, value_codecs = tuple(k for k, _ in pairs), tuple(v for _, v in pairs)
        codes = _encode_heads(key_codecs, keys[layer]), _encode_heads(value_codecs, values[layer])
        layers.append(TierLayer(layer, n_tokens, key_codecs, value_codecs, *codes))
    return tuple(layers)


def tier_codecs(
    policy: CompressionPolicy,
    tier: str,
    layer: int,
    kv_head: int,
    head_dim: int,
    seed: int,
    artifacts: ArtifactLoader | None = None,
) -> tuple[Codec, Codec]:
    """Key and value codec of one cell's tier at an explicit seed; refuses a head_dim before any work.

    Raises PolicyError for a policy that codes keys before RoPE: rows come without their positions;
    and for one that gives unselected candidates their mean: a selection here is its hits alone.
    """
    own = policy.for_cell(layer, kv_head)
    if own.key_rotation != KEEP_ROTATION:
        raise PolicyError(
            f"policy {policy.name!r} codes the keys of cell {layer}/{kv_head} before RoPE, and a pool or fixture does "
            f'not say where its tokens stand; use a policy with key_rotation "{KEEP_ROTATION}"'
        )
    if own.unselected_values != DROP_UNSELECTED:
        raise PolicyError(
            f"policy {policy.name!r} has unselected_values {own.unselected_values!r} in cell {layer}/{kv_head}, and a pool "
            f'or fixture attends to the selected candidates alone; use a policy with unselected_values "{DROP_UNSELECTED}"'
        )
    specs = getattr(own, tier)
    key, value = (build_codec(specs[stream], head_dim, seed, artifacts) for stream in STREAMS)
    return key, value


def token_arrays(
    corpus: Sequence[tuple[str, Sequence[float]]], shape: KvTensorShape, what: str
) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values [layer, kv_head, token, head_dim] float32 of (token id, row) pairs.

    Raises DimensionMismatch for a row that is not shape.row_length long, NonFiniteError, both
    naming the token; `what` is what a token is called there.
    """
    rows = np.empty((len(corpus), shape.row_length), np.float32)
    for i, (name, row) in enumerate(corpus):
        if len(row) != shape.row_length:
            raise DimensionMismatch(f"{what} {name!r}: dimension mismatch: expected {shape.row_length}, got {len(row)}")
        try:
            rows[i] = vector(row, "row")
        except NonFiniteError as error:
            raise NonFiniteError(f"{what} {name!r} contains non-finite values: {error}") from error
    split = rows.reshape(len(corpus), shape.num_layers, shape.num_kv_heads, 2, shape.head_dim)
    by_head = split.transpose(3, 1, 2, 0, 4)
    return np.ascontiguousarray(by_head[0]), np.ascontiguousarray(by_head[1])


def checked_arrays(keys: np.ndarray, values: np.ndarray, shape: KvTensorShape) -> None:
    """Raise DimensionMismatch unless both are [layer, kv_head, token, head_dim] of this shape."""
    for name, array in (("keys", keys), ("values", values)):
        wanted = (shape.num_layers, shape.num_kv_heads, np.shape(keys)[2] if np.ndim(keys) == 4 else -1, shape.head_dim)
        if np.shape(array) != wanted:
            raise DimensionMismatch(
                f"{name}: dimension mismatch: expected [layer {wanted[0]}, kv_head {wanted[1]}, token, head_dim "
                f"{wanted[3]}], got {list(np.shape(array))}"
            )


def codes_digest(codec: Codec, codes: Codes) -> str:
    """blake3 over the codec's identity and every array's name, dtype, shape and bytes."""
    arrays = {
        name: [array.dtype.newbyteorder("<").str, list(array.shape), digest_array(array)]
        for name, array in codes.arrays.items()
    }
    return digest_json(
        {"codec": codec.digest(), "n_vectors": codes.n_vectors, "head_dim": codes.head_dim, "arrays": arrays}
    )


def _digests(codecs: Sequence[Codec], codes: Sequence[Codes]) -> list[str]:
    return [codes_digest(codec, one) for codec, one in zip(codecs, codes, strict=True)]


def _encode_heads(codecs: Sequence[Codec], vectors: np.ndarray) -> tuple[Codes, ...]:
    """Codes of each KV head of [kv_head, token, head_dim].

    The reference quantises all heads of a layer in one batch, token by token, and its fib codec
    rounds differently in a batch of fewer than four; so fib, and no other codec, is given that batch.
    """
    n_heads, n_tokens, head_dim = vectors.shape
    shared = all(codec == codecs[0] for codec in codecs)
    if n_heads == 1 or not (shared and isinstance(codecs[0], FibCodec)):
        return tuple(codec.encode(rows) for codec, rows in zip(codecs, vectors, strict=True))
    batch = codecs[0].encode(vectors.transpose(1, 0, 2).reshape(n_tokens * n_heads, head_dim))
    return tuple(
        Codes(n_tokens, head_dim, {name: np.ascontiguousarray(a[head::n_heads]) for name, a in batch.arrays.items()})
        for head in range(n_heads)
    )


def layer_of(layers: Sequence[TierLayer], layer: int, what: str) -> TierLayer:
    """The layer of this index; raises InputError with both numbers."""
    if isinstance(layer, bool) or not isinstance(layer, (int, np.integer)) or not 0 <= layer < len(layers):
        raise InputError(f"{what}: layer {layer} out of range (have {len(layers)})")
    return layers[layer]
