"""From scores to a verdict: margins with bootstrap intervals, go / no-go / inconclusive, and the old rule.

The rules are `settings.RULE` and `settings.LEGACY_RULE`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polykv.calibration.arms import Arms
from polykv.calibration.resampling import bootstrap_sums, interval, time_sharing
from polykv.calibration.scoring import root_ratio
from polykv.calibration.settings import GonogoSettings
from polykv.codecs.omp import row_energies
from polykv.errors import InputError

GO, NO_GO, INCONCLUSIVE = "go", "no-go", "inconclusive"


@dataclass(frozen=True)
class Estimate:
    """A figure and its interval; low and high are None when fewer than two units could be drawn from."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, eq=False)
class Comparison:
    """A dictionary arm against the best rival at no more bits, on confirm.

    rival / attention_rival: the families that are best on each error. margin = rival error −
    dictionary error; calibrate_ratio = rival error / dictionary error on calibrate (None when the
    dictionary's is 0), and amortised_margin, which charges side bytes, are figures only. The unit arrays [unit] let anyone draw again: rival_unit_error is `rival`'s mix.
    """

    rival: str
    rival_error: float
    margin: Estimate
    calibrate_ratio: float | None
    amortised_margin: float
    attention_rival: str | None
    attention_rival_error: float | None
    attention_margin: Estimate | None
    rival_unit_error: np.ndarray
    rival_attention_unit_error: np.ndarray
    verdict: str
    reason: str | None


@dataclass(frozen=True, eq=False)
class Errors:
    """Errors of all arms on confirm: relative error and attention-output error, each an Estimate an arm."""

    relative: tuple[Estimate, ...]
    attention: tuple[Estimate, ...] | None
    comparisons: dict[int, Comparison]


@dataclass(frozen=True)
class Legacy:
    """The original rule on the rows trained on: two relative errors and what they say."""

    dictionary_error: float
    ternary_error: float
    verdict: str


def judge(arms: Arms, calibrate_energy: np.ndarray, confirm_energy: np.ndarray, settings: GonogoSettings) -> Errors:
    """Compare every dictionary arm with the rivals.

    calibrate_energy and confirm_energy [unit] float64: Σ‖x‖² of each split's units. Raises
    InputError when a split holds nothing but zero vectors.
    """
    for split, energy in (("calibrate", calibrate_energy), ("confirm", confirm_energy)):
        if not energy.sum() > 0:
            raise InputError(f"all vectors of the {split} split are zero: there is nothing to code")
    squared = np.stack([arm.confirm.squared_error for arm in arms.arms], axis=1)
    attention = np.stack([arm.confirm.attention_error for arm in arms.arms], axis=1)
    relative = _Drawn(squared, confirm_energy, settings)
    output = _Drawn(attention, np.ones(len(attention)), settings) if len(attention) else None
    comparisons = {i: _compare(i, arms, relative, output, settings) for i in arms.sparse}
    count = range(len(arms.arms))
    return Errors(
        tuple(relative.error(i) for i in count), output and tuple(output.error(i) for i in count), comparisons
    )


def legacy_verdict(train_rows: np.ndarray, dictionary_error: float) -> Legacy:
    """The rule of the original go/no-go, told on the rows trained on [n, head_dim]; see LEGACY_RULE."""
    largest = np.abs(train_rows).max(axis=1, keepdims=True)
    ternary = np.rint(np.divide(train_rows, largest, out=np.zeros_like(train_rows), where=largest > 0)) * largest
    wrong = row_energies(ternary - train_rows).sum()
    error = float(root_ratio(wrong, row_energies(train_rows).sum()))
    return Legacy(dictionary_error, error, GO if dictionary_error <= error else NO_GO)


def verdict_of(margins: list[Estimate], n_units: int, min_units: int) -> tuple[str, str | None]:
    """(verdict, reason) of the reconstruction margin and, when there is one, the attention margin."""
    if n_units < min_units:
        return INCONCLUSIVE, f"too_few_units: {n_units} < {min_units}"
    above = [m.low is not None and m.low > 0 for m in margins]
    below = [m.high is not None and m.high <= 0 for m in margins]
    if all(above):
        return GO, None
    if any(below):
        return NO_GO, "attention_disagrees" if above[0] else None
    return INCONCLUSIVE, "attention_undecided" if above[0] else "interval_holds_zero"


class _Drawn:
    """Bootstrap sums of every arm's per-unit errors, drawn once and shared by all comparisons."""

    def __init__(self, per_unit: np.ndarray, energy: np.ndarray, settings: GonogoSettings) -> None:
        self.per_unit, self.n_units, self.confidence = per_unit, len(per_unit), settings.confidence
        self.total, self.energy = per_unit.sum(axis=0), energy.sum()
        self.sums = self.energies = None
        if self.n_units >= 2:
            drawn = bootstrap_sums(np.column_stack([energy, per_unit]), settings.n_resamples, settings.seed)
            # a resample of nothing but zero vectors has no relative error
            drawn = drawn[drawn[:, 0] > 0]
            self.energies, self.sums = drawn[:, 0], drawn[:, 1:]

    def estimate(self, value: float, replicates: np.ndarray | None) -> Estimate:
        if replicates is None:
            return Estimate(float(value), None, None)
        return Estimate(float(value), *interval(replicates, self.n_units, self.confidence))

    def error(self, arm: int) -> Estimate:
        drawn = None if self.sums is None else root_ratio(self.sums[:, arm], self.energies)
        return self.estimate(root_ratio(self.total[arm], self.energy), drawn)

    def margin(self, arm: int, mixes: np.ndarray) -> tuple[int, float, Estimate]:
        """(best family, its error, margin) of one arm against mixes [family, arm] of the others.

        In every resample the rival is the best family of that resample.
        """
        rivals = mixes @ self.total
        best = int(np.argmin(rivals))
        value = root_ratio(rivals[best], self.energy) - root_ratio(self.total[arm], self.energy)
        drawn = None
        if self.sums is not None:
            least = (self.sums @ mixes.T).min(axis=1)
            drawn = root_ratio(least, self.energies) - root_ratio(self.sums[:, arm], self.energies)
        return best, float(root_ratio(rivals[best], self.energy)), self.estimate(value, drawn)


def _compare(
    index: int,
    arms: Arms,
    relative: _Drawn,
    output: _Drawn | None,
    settings: GonogoSettings,
) -> Comparison:
    families, arm = list(arms.curves), arms.arms[index]
    mixes = _mixes(arms, arm.confirm.bits_per_vector, "confirm", None)
    best, error, margin = relative.margin(index, mixes)
    margins, attention_best, attention_error = [margin], None, None
    if output is not None:
        attention_best, attention_error, attention_margin = output.margin(index, mixes)
        margins.append(attention_margin)
    units = min([relative.n_units] + ([output.n_units] if output is not None else []))
    verdict, reason = verdict_of(margins, units, settings.min_units)
    return Comparison(
        families[best],
        error,
        margin,
        _calibrate_ratio(index, arms),
        _amortised_margin(index, arms, relative, settings.amortised_over_vectors),
        None if attention_best is None else families[attention_best],
        attention_error,
        None if output is None else margins[1],
        relative.per_unit @ mixes[best],
        np.empty(0) if output is None else output.per_unit @ mixes[attention_best],
        verdict,
        reason,
    )


def _mixes(arms: Arms, at: float, split: str, amortised_over: int | None) -> np.ndarray:
    """[family, arm] weights: each family's time sharing at `at` bits per vector on `split`."""
    mixes = np.zeros((len(arms.curves), len(arms.arms)))
    for row, points in enumerate(arms.curves.values()):
        scores = [getattr(arms.arms[i], split) for i in points]
        bits = np.array([s.bits_per_vector + _side_bits(s, amortised_over) for s in scores])
        # what sends nothing per vector stays on the curve, whatever it stores once
        bits[0] = 0.0
        mixes[row, list(points)] = time_sharing(bits, np.array([s.squared_error.sum() for s in scores]), at)
    return mixes


def _calibrate_ratio(index: int, arms: Arms) -> float | None:
    totals = np.array([arm.calibrate.squared_error.sum() for arm in arms.arms])
    rivals = _mixes(arms, arms.arms[index].calibrate.bits_per_vector, "calibrate", None) @ totals
    return float(np.sqrt(rivals.min() / totals[index])) if totals[index] > 0 else None


def _amortised_margin(index: int, arms: Arms, relative: _Drawn, over: int) -> float:
    mine = arms.arms[index].confirm
    rivals = _mixes(arms, mine.bits_per_vector + _side_bits(mine, over), "confirm", over) @ relative.total
    return float(root_ratio(rivals.min(), relative.energy) - root_ratio(relative.total[index], relative.energy))


def _side_bits(score, amortised_over: int | None) -> float:
    return 0.0 if amortised_over is None else 8.0 * score.side_nbytes / amortised_over
