"""Lloyd's algorithm with restarts and repair of empty cells, as the reference runs it.

Distances and centroids are float64; there is no early stop; the restart with the strictly
lowest final error wins, the untrained start being the one to beat. (Lloyd 1982; the repair
rule and its tie-breaks are the reference's.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_REPAIR_STEP = 1e-6


@dataclass(frozen=True, eq=False)
class LloydResult:
    """codewords [codeword, coordinate] float64; errors are mean squared distances per sample.

    `best_restart` is None when no restart beat the initial codewords; `repaired_cells` counts
    over all restarts.
    """

    codewords: np.ndarray
    initial_error: float
    error: float
    best_restart: int | None
    repaired_cells: int


def lloyd(samples: np.ndarray, initial: np.ndarray, starts: Sequence[np.ndarray], iterations: int) -> LloydResult:
    """Train from each of `starts` on the same `samples` and keep the best.

    samples [sample, coordinate], initial and every start [codeword, coordinate], all float64.
    `initial` is only measured: its error is the one to beat.
    """
    initial_error = mean_error(samples, initial)
    best, best_error, best_restart, repaired = initial, initial_error, None, 0
    for restart, codewords in enumerate(starts):
        for _ in range(iterations):
            codewords, n_repaired = lloyd_step(samples, codewords)
            repaired += n_repaired
        error = mean_error(samples, codewords)
        if error < best_error:
            best, best_error, best_restart = codewords, error, restart
    return LloydResult(best, initial_error, best_error, best_restart, repaired)


def lloyd_step(samples: np.ndarray, codewords: np.ndarray) -> tuple[np.ndarray, int]:
    """One assignment and update: (new codewords [codeword, coordinate], cells repaired)."""
    cells = assign(samples, codewords)
    counts = np.bincount(cells, minlength=len(codewords))
    sums = np.stack([np.bincount(cells, column, minlength=len(codewords)) for column in samples.T], axis=1)
    updated = sums / np.maximum(counts, 1)[:, None]
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        updated = _repair(samples, codewords, cells, counts, updated, empty)
    return updated, len(empty)


def assign(samples: np.ndarray, codewords: np.ndarray) -> np.ndarray:
    """int [sample]: each sample's nearest codeword, the lowest index on ties."""
    # ‖s‖² is the same for every codeword, so |w|² − 2 s·w orders them alike; the 1 beside each
    # sample lets one product compute both terms
    beside = np.concatenate([samples, np.ones((len(samples), 1))], axis=1)
    weights = np.concatenate([-2.0 * codewords, (codewords * codewords).sum(axis=1, keepdims=True)], axis=1)
    return (beside @ weights.T).argmin(axis=1)


def squared_distances(samples: np.ndarray, codewords: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """float64 [sample]: squared distance of each sample to the codeword of its cell."""
    difference = samples - codewords[cells]
    return (difference * difference).sum(axis=1)


def mean_error(samples: np.ndarray, codewords: np.ndarray) -> float:
    """Mean squared distance to the nearest codeword, not divided by the number of coordinates."""
    return float(squared_distances(samples, codewords, assign(samples, codewords)).mean())


def _repair(
    samples: np.ndarray,
    old: np.ndarray,
    cells: np.ndarray,
    counts: np.ndarray,
    updated: np.ndarray,
    empty: np.ndarray,
) -> np.ndarray:
    """Give every empty cell half of the worst cell.

    Donor: the cell with more than one sample and the largest total distortion, the last one on
    ties. Donor and empty cell are set a hair apart around the donor's new centroid, along the
    line to its farthest sample; distances are those to the *old* codewords.
    """
    distance = squared_distances(samples, old, cells)
    distortion = np.bincount(cells, distance, minlength=len(old))
    counts, updated = counts.copy(), updated.copy()
    for cell in empty:
        able = np.flatnonzero(counts > 1)
        if not len(able):
            # fewer samples than codewords: there is nothing to split, the codeword stays where it was
            updated[cell] = old[cell]
            continue
        donor = able[len(able) - 1 - int(distortion[able][::-1].argmax())]
        members = np.flatnonzero(cells == donor)
        direction = samples[members[distance[members].argmax()]] - updated[donor]
        length = np.linalg.norm(direction)
        # identical samples point nowhere; any line splits them
        direction = direction / length if length > 0 else np.eye(samples.shape[1])[0]
        middle = updated[donor].copy()
        updated[donor] = middle - _REPAIR_STEP * direction
        updated[cell] = middle + _REPAIR_STEP * direction
        counts[donor] -= 1
        counts[cell] = 1
        distortion[donor] = distortion[cell] = 0.0
    return updated
