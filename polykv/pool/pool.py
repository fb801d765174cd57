"""The shared, cold tier: tokens that all agents see, encoded once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polykv.codecs.registry import ArtifactLoader
from polykv.errors import InputError
from polykv.policy import CompressionPolicy
from polykv.pool.encoding import TierLayer, checked_arrays, encode_tier, layer_of, token_arrays
from polykv.pool.injection import CacheTarget, inject
from polykv.pool.manifest import PoolManifest, codec_names, ratio
from polykv.pool.receipts import InjectionReceipt, PoolBuildReceipt, ShellMaterializeReceipt
from polykv.pool.selection import CompressedShellAttentionSelection, select
from polykv.pool.shell import AgentShell, build_shell
from polykv.pool.side import side_digests
from polykv.receipts import digest_json
from polykv.records import now_unix, since_ms
from polykv.shape import KvTensorShape
from polykv.strict import SEED_LIMIT, whole

Corpus = Sequence[tuple[str, Sequence[float]]]


@dataclass(frozen=True, eq=False)
class DecompressedLayer:
    """One layer decoded: keys and values [kv_head, token, head_dim] float32."""

    layer_index: int
    keys: np.ndarray
    values: np.ndarray


@dataclass(frozen=True, eq=False)
class SharedKVPool:
    """A built pool; immutable. Sinks, recent window and centring are the replay's, a pool holds codes of raw rows."""

    manifest: PoolManifest
    layers: tuple[TierLayer, ...]
    artifacts: ArtifactLoader | None = None

    @property
    def policy(self) -> CompressionPolicy:
        return self.manifest.policy

    @classmethod
    def build(
        cls,
        corpus: Corpus,
        shape: KvTensorShape,
        seed: int,
        policy: CompressionPolicy | None = None,
        artifacts: ArtifactLoader | None = None,
    ) -> tuple[SharedKVPool, PoolBuildReceipt]:
        """Encode (token id, row) pairs; a row is described in `polykv.pool.encoding`.

        policy None is the reference's. Raises InputError for an empty corpus, DimensionMismatch
        and NonFiniteError naming the token, CodecError for what a codec cannot take.
        """
        if not len(corpus):
            raise InputError("empty corpus: a pool needs at least one shared token")
        keys, values = token_arrays(corpus, shape, "token")
        return cls.from_arrays(keys, values, shape, seed, policy, artifacts)

    @classmethod
    def from_arrays(
        cls,
        keys: np.ndarray,
        values: np.ndarray,
        shape: KvTensorShape,
        seed: int,
        policy: CompressionPolicy | None = None,
        artifacts: ArtifactLoader | None = None,
    ) -> tuple[SharedKVPool, PoolBuildReceipt]:
        """`build` from keys and values [layer, kv_head, token, head_dim] float32."""
        began = time.perf_counter()
        policy = policy or CompressionPolicy.reference()
        seed = whole(seed, "seed", limit=SEED_LIMIT)
        checked_arrays(keys, values, shape)
        if not keys.shape[2]:
            raise InputError("empty corpus: a pool needs at least one shared token")
        layers = encode_tier(policy, "pool", keys, values, seed, artifacts)
        digests = [layer.digest() for layer in layers]
        size, raw = sum(layer.nbytes() for layer in layers), shape.raw_bytes(keys.shape[2])
        manifest = PoolManifest(
            pool_id=digest_json(digests),
            shape=shape,
            policy=policy,
            num_shared_tokens=keys.shape[2],
            num_layers=shape.num_layers,
            pool_size_bytes=size,
            shared_codec=codec_names(
                tuple(p for layer in layers for p in zip(layer.key_codecs, layer.value_codecs, strict=True))
            ),
            compression_ratio=ratio(raw, size),
            build_seed=seed,
            built_at_unix=now_unix(),
        )
        pool = cls(manifest, layers, artifacts)
        return pool, pool._build_receipt(digests, raw, since_ms(began))

    def materialize_shell(
        self, agent_id: str, agent_tokens: Corpus, seed: int
    ) -> tuple[AgentShell, ShellMaterializeReceipt]:
        """A shell of this agent's own (token id, row) pairs, with the pool's policy; none gives an empty shell."""
        keys, values = token_arrays(agent_tokens, self.manifest.shape, "agent token")
        return self.shell_from_arrays(agent_id, keys, values, seed)

    def shell_from_arrays(
        self, agent_id: str, keys: np.ndarray, values: np.ndarray, seed: int
    ) -> tuple[AgentShell, ShellMaterializeReceipt]:
        """`materialize_shell` from keys and values [layer, kv_head, token, head_dim] float32."""
        checked_arrays(keys, values, self.manifest.shape)
        return build_shell(self.manifest, agent_id, keys, values, seed, self.artifacts)

    def attention_topk_compressed(
        self, layer: int, head: int, query: np.ndarray, top_k: int
    ) -> CompressedShellAttentionSelection:
        """The best `top_k` pool tokens for `query` [head_dim] (see `polykv.pool.selection`)."""
        return select(self, None, layer, head, query, top_k)

    def decompress_layer(self, layer: int) -> DecompressedLayer:
        """All of one layer, decoded (lossy: what the codes hold)."""
        coded = layer_of(self.layers, layer, "pool")
        heads = range(self.manifest.shape.num_kv_heads)
        keys, values = [coded.keys(h) for h in heads], [coded.values(h) for h in heads]
        return DecompressedLayer(layer, np.stack(keys), np.stack(values))

    def inject_into_cache(self, shell: AgentShell, cache: CacheTarget) -> InjectionReceipt:
        """Decode pool and shell into a cache, layer by layer (see `polykv.pool.injection`)."""
        return inject(self, shell, cache)

    def digest(self) -> str:
        """The pool's id, recomputed from its codes."""
        return digest_json([layer.digest() for layer in self.layers])

    def _build_receipt(self, digests: list[str], raw_bytes: int, build_ms: int) -> PoolBuildReceipt:
        codebook, rotation = side_digests(self.layers)
        return PoolBuildReceipt(
            pool_digest=self.manifest.pool_id,
            layer_digests=tuple(digests),
            codebook_digest=codebook,
            rotation_digest=rotation,
            total_tokens=self.manifest.num_shared_tokens,
            pool_size_bytes=self.manifest.pool_size_bytes,
            raw_size_bytes=raw_bytes,
            compression_ratio=self.manifest.compression_ratio,
            policy_snapshot=self.policy,
            seeded_with=self.manifest.build_seed,
            fib_build_ms=build_ms,
            built_at_unix=self.manifest.built_at_unix,
        )
