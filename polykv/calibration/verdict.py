"""From scores to a verdict: margins with bootstrap intervals, go / no-go / inconclusive, and the old rule.

The rules are `settings.RULE` and `settings.LEGACY_RULE`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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


class _Margin(NamedTuple):
    """Best rival family (position), its error, the margin, and the rival's error in each unit."""

    family: int
    rival_error: float
    estimate: Estimate
    rival_units: np.ndarray


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
    relative = _Reconstruction(arms, confirm_energy, settings)
    probed = len(arms.arms[0].confirm.attention_error) > 0
    output = _Attention(arms, settings) if probed else None
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
        return NO_GO, None if below[0] else "attention_worse"
    return INCONCLUSIVE, "attention_undecided" if above[0] else "interval_holds_zero"


class _Reconstruction:
    """Relative errors √(Σe²/Σx²) and their margins, from bootstrap sums drawn once for all arms."""

    def __init__(self, arms: Arms, energy: np.ndarray, settings: GonogoSettings) -> None:
        self.per_unit = np.stack([arm.confirm.squared_error for arm in arms.arms], axis=1)
        self.n_units, self.settings = len(energy), settings
        self.total, self.energy = self.per_unit.sum(axis=0), energy.sum()
        self.sums = self.energies = None
        if self.n_units >= 2:
            drawn = bootstrap_sums(np.column_stack([energy, self.per_unit]), settings.n_resamples, settings.seed)
            # a resample of nothing but zero vectors has no relative error
            drawn = drawn[drawn[:, 0] > 0]
            self.energies, self.sums = drawn[:, 0], drawn[:, 1:]

    def error(self, arm: int) -> Estimate:
        drawn = None if self.sums is None else root_ratio(self.sums[:, arm], self.energies)
        return _estimate(root_ratio(self.total[arm], self.energy), drawn, self.n_units, self.settings)

    def margin(self, arm: int, mixes: np.ndarray) -> _Margin:
        """One arm against mixes [family, arm]; in every resample the rival is the best family of that resample."""
        rivals = mixes @ self.total
        best = int(np.argmin(rivals))
        error = float(root_ratio(rivals[best], self.energy))
        drawn = None
        if self.sums is not None:
            least = (self.sums @ mixes.T).min(axis=1)
            drawn = root_ratio(least, self.energies) - root_ratio(self.sums[:, arm], self.energies)
        value = error - root_ratio(self.total[arm], self.energy)
        return _Margin(best, error, _estimate(value, drawn, self.n_units, self.settings), self.per_unit @ mixes[best])


class _Attention:
    """Attention-output errors, means over units, and their margins.

    A mix of two points has the root of the mixed squares as its error in each unit: independent
    errors of the vectors add in squares.
    """

    def __init__(self, arms: Arms, settings: GonogoSettings) -> None:
        self.per_unit = np.stack([arm.confirm.attention_error for arm in arms.arms], axis=1)
        self.n_units, self.settings = len(self.per_unit), settings

    def error(self, arm: int) -> Estimate:
        drawn = self._drawn(self.per_unit[:, [arm]])
        means = None if drawn is None else drawn[:, 0]
        return _estimate(self.per_unit[:, arm].mean(), means, self.n_units, self.settings)

    def margin(self, arm: int, mixes: np.ndarray) -> _Margin:
        """As for the reconstruction."""
        rivals = np.sqrt(np.square(self.per_unit) @ mixes.T)
        best = int(np.argmin(rivals.mean(axis=0)))
        error = float(rivals[:, best].mean())
        drawn = self._drawn(np.column_stack([self.per_unit[:, arm], rivals]))
        margins = None if drawn is None else drawn[:, 1:].min(axis=1) - drawn[:, 0]
        value = error - self.per_unit[:, arm].mean()
        return _Margin(best, error, _estimate(value, margins, self.n_units, self.settings), rivals[:, best])

    def _drawn(self, columns: np.ndarray) -> np.ndarray | None:
        if self.n_units < 2:
            return None
        return bootstrap_sums(columns, self.settings.n_resamples, self.settings.seed) / self.n_units


def _estimate(value: float, drawn: np.ndarray | None, n_units: int, settings: GonogoSettings) -> Estimate:
    if drawn is None:
        return Estimate(float(value), None, None)
    return Estimate(float(value), *interval(drawn, n_units, settings.confidence))


def _compare(
    index: int, arms: Arms, relative: _Reconstruction, output: _Attention | None, settings: GonogoSettings
) -> Comparison:
    families = list(arms.curves)
    mixes = _mixes(arms, arms.arms[index].confirm.bits_per_vector, "confirm", None)
    found = relative.margin(index, mixes)
    attention = None if output is None else output.margin(index, mixes)
    units = relative.n_units if output is None else min(relative.n_units, output.n_units)
    margins = [m.estimate for m in (found, attention) if m is not None]
    verdict, reason = verdict_of(margins, units, settings.min_units)
    return Comparison(
        rival=families[found.family],
        rival_error=found.rival_error,
        margin=found.estimate,
        calibrate_ratio=_calibrate_ratio(index, arms),
        amortised_margin=_amortised_margin(index, arms, relative, settings.amortised_over_vectors),
        attention_rival=None if attention is None else families[attention.family],
        attention_rival_error=None if attention is None else attention.rival_error,
        attention_margin=None if attention is None else attention.estimate,
        rival_unit_error=found.rival_units,
        rival_attention_unit_error=np.empty(0) if attention is None else attention.rival_units,
        verdict=verdict,
        reason=reason,
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


def _amortised_margin(index: int, arms: Arms, relative: _Reconstruction, over: int) -> float:
    mine = arms.arms[index].confirm
    rivals = _mixes(arms, mine.bits_per_vector + _side_bits(mine, over), "confirm", over) @ relative.total
    return float(root_ratio(rivals.min(), relative.energy) - root_ratio(relative.total[index], relative.energy))


def _side_bits(score, amortised_over: int | None) -> float:
    return 0.0 if amortised_over is None else 8.0 * score.side_nbytes / amortised_over
