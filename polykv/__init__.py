"""polykv: how far an LLM's key-value cache can be compressed, head by head, before the model changes.

import polykv
policy = polykv.Policy.two_tier()
pool, receipt = polykv.SharedKVPool.build(rows, shape, seed=42)
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "AgentShell": "polykv.pool",
    "AttentionType": "polykv.shape",
    "CandidateReplayMetrics": "polykv.replay.seed_records",
    "CaptureStore": "polykv.storage",
    "CapturedReplayConfig": "polykv.replay.seed_config",
    "CapturedReplayFixture": "polykv.replay.fixtures",
    "CapturedReplayQuery": "polykv.replay.fixtures",
    "CapturedReplayReceipt": "polykv.replay.seed_records",
    "CompressionPolicy": "polykv.policy",
    "KvTensorShape": "polykv.shape",
    "ModelReplayConfig": "polykv.replay.seed_config",
    "ModelReplayMetrics": "polykv.replay.seed_records",
    "ModelReplayQuery": "polykv.replay.fixtures",
    "ModelReplayReceipt": "polykv.replay.seed_records",
    "Policy": "polykv.policy",
    "SharedKVPool": "polykv.pool",
    "judge_dictionary": "polykv.calibration",
    "run_captured_model_replay": "polykv.replay.captured",
    "run_model_replay": "polykv.replay.model_shaped",
}
# rooms that are reached as polykv.NAME
_ROOMS = ("hf",)
__all__ = sorted([*_PUBLIC, *_ROOMS])


def __getattr__(name: str) -> Any:
    """Public names load their room when first asked for, so that `import polykv` stays instant."""
    if name in _ROOMS:
        return import_module(f"polykv.{name}")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'polykv' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
