"""What a certification is asked to do: one frozen object, checked when it is made."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from polykv.errors import InputError


@dataclass(frozen=True)
class Budget:
    """What a policy may cost: a PPL increase as a fraction (.01 is +1 %), a mean KL in nats; None: no limit."""

    max_ppl_increase: float | None = 0.01
    max_kl: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_ppl_increase", "max_kl"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name} is {value}, must be finite and ≥ 0")
        if self.max_ppl_increase is None and self.max_kl is None:
            raise InputError("a budget needs max_ppl_increase or max_kl: without a limit there is no verdict")

    @property
    def max_log_ratio(self) -> float | None:
        """The limit on the log of (policy PPL / baseline PPL)."""
        return None if self.max_ppl_increase is None else math.log1p(self.max_ppl_increase)


@dataclass(frozen=True)
class CertifyConfig:
    """One certification.

    n_passages passages of n_tokens tokens. The first shared_tokens of each are coded by the
    policy's pool, the rest by its shell (None: half). Tokens from score_from on are predicted and
    scored (None: shared_tokens), in buckets of bucket_tokens. seed drives the bootstrap alone.
    """

    n_passages: int = 10
    n_tokens: int = 512
    shared_tokens: int | None = None
    score_from: int | None = None
    bucket_tokens: int = 64
    budget: Budget = Budget()
    seed: int = 42

    def __post_init__(self) -> None:
        for name, least in (("n_passages", 1), ("n_tokens", 8), ("bucket_tokens", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name} is {value!r}, must be an integer ≥ {least}")
        for name in ("shared", "first_scored"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < self.n_tokens:
                told = {"shared": "shared_tokens", "first_scored": "score_from"}[name]
                raise InputError(
                    f"{told} is {value!r}, must be 1 to {self.n_tokens - 1} (passages have {self.n_tokens})"
                )

    @property
    def shared(self) -> int:
        """Tokens in the pool."""
        return self.n_tokens // 2 if self.shared_tokens is None else self.shared_tokens

    @property
    def first_scored(self) -> int:
        """The first token that is predicted and scored."""
        return self.shared if self.score_from is None else self.score_from

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
