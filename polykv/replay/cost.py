"""Bytes and decodes: what a policy really keeps for one cell."""

from __future__ import annotations

from polykv.policy import MEAN_UNSELECTED, CompressionPolicy
from polykv.replay.passage import TierCodecs
from polykv.types import LayerSpec

CONTEXTS = {"bytes_per_token_at_4k": 4096, "bytes_per_token_at_32k": 32768}
FLOAT16_BYTES = 2
FLOAT32_BYTES = 4


def byte_figures(
    policy: CompressionPolicy, codecs: TierCodecs, spec: LayerSpec, code_bytes: int, n_tokens: int
) -> dict[str, float]:
    """Byte columns of a row, bytes per token of this KV head.

    `code_bytes` were needed for `n_tokens` tokens' K and V. Sinks and window are charged as
    float16 copies beside their codes, the mean key and the running mean of decoded values as
    float32, codebooks once per distinct codec, all of it on this one cell.
    """
    per_token = code_bytes / n_tokens
    width = spec.head_dim + spec.value_dim
    fixed = (policy.sink_tokens + policy.recent_window) * width * FLOAT16_BYTES
    fixed += spec.head_dim * FLOAT32_BYTES if policy.center_keys != "off" else 0
    fixed += spec.value_dim * FLOAT32_BYTES if policy.unselected_values == MEAN_UNSELECTED else 0
    distinct = {
        codec.digest(): codec for codec in (codecs.pool_key, codecs.pool_value, codecs.shell_key, codecs.shell_value)
    }
    fixed += sum(codec.side_nbytes() for codec in distinct.values())
    figures = {"bytes_per_token": per_token, "float16_bytes_per_token": float(width * FLOAT16_BYTES)}
    return figures | {name: per_token + fixed / context for name, context in CONTEXTS.items()}
