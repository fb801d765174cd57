"""The arms of a go/no-go: learned dictionaries and their rivals, each scored on both splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polykv.calibration.learner import LearnedDictionary, learn_dictionary
from polykv.calibration.rivals import Coded, Rows, rival_curves
from polykv.calibration.sample import Sample
from polykv.calibration.scoring import ArmScore, score
from polykv.calibration.settings import GonogoSettings
from polykv.codecs.omp import batch_omp
from polykv.codecs.sparse import SparseCodec
from polykv.errors import InputError
from polykv.npz import npz_bytes
from polykv.receipts import digest_bytes


@dataclass(frozen=True, eq=False)
class Arm:
    """One codec configuration with its score on calibrate and on confirm.

    grid is (n_atoms, sparsity) for a dictionary, None for a rival; artifact the dictionary's digest.
    """

    name: str
    config: Mapping[str, Any]
    calibrate: ArmScore
    confirm: ArmScore
    grid: tuple[int, int] | None = None
    artifact: str | None = None


@dataclass(frozen=True, eq=False)
class Arms:
    """All arms; `curves` gives, per rival family, the positions of its points in `arms`.

    absent: rival families that cannot code this head_dim, and why. failed: grid points that
    could not be learned, and why. dictionaries: artifact arrays by the blake3 of their npz; primary: what the first grid point learned.
    """

    arms: tuple[Arm, ...]
    curves: Mapping[str, tuple[int, ...]]
    absent: Mapping[str, str]
    failed: Mapping[tuple[int, int], str]
    dictionaries: Mapping[str, Mapping[str, np.ndarray]]
    primary: LearnedDictionary
    train_rows: np.ndarray = field(repr=False)

    @property
    def sparse(self) -> tuple[int, ...]:
        """Positions of the dictionary arms."""
        return tuple(i for i, arm in enumerate(self.arms) if arm.grid is not None)


def score_arms(calibrate: Sample, confirm: Sample, settings: GonogoSettings) -> Arms:
    """Fit on calibrate, score on both. Raises InputError when the primary dictionary cannot be learned."""
    train = _thinned(calibrate.rows, settings.train_rows_max)
    learned, failed = _learn_grid(train, settings)
    arms, dictionaries = [], {}
    for grid, result in learned.items():
        arrays = result.artifact()
        digest = digest_bytes(npz_bytes(arrays))
        dictionaries[digest] = arrays
        arms += _dictionary_arms(arrays, digest, grid, calibrate, confirm, settings)
    means = calibrate.means()
    families, absent = rival_curves(calibrate.rows.shape[1], settings.seed)
    place, curves = {}, {}
    for family, rivals in families.items():
        for rival in rivals:
            if rival not in place:
                place[rival] = len(arms)
                rows = (Rows(s.rows, s.head, means, s.run) for s in (calibrate, confirm))
                coded = [rival.code(r) for r in rows]
                scores = (score(calibrate, coded[0], False), score(confirm, coded[1], True))
                arms.append(Arm(rival.name, rival.config(), *scores))
        curves[family] = tuple(place[rival] for rival in rivals)
    return Arms(tuple(arms), curves, absent, failed, dictionaries, learned[settings.grid[0]], train)


def _learn_grid(train: np.ndarray, settings: GonogoSettings) -> tuple[dict, dict]:
    learned, failed = {}, {}
    for grid in settings.grid:
        try:
            learned[grid] = learn_dictionary(train, settings.learner(*grid))
        except InputError as error:
            if grid == settings.grid[0]:
                raise
            failed[grid] = str(error)
    return learned, failed


def _dictionary_arms(
    arrays: Mapping[str, np.ndarray],
    digest: str,
    grid: tuple[int, int],
    calibrate: Sample,
    confirm: Sample,
    settings: GonogoSettings,
) -> list[Arm]:
    """One arm per coefficient format; the pursuit is done once and its result quantised several ways."""
    atoms, mean, (_, sparsity) = arrays["atoms"], arrays["mean"], grid
    pursued = [batch_omp(s.rows - mean, atoms, sparsity) for s in (calibrate, confirm)]
    arms = []
    for coefficients in settings.coefficients:
        codec = SparseCodec(atoms.shape[1], digest, sparsity, coefficients, arrays=arrays)
        scores = []
        for sample, found in zip((calibrate, confirm), pursued, strict=True):
            codes = codec.quantise(found.indices, found.coefficients)
            coded = Coded(codec.decode(codes), 8 * codec.nbytes(codes), codec.side_nbytes())
            scores.append(score(sample, coded, sample is confirm))
        arms.append(Arm(codec.codec_id, codec.config(), *scores, grid, digest))
    return arms


def _thinned(rows: np.ndarray, most: int | None) -> np.ndarray:
    """At most `most` rows, evenly spaced."""
    if most is None or len(rows) <= most:
        return rows
    return rows[np.linspace(0, len(rows) - 1, most).round().astype(np.int64)]
