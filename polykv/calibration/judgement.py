"""The receipt of one go/no-go, and the library call that makes one from plain rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polykv.calibration.arms import Arm, Arms, score_arms
from polykv.calibration.sample import Sample, sample_of_rows
from polykv.calibration.scoring import energies, root_ratio
from polykv.calibration.settings import LEGACY_RULE, RULE, GonogoSettings
from polykv.calibration.verdict import INCONCLUSIVE, Comparison, Errors, Legacy, judge, legacy_verdict
from polykv.codecs.sparse import SparseCodec
from polykv.errors import DimensionMismatch
from polykv.receipts import NUMERICS_VERSION, digest_array, digest_json, to_plain

SCHEMA = "polykv_gonogo_v1"


@dataclass(frozen=True, eq=False)
class Judgement:
    """What one (layer, stream[, head]), or one set of rows, says about a sparse dictionary.

    Reads as an object (`judgement.verdict`) or as its JSON (`judgement["verdict"]`). `primary`
    is the position in `arms.arms` of the arm whose comparison is the verdict: the first grid
    point, in the coefficient format that does best against its rival on calibrate (error ratio).
    """

    settings: GonogoSettings
    arms: Arms
    errors: Errors
    legacy: Legacy
    primary: int
    unit_kind: str
    n_units: int
    n_attention_units: int
    n_vectors: Mapping[str, int]
    head_dim: int
    calibrate_energy: np.ndarray = field(repr=False)
    confirm_energy: np.ndarray = field(repr=False)
    input_digests: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def comparison(self) -> Comparison:
        """The primary arm's."""
        return self.errors.comparisons[self.primary]

    @property
    def same_rows(self) -> bool:
        """Confirm holds the very rows of calibrate, so nothing here was held out."""
        return self.input_digests["calibrate"] == self.input_digests["confirm"]

    @property
    def verdict(self) -> str:
        """go, no-go or inconclusive."""
        return INCONCLUSIVE if self.same_rows else self.comparison.verdict

    @property
    def verdict_reason(self) -> str | None:
        return "confirm_is_calibrate" if self.same_rows else self.comparison.reason

    @property
    def legacy_verdict(self) -> str:
        """go or no-go by the original rule."""
        return self.legacy.verdict

    @property
    def codec(self) -> SparseCodec:
        """The primary arm's codec, dictionary included."""
        arm = self.arms.arms[self.primary]
        arguments = {name: value for name, value in arm.config.items() if name != "id"}
        return SparseCodec(**arguments, arrays=self.arms.dictionaries[arm.artifact])

    def __getitem__(self, name: str) -> Any:
        return self.to_dict()[name]

    def arm_dict(self, index: int) -> dict[str, Any]:
        """One arm as plain JSON; bits and bytes are per vector, errors √(Σe²/Σx²)."""
        arm, relative = self.arms.arms[index], self.errors.relative[index]
        calibrate = root_ratio(arm.calibrate.squared_error.sum(), self.calibrate_energy.sum())
        found = {
            "codec": arm.name,
            "config": arm.config,
            "bits_per_vector": arm.confirm.bits_per_vector,
            "bits_per_value": arm.confirm.bits_per_vector / self.head_dim,
            "side_nbytes": arm.confirm.side_nbytes,
            "bits_per_vector_amortised": self.amortised_bits(arm),
            "calibrate_relative_error": float(calibrate),
            "confirm_relative_error": relative.value,
            "confirm_relative_error_low": relative.low,
            "confirm_relative_error_high": relative.high,
            "attention_output_error": None,
            "attention_kl_nats": None,
            "comparison": None,
        }
        if self.errors.attention is not None:
            found["attention_output_error"] = self.errors.attention[index].value
            found["attention_kl_nats"] = float(arm.confirm.attention_kl.mean())
        if index in self.errors.comparisons:
            found["comparison"] = _comparison_dict(self.errors.comparisons[index])
        return to_plain(found)

    def amortised_bits(self, arm: Arm) -> float:
        """Bits per vector with what is stored once shared by `amortised_over_vectors` vectors."""
        return arm.confirm.bits_per_vector + 8.0 * arm.confirm.side_nbytes / self.settings.amortised_over_vectors

    def to_dict(self) -> dict[str, Any]:
        """The receipt as plain JSON, with a digest over all of it."""
        judged = self.arm_dict(self.primary)
        body = {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "verdict_reason": self.verdict_reason,
            "rule": RULE,
            "legacy_verdict": self.legacy_verdict,
            "legacy_rule": LEGACY_RULE,
            "legacy_dictionary_error": self.legacy.dictionary_error,
            "legacy_ternary_error": self.legacy.ternary_error,
            "units": self.unit_kind,
            "n_units": self.n_units,
            "n_attention_units": self.n_attention_units,
            "n_vectors": self.n_vectors,
            "head_dim": self.head_dim,
            "calibrate_relative_error": judged["calibrate_relative_error"],
            "confirm_relative_error": judged["confirm_relative_error"],
            "judged_arm": judged,
            "arms": [self.arm_dict(i) for i in range(len(self.arms.arms))],
            "absent_rivals": self.arms.absent,
            "failed_grid": {f"{atoms}x{sparsity}": why for (atoms, sparsity), why in self.arms.failed.items()},
            "dictionaries": sorted(self.arms.dictionaries),
            "settings": self.settings.to_dict(),
            "input_digests": self.input_digests,
            "numerics_version": NUMERICS_VERSION,
            "notes": self.notes,
        }
        plain = to_plain(body)
        return {**plain, "digest": digest_json(plain)}


def judge_samples(calibrate: Sample, confirm: Sample, settings: GonogoSettings) -> Judgement:
    """Fit on one sample, judge on the other."""
    width, other = calibrate.rows.shape[1], confirm.rows.shape[1]
    if width != other:
        raise DimensionMismatch(f"calibrate rows have {width} dimensions, confirm rows {other}")
    arms = score_arms(calibrate, confirm, settings)
    calibrate_energy, confirm_energy = energies(calibrate), energies(confirm)
    errors = judge(arms, calibrate_energy, confirm_energy, settings)
    candidates = [i for i in arms.sparse if arms.arms[i].grid == settings.grid[0]]
    primary = max(candidates, key=lambda i: errors.comparisons[i].calibrate_ratio)
    digests = {"calibrate": digest_array(calibrate.rows), "confirm": digest_array(confirm.rows)}
    return Judgement(
        settings,
        arms,
        errors,
        legacy_verdict(arms.train_rows, arms.primary.train_relative_error),
        primary,
        confirm.unit_kind,
        confirm.n_units,
        len(arms.arms[0].confirm.attention_error),
        {"calibrate": len(calibrate.rows), "trained": len(arms.train_rows), "confirm": len(confirm.rows)},
        width,
        calibrate_energy,
        confirm_energy,
        digests,
        _notes(confirm, digests),
    )


def judge_dictionary(
    calibrate_rows: np.ndarray,
    confirm_rows: np.ndarray,
    n_atoms: int = 256,
    sparsity: int = 4,
    iterations: int = 20,
    seed: int = 0,
    calibrate_groups: Sequence | np.ndarray | None = None,
    confirm_groups: Sequence | np.ndarray | None = None,
    queries: np.ndarray | None = None,
    **settings: Any,
) -> Judgement:
    """Is a sparse dictionary worth its bits for these vectors?

    calibrate_rows, confirm_rows [n, head_dim] float: fitted on, judged on; take them from
    different documents. calibrate_groups, confirm_groups [n]: passage labels, the units of the
    bootstrap (without them rows are the units, and the receipt says so). queries [query,
    head_dim]: also compare attention, the rows serving as keys (see `sample_of_rows`). seed
    draws the bootstrap and the rivals' rotation; learning itself is deterministic. Further
    `settings` are fields of GonogoSettings.

    Raises NonFiniteError naming the entry, DimensionMismatch, InputError for empty or all-zero
    rows and for fewer usable rows than atoms. Fewer than `min_units` units: inconclusive.
    """
    config = GonogoSettings(grid=((n_atoms, sparsity),), iterations=iterations, seed=seed, **settings)
    calibrate = sample_of_rows(calibrate_rows, calibrate_groups, "calibrate_rows")
    confirm = sample_of_rows(confirm_rows, confirm_groups, "confirm_rows", queries)
    return judge_samples(calibrate, confirm, config)


def _notes(confirm: Sample, digests: Mapping[str, str]) -> tuple[str, ...]:
    notes = []
    if confirm.unit_kind == "rows":
        notes.append("no groups were given: rows are the units, so correlation within a passage is not in the interval")
    if digests["calibrate"] == digests["confirm"]:
        notes.append("confirm holds the very rows of calibrate: nothing was held out, no verdict")
    return tuple(notes)


def _comparison_dict(comparison: Comparison) -> dict[str, Any]:
    names = ("rival", "rival_error", "margin", "calibrate_ratio", "amortised_margin", "attention_rival")
    names += ("attention_rival_error", "attention_margin", "verdict", "reason")
    return {name: to_plain(getattr(comparison, name)) for name in names}
