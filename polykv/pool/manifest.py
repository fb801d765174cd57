"""What a pool and a shell are, as JSON (seed document 003's manifests)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass
from typing import Any, ClassVar

from polykv.codecs.base import Codec
from polykv.errors import InputError
from polykv.policy import CompressionPolicy
from polykv.records import Record, Seed, clock
from polykv.shape import KvTensorShape


@dataclass(frozen=True)
class PoolManifest(Record):
    """A built pool. `pool_id`: blake3 of its layers' digests. Sizes in bytes, codes only."""

    pool_id: str
    shape: KvTensorShape
    policy: CompressionPolicy
    num_shared_tokens: int
    num_layers: int
    pool_size_bytes: int
    shared_codec: str
    compression_ratio: float
    build_seed: Seed
    schema_version: str = "pool_manifest_v1"
    built_at_unix: int = clock()

    schema: ClassVar[str] = "pool_manifest_v1"

    @classmethod
    def read_field(cls, item: Field[Any], value: Any, place: str) -> Any:
        if item.name == "shape":
            return value if isinstance(value, KvTensorShape) else KvTensorShape.from_dict(value)
        if item.name == "policy":
            return read_policy(value)
        return super().read_field(item, value, place)


@dataclass(frozen=True)
class ShellManifest(Record):
    """A materialised shell. `pool_digest` is the pool_id of the pool it belongs to."""

    agent_id: str
    pool_digest: str
    shell_digest: str
    num_unique_tokens: int
    num_unique_layers: int
    shell_size_bytes: int
    shell_codec: str
    materialize_seed: Seed
    schema_version: str = "shell_manifest_v1"
    materialized_at_unix: int = clock()

    schema: ClassVar[str] = "shell_manifest_v1"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.agent_id:
            raise InputError("a shell needs an agent_id that is not empty")


def read_policy(value: Any) -> CompressionPolicy:
    """A policy, or its JSON."""
    if isinstance(value, CompressionPolicy):
        return value
    if not isinstance(value, Mapping):
        raise InputError(f"a policy is a JSON object, got {type(value).__name__}")
    return CompressionPolicy.from_dict(value)


def codec_names(codecs: tuple[tuple[Codec, Codec], ...]) -> str:
    """Ids of the (key, value) codecs in use, each once: "fib_k4_n32", or "uniform+turbo_8bit"."""
    return "+".join(dict.fromkeys(codec.codec_id for pair in codecs for codec in pair))


def ratio(raw_bytes: int, size_bytes: int) -> float:
    """raw / compressed, 0.0 for nothing (the seed's rule)."""
    return raw_bytes / size_bytes if size_bytes > 0 else 0.0
