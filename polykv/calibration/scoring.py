"""Every arm of a go/no-go on one split: squared errors and attention errors, unit by unit.

Sums per unit are all the bootstrap needs, so decoded vectors are dropped as soon as they are
scored: memory is one arm's vectors, however many arms there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polykv.calibration.rivals import Coded
from polykv.calibration.sample import Sample
from polykv.codecs.omp import row_energies


@dataclass(frozen=True, eq=False)
class ArmScore:
    """One arm on one split.

    squared_error [unit] float64: Σ‖x̂ − x‖². attention_error [attention unit] float64: mean over
    queries of ‖Δo‖/‖o‖; attention_kl [attention unit] in nats; units without a measured query
    are left out, and both are empty without probes.
    """

    bits_per_vector: float
    side_nbytes: int
    squared_error: np.ndarray
    attention_error: np.ndarray
    attention_kl: np.ndarray


def score(sample: Sample, coded: Coded, attention: bool) -> ArmScore:
    """Score one arm; `attention` False leaves the probes out (the calibrate split)."""
    wrong = row_energies(np.asarray(coded.decoded, np.float64) - sample.rows)
    squared = np.bincount(sample.unit, wrong, sample.n_units)
    n_probed = sample.n_attention_units if attention else 0
    sums = np.zeros((3, n_probed))
    for probe in sample.probes if attention else ():
        output, kl = probe.errors(coded.decoded)
        sums[:, probe.unit] += output.sum(), kl.sum(), len(output)
    measured = sums[:, sums[2] > 0]
    attention_error, kl = measured[:2] / measured[2]
    return ArmScore(coded.bits / len(sample.rows), coded.side_nbytes, squared, attention_error, kl)


def energies(sample: Sample) -> np.ndarray:
    """[unit] float64: Σ‖x‖² of each unit."""
    return np.bincount(sample.unit, row_energies(sample.rows), sample.n_units)


def root_ratio(squared: np.ndarray, energy: np.ndarray | float) -> np.ndarray:
    """√(Σe²/Σx²): the relative error that every figure here is."""
    return np.sqrt(np.asarray(squared) / energy)
