"""Decoding a pool and a shell into a KV cache, with a trace of where every block came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from polykv.pool.receipts import InjectionReceipt, block_traces
from polykv.pool.selection import check_same_pool
from polykv.records import now_unix

if TYPE_CHECKING:
    from polykv.pool.pool import SharedKVPool
    from polykv.pool.shell import AgentShell


class CacheTarget(Protocol):
    """A KV cache that takes decoded blocks: keys and values [kv_head, token, head_dim] float32 from `position` on."""

    def write(self, layer: int, position: int, keys: np.ndarray, values: np.ndarray) -> None: ...


def inject(pool: SharedKVPool, shell: AgentShell, cache: CacheTarget) -> InjectionReceipt:
    """Write every layer's pool block at position 0 and its shell block after it.

    Raises InputError when the shell belongs to another pool.
    """
    check_same_pool(pool, shell)
    heads = range(pool.manifest.shape.num_kv_heads)
    for tier, position in ((pool.layers, 0), (shell.layers, pool.manifest.num_shared_tokens)):
        for block in tier:
            keys, values = [block.keys(h) for h in heads], [block.values(h) for h in heads]
            cache.write(block.layer_index, position, np.stack(keys), np.stack(values))
    traces = block_traces(pool, shell)
    return InjectionReceipt(
        agent_id=shell.agent_id,
        pool_digest=pool.manifest.pool_id,
        shell_digest=shell.manifest.shell_digest,
        blocks_injected=len(traces),
        block_traces=traces,
        injected_at_unix=now_unix(),
    )
