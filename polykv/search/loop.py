"""The closed loop: one knob, moved until a model with all of it compressed at once meets a budget.

Sharings of bytes stand in order, cheapest first, each with the loss that its units add up to. The
model says what a sharing really costs; the ratio of the two moves the next guess, and every answer
halves what is left at least now and then. The cheapest sharing that met the budget wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polykv.errors import InputError

# Two neighbours closer than this in bytes are one answer.
CLOSE_ENOUGH = 0.015
# Of the KL allowed, what a sharing uses that is taken at once: another would save about 1.5 % of its bytes.
NEAR_ENOUGH = 0.96
MOST_TRIALS = 9
_SHOWN = 2.0  # standard errors


@dataclass(frozen=True)
class Target:
    """The budget as a search sees it, nats a token. `kl`: limit on the mean KL, which decides: it has little
    noise; `log_ratio`: limit on the mean log ratio of perplexities, which a trial must not be shown to
    break (a few passages cannot show more)."""

    kl: float
    log_ratio: float

    @classmethod
    def of_ppl(cls, max_ppl_increase: float, margin: float) -> Target:
        """For a perplexity increase (.01 is +1 %): KL within `margin` of it, the log ratio within it."""
        if not 0 < max_ppl_increase or not 0 < margin <= 1:
            raise InputError(f"budget {max_ppl_increase} must be > 0 and margin {margin} in (0, 1]")
        limit = math.log1p(max_ppl_increase)
        return cls(margin * limit, limit)


@dataclass(frozen=True)
class Trial:
    """A sharing as the model judged it. place: index among the sharings; predicted_kl: what its units add
    up to; kl, log_ratio: means over passages, nats a token, the latter with its standard error; bytes_per_token: codes measured, K and V."""

    place: int
    predicted_kl: float
    kl: float
    log_ratio: float
    bytes_per_token: float
    log_ratio_error: float = 0.0

    def meets(self, target: Target) -> bool:
        """Whether the KL is within the target and the log ratio not shown to be beyond it; NaN never is."""
        return self.kl <= target.kl and self.log_ratio - _SHOWN * self.log_ratio_error <= target.log_ratio


@dataclass(frozen=True)
class Found:
    """best: the cheapest trial that met the target (None: none did); trials in the order they were made;
    complete: whether the loop ended by itself, not for want of passes."""

    best: Trial | None
    trials: tuple[Trial, ...]
    complete: bool


def search_sharing(
    sizes: Sequence[float],
    predicted: Sequence[float],
    target: Target,
    judge: Callable[[int], Trial | None],
) -> Found:
    """Find the cheapest place whose trial meets `target`.

    sizes: bytes of the sharings, ascending; predicted: their expected KL, descending. judge(place)
    returns None when the passes are used up. Raises InputError for no sharing.
    """
    if not len(sizes) or len(sizes) != len(predicted):
        raise InputError(f"{len(sizes)} sizes and {len(predicted)} predictions: one of each a sharing is needed")
    low, high = -1, len(sizes)  # low misses the target, high meets it (the ends are assumptions)
    trials: list[Trial] = []
    scale = 1.0
    while high - low > 1 and len(trials) < MOST_TRIALS:
        if low >= 0 and high < len(sizes) and sizes[high] - sizes[low] <= CLOSE_ENOUGH * sizes[high]:
            break
        trial = judge(_next_place(predicted, target.kl / scale, low, high, len(trials)))
        if trial is None:
            return Found(_cheapest(trials, target), tuple(trials), complete=False)
        trials.append(trial)
        if trial.meets(target):
            high = trial.place
            if trial.kl >= NEAR_ENOUGH * target.kl:
                break
        else:
            low = trial.place
        scale = trial.kl / trial.predicted_kl if trial.predicted_kl > 0 and trial.kl > 0 else scale
    return Found(_cheapest(trials, target), tuple(trials), complete=True)


def _next_place(predicted: Sequence[float], wanted: float, low: int, high: int, n_done: int) -> int:
    """Where the prediction says the target is met, kept inside (low, high); every third step bisects.

    The first of those waits for a sharing that missed the target: halfway to the cheapest one is far off.
    """
    if n_done % 3 == 2 and (low >= 0 or n_done > 2):
        return (low + high) // 2
    place = next((i for i, cost in enumerate(predicted) if cost <= wanted), len(predicted) - 1)
    return min(max(place, low + 1), high - 1)


def _cheapest(trials: Sequence[Trial], target: Target) -> Trial | None:
    met = [trial for trial in trials if trial.meets(target)]
    return min(met, key=lambda trial: trial.place) if met else None
