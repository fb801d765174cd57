"""Two tiers of compressed K and V: a shared pool, a shell per agent, top-k attention over codes."""

from polykv.pool.injection import CacheTarget
from polykv.pool.manifest import PoolManifest, ShellManifest
from polykv.pool.pool import DecompressedLayer, SharedKVPool
from polykv.pool.receipts import (
    BlockInjectionTrace,
    InjectionReceipt,
    PoolBuildReceipt,
    ShellMaterializeReceipt,
)
from polykv.pool.saving import open_pool, open_shell, save_pool, save_shell
from polykv.pool.selection import CompressedShellAttentionHit, CompressedShellAttentionSelection
from polykv.pool.selection_receipt import CompressedAttentionSelectionReceipt
from polykv.pool.shell import AgentShell

__all__ = [
    "AgentShell",
    "BlockInjectionTrace",
    "CacheTarget",
    "CompressedAttentionSelectionReceipt",
    "CompressedShellAttentionHit",
    "CompressedShellAttentionSelection",
    "DecompressedLayer",
    "InjectionReceipt",
    "PoolBuildReceipt",
    "PoolManifest",
    "SharedKVPool",
    "ShellManifest",
    "ShellMaterializeReceipt",
    "open_pool",
    "open_shell",
    "save_pool",
    "save_shell",
]
