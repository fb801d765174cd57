"""Is anything measured at all? Controls whose outcome is known, run on the first passage.

    exact      the exact policy through our attention: the model must not change (KL < 1e-6 nats)
    zeroed     every cache emptied: the model must be wrecked (KL ≥ 0.5 nats)
    causal     the last tokens exchanged: no earlier prediction may move, with and without the policy
    engaged    a lossy policy must move predictions by more than the exact one does

A measured delta of exactly zero is the mark of a policy that never reached the model. Any
failed control ends the run: its figures would say nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import numpy as np

from polykv.errors import CertifyError

EXACT_KL_NATS = 1e-6
WRECKED_KL_NATS = 0.5
CAUSAL_KL_NATS = 1e-6
# A float16 copy of the cache measures some 1e5 times the rounding noise of the exact policy.
ENGAGED_FACTOR = 10.0


@dataclass(frozen=True)
class Controls:
    """Mean KL of each control on the first passage, in nats; by policy name for `engaged` and `causal`."""

    exact_kl: float
    zeroed_kl: float
    baseline_causal_kl: float
    engaged_kl: dict[str, float] = field(default_factory=dict)
    causal_kl: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def check_exact(kl: float) -> None:
    """The exact policy must leave the model as it is."""
    if not kl < EXACT_KL_NATS:
        raise CertifyError(
            f"the exact policy changed the model: KL {kl:.3g} nats on the first passage, must be below {EXACT_KL_NATS:.0e}; "
            "this model's attention is not what its rules say, and no policy can be judged on it"
        )


def check_zeroed(kl: float) -> None:
    """An empty cache must wreck the model."""
    if not kl >= WRECKED_KL_NATS:
        raise CertifyError(
            f"an emptied cache hardly changed the model: KL {kl:.3g} nats on the first passage, expected at least "
            f"{WRECKED_KL_NATS}; either the cache was never reached or this model does not use it"
        )


def check_causal(kl: float, who: str) -> None:
    """Predictions before an exchanged token must not move."""
    if not kl < CAUSAL_KL_NATS:
        raise CertifyError(
            f"{who} sees the future: exchanging the last tokens of a passage moved earlier predictions by KL {kl:.3g} "
            f"nats, must be below {CAUSAL_KL_NATS:.0e}"
        )


def check_engaged(kl: float, exact_kl: float, lossless: bool, who: str) -> None:
    """A lossy policy must show; a lossless one must not."""
    if lossless:
        if not kl < EXACT_KL_NATS:
            raise CertifyError(
                f"{who} loses nothing, yet moved predictions by KL {kl:.3g} nats (limit {EXACT_KL_NATS:.0e})"
            )
    elif not kl > ENGAGED_FACTOR * exact_kl:
        raise CertifyError(
            f"{who} is lossy, yet moved predictions by KL {kl:.3g} nats only, as little as rounding does ({exact_kl:.3g} "
            "in the exact control): it was never engaged. Is every token of a passage among its sinks and its window?"
        )


def exchanged(token_ids: np.ndarray, first: int, n_token_ids: int) -> np.ndarray:
    """`token_ids` [token] with every token from `first` on replaced by another one."""
    other = token_ids.copy()
    other[first:] = (other[first:] + 1) % n_token_ids
    return other
