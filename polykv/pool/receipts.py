"""Receipts of building a pool, materialising a shell and injecting both: what was done, with digests and counts.

The fields are the reference's. Clock fields take no
part in a receipt's digest. `verify` recomputes what it can from the receipt alone, and the
rest from what it is given; it returns the names checked and raises ReceiptError
naming every field that disagrees.
"""

from __future__ import annotations

from dataclasses import Field, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from polykv.policy import CompressionPolicy
from polykv.pool.manifest import ratio, read_policy
from polykv.pool.side import side_digests
from polykv.receipts import digest_json
from polykv.records import Comparison, Record, Seed, clock, defaulted
from polykv.strict import items, within

if TYPE_CHECKING:
    from polykv.pool.pool import SharedKVPool
    from polykv.pool.shell import AgentShell

CENTERING_OFF = "off: a pool has no calibrate split to fit a mean on"


@dataclass(frozen=True)
class PoolBuildReceipt(Record):
    """A pool was built. codebook_digest and rotation_digest are "" where its codecs have none."""

    pool_digest: str
    layer_digests: tuple[str, ...]
    codebook_digest: str
    rotation_digest: str
    total_tokens: int
    pool_size_bytes: int
    raw_size_bytes: int
    compression_ratio: float
    policy_snapshot: CompressionPolicy
    seeded_with: Seed
    schema_version: str = "pool_build_receipt_v1"
    backend: str = defaulted("cpu")
    key_centering: str = defaulted(CENTERING_OFF)
    fib_build_ms: int = clock()
    built_at_unix: int = clock()

    schema: ClassVar[str] = "pool_build_receipt_v1"

    @classmethod
    def read_field(cls, item: Field[Any], value: Any, place: str) -> Any:
        return read_policy(value) if item.name == "policy_snapshot" else super().read_field(item, value, place)

    def verify(self, pool: SharedKVPool | None = None) -> tuple[str, ...]:
        """Check digests and sizes; with the pool, against its codes and its policy's codebook and rotation."""
        found = Comparison("the pool build receipt")
        found.equal("pool_digest", self.pool_digest, digest_json(list(self.layer_digests)))
        found.close(
            "compression_ratio", self.compression_ratio, ratio(self.raw_size_bytes, self.pool_size_bytes), 1e-12
        )
        if pool is not None:
            layers = pool.layers
            codebook, rotation = side_digests(layers)
            found.equal("layer_digests", self.layer_digests, tuple(layer.digest() for layer in layers))
            found.equal("codebook_digest", self.codebook_digest, codebook)
            found.equal("rotation_digest", self.rotation_digest, rotation)
            found.equal("total_tokens", self.total_tokens, pool.manifest.num_shared_tokens)
            found.equal("pool_size_bytes", self.pool_size_bytes, sum(layer.nbytes() for layer in layers))
            found.equal("raw_size_bytes", self.raw_size_bytes, pool.manifest.shape.raw_bytes(self.total_tokens))
            found.equal("policy_snapshot", self.policy_snapshot.digest(), pool.policy.digest())
            found.equal("seeded_with", self.seeded_with, pool.manifest.build_seed)
        return found.finish()


@dataclass(frozen=True)
class ShellMaterializeReceipt(Record):
    """A shell was made for one agent from its own tokens."""

    agent_id: str
    pool_digest: str
    shell_digest: str
    num_unique_tokens: int
    shell_size_bytes: int
    schema_version: str = "shell_materialize_receipt_v1"
    materialize_ms: int = clock()
    materialized_at_unix: int = clock()

    schema: ClassVar[str] = "shell_materialize_receipt_v1"

    def verify(self, shell: AgentShell | None = None) -> tuple[str, ...]:
        """Check the schema; with the shell, digest, agent, pool, tokens and size."""
        found = Comparison("the shell receipt")
        found.equal("schema_version", self.schema_version, self.schema)
        if shell is not None:
            found.equal("shell_digest", self.shell_digest, shell.digest())
            found.equal("agent_id", self.agent_id, shell.agent_id)
            found.equal("pool_digest", self.pool_digest, shell.pool_digest)
            found.equal("num_unique_tokens", self.num_unique_tokens, shell.num_tokens)
            found.equal("shell_size_bytes", self.shell_size_bytes, sum(layer.nbytes() for layer in shell.layers))
        return found.finish()


@dataclass(frozen=True)
class BlockInjectionTrace(Record):
    """One block's way from its tier ("pool" or "shell") into a cache, at the position of its first token."""

    layer: int
    source: str
    source_digest: str
    target_position: int


@dataclass(frozen=True)
class InjectionReceipt(Record):
    """A pool and a shell were decoded into a KV cache."""

    agent_id: str
    pool_digest: str
    shell_digest: str
    blocks_injected: int
    block_traces: tuple[BlockInjectionTrace, ...]
    schema_version: str = "injection_receipt_v1"
    injected_at_unix: int = clock()

    schema: ClassVar[str] = "injection_receipt_v1"

    @classmethod
    def read_field(cls, item: Field[Any], value: Any, place: str) -> Any:
        if item.name != "block_traces":
            return super().read_field(item, value, place)
        traces = []
        for i, raw in enumerate(items(value, place)):
            with within(f"{place}[{i}]: "):
                traces.append(raw if isinstance(raw, BlockInjectionTrace) else BlockInjectionTrace.from_dict(raw))
        return tuple(traces)

    def verify(self, pool: SharedKVPool | None = None, shell: AgentShell | None = None) -> tuple[str, ...]:
        """Check the counts; with pool and shell, every block's digest and place."""
        found = Comparison("the injection receipt")
        found.equal("blocks_injected", self.blocks_injected, len(self.block_traces))
        if pool is not None and shell is not None:
            found.equal("agent_id", self.agent_id, shell.agent_id)
            found.equal("pool_digest", self.pool_digest, pool.digest())
            found.equal("shell_digest", self.shell_digest, shell.digest())
            found.equal("block_traces", self.block_traces, block_traces(pool, shell))
        return found.finish()


def block_traces(pool: SharedKVPool, shell: AgentShell) -> tuple[BlockInjectionTrace, ...]:
    """Where each block belongs, layer by layer, pool before shell."""
    traces = [BlockInjectionTrace(b.layer_index, "pool", b.digest(), 0) for b in pool.layers]
    start = pool.manifest.num_shared_tokens
    traces += [BlockInjectionTrace(b.layer_index, "shell", b.digest(), start) for b in shell.layers]
    return tuple(sorted(traces, key=lambda trace: (trace.layer, trace.target_position)))
