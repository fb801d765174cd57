"""Configurations of the seed's two replays (seed document 003), and their gates."""

from __future__ import annotations

from dataclasses import dataclass, replace

from polykv.records import Record, Seed
from polykv.replay.config import SEED_GATES, Gate

_COSINE, _MSE, _KL, _PPL, _TOP1 = (gate.limit for gate in SEED_GATES)


@dataclass(frozen=True)
class SeedGates(Record):
    """The five limits; the defaults are the seed's, far too wide for one head of a real model."""

    def gates(self) -> tuple[Gate, ...]:
        """The limits as gates, in the seed's order."""
        names = ("min_output_cosine", "max_output_mse", "max_kl_divergence", "max_ppl_delta", "min_top1_agreement")
        return tuple(replace(gate, limit=getattr(self, name)) for gate, name in zip(SEED_GATES, names, strict=True))


@dataclass(frozen=True)
class CapturedReplayConfig(SeedGates):
    """Budgets in the order they are tried, and the gates. Checked for emptiness by the replay, as in the seed."""

    candidate_ks: tuple[int, ...]
    min_output_cosine: float = _COSINE
    max_output_mse: float = _MSE
    max_kl_divergence: float = _KL
    max_ppl_delta: float = _PPL
    min_top1_agreement: float = _TOP1


@dataclass(frozen=True)
class ModelReplayConfig(SeedGates):
    """Layer and KV head to replay, budgets, the synthetic projection (vocab_size labels, its seed), the gates."""

    layer: int = 0
    head: int = 0
    candidate_ks: tuple[int, ...] = ()
    vocab_size: int = 64
    projection_seed: Seed = 0
    min_output_cosine: float = _COSINE
    max_output_mse: float = _MSE
    max_kl_divergence: float = _KL
    max_ppl_delta: float = _PPL
    min_top1_agreement: float = _TOP1
