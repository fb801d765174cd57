"""The per-agent, hot tier: tokens that only one agent sees, tied to its pool by digest."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from polykv.codecs.registry import ArtifactLoader
from polykv.pool.encoding import TierLayer, encode_tier, tier_codecs
from polykv.pool.manifest import PoolManifest, ShellManifest, codec_names
from polykv.pool.receipts import ShellMaterializeReceipt
from polykv.pool.selection import CompressedShellAttentionSelection, select
from polykv.receipts import digest_json
from polykv.records import now_unix, since_ms
from polykv.strict import SEED_LIMIT, whole

if TYPE_CHECKING:
    from polykv.pool.pool import SharedKVPool


@dataclass(frozen=True, eq=False)
class AgentShell:
    """One agent's own tokens, encoded. An empty shell has no layers (seed document 003)."""

    manifest: ShellManifest
    layers: tuple[TierLayer, ...]

    @property
    def agent_id(self) -> str:
        return self.manifest.agent_id

    @property
    def pool_digest(self) -> str:
        """The pool_id of the pool this shell was made from; no other pool is accepted."""
        return self.manifest.pool_digest

    @property
    def build_seed(self) -> int:
        return self.manifest.materialize_seed

    @property
    def num_tokens(self) -> int:
        return self.layers[0].n_tokens if self.layers else 0

    def digest(self) -> str:
        """The shell's digest, recomputed from its codes."""
        return shell_digest(self.agent_id, self.pool_digest, self.layers, self.build_seed)

    def attention_topk_compressed(
        self, pool: SharedKVPool, layer: int, head: int, query: np.ndarray, top_k: int
    ) -> CompressedShellAttentionSelection:
        """The best `top_k` tokens of pool and shell for `query` [head_dim] (see `polykv.pool.selection`)."""
        return select(pool, self, layer, head, query, top_k)


def build_shell(
    pool: PoolManifest,
    agent_id: str,
    keys: np.ndarray,
    values: np.ndarray,
    seed: int,
    artifacts: ArtifactLoader | None,
) -> tuple[AgentShell, ShellMaterializeReceipt]:
    """Encode keys and values [layer, kv_head, token, head_dim] float32 with the pool's policy."""
    began = time.perf_counter()
    seed = whole(seed, "seed", limit=SEED_LIMIT)
    n_tokens, shape = keys.shape[2], pool.shape
    layers = encode_tier(pool.policy, "shell", keys, values, seed, artifacts) if n_tokens else ()
    cells = [(layer, head) for layer in range(shape.num_layers) for head in range(shape.num_kv_heads)]
    codecs = tuple(tier_codecs(pool.policy, "shell", *cell, shape.head_dim, seed, artifacts) for cell in cells)
    manifest = ShellManifest(
        agent_id=agent_id,
        pool_digest=pool.pool_id,
        shell_digest=shell_digest(agent_id, pool.pool_id, layers, seed),
        num_unique_tokens=n_tokens,
        num_unique_layers=len(layers),
        shell_size_bytes=sum(layer.nbytes() for layer in layers),
        shell_codec=codec_names(codecs),
        materialize_seed=seed,
        materialized_at_unix=now_unix(),
    )
    receipt = ShellMaterializeReceipt(
        agent_id=agent_id,
        pool_digest=manifest.pool_digest,
        shell_digest=manifest.shell_digest,
        num_unique_tokens=n_tokens,
        shell_size_bytes=manifest.shell_size_bytes,
        materialize_ms=since_ms(began),
        materialized_at_unix=manifest.materialized_at_unix,
    )
    return AgentShell(manifest, layers), receipt


def shell_digest(agent_id: str, pool_id: str, layers: tuple[TierLayer, ...], seed: int) -> str:
    """blake3 over agent, pool, seed and every layer's digest."""
    digests = [layer.digest() for layer in layers]
    return digest_json({"agent_id": agent_id, "pool_digest": pool_id, "layer_digests": digests, "seed": seed})
