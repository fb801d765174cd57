"""The shape of a model's KV cache, and what its attention type promises about it (seed document 003)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from polykv.errors import InputError
from polykv.strict import known_fields, text, whole

_U32_LIMIT = 2**32
FLOAT32_BYTES = 4


class AttentionType(StrEnum):
    """How query heads share KV heads; the values are the JSON spelling."""

    MHA = "mha"
    GQA = "gqa"
    MQA = "mqa"


@dataclass(frozen=True)
class KvTensorShape:
    """Layers, query heads, KV heads and widths of a KV cache; checked on construction.

    MHA: num_kv_heads = num_heads. GQA: num_kv_heads < num_heads, and divides it. MQA:
    num_kv_heads = 1. hidden_size is a multiple of num_heads. Raises InputError naming the rule
    and the numbers.
    """

    attention_type: AttentionType
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "attention_type", _attention_type(self.attention_type))
        for field in fields(self)[1:]:
            limit = _U32_LIMIT if field.name.startswith("num_") else 2**63
            whole(getattr(self, field.name), f"shape: {field.name}", low=1, limit=limit)
        heads, kv_heads = self.num_heads, self.num_kv_heads
        if self.attention_type is AttentionType.MHA and kv_heads != heads:
            raise InputError(f"shape: MHA requires num_kv_heads ({kv_heads}) == num_heads ({heads})")
        if self.attention_type is AttentionType.MQA and kv_heads != 1:
            raise InputError(f"shape: MQA requires num_kv_heads == 1, got {kv_heads}")
        if self.attention_type is AttentionType.GQA and (kv_heads >= heads or heads % kv_heads):
            raise InputError(f"shape: GQA requires num_kv_heads ({kv_heads}) < num_heads ({heads}), and to divide it")
        if self.hidden_size % heads:
            raise InputError(f"shape: hidden_size ({self.hidden_size}) must be divisible by num_heads ({heads})")

    @property
    def row_length(self) -> int:
        """Numbers in one token's row: a key and a value for every layer and KV head."""
        return self.num_layers * self.num_kv_heads * self.head_dim * 2

    def raw_bytes(self, n_tokens: int) -> int:
        """Bytes of n_tokens' keys and values in float32."""
        return n_tokens * self.row_length * FLOAT32_BYTES

    def to_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)} | {
            "attention_type": self.attention_type.value
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> KvTensorShape:
        """Read the seed's JSON; unknown and missing keys are refused by name."""
        return cls(**known_fields(raw, "shape", [field.name for field in fields(cls)]))

    @classmethod
    def single_head(cls, head_dim: int) -> KvTensorShape:
        """One layer, one head: the shape of a captured fixture."""
        return cls(AttentionType.MHA, 1, 1, 1, head_dim, head_dim)


def _attention_type(value: Any) -> AttentionType:
    name = text(value, "shape: attention_type").lower()
    if name not in set(AttentionType):
        raise InputError(f"shape: attention_type is {value!r}; known: {', '.join(AttentionType)}")
    return AttentionType(name)
