"""Mean keys of a model's cells: fitted on a capture's split calibrate, or read from an artifact."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np

from polykv.replay.means import key_mean
from polykv.rotation import Rotation
from polykv.types import Cell, CellData

_NAME = re.compile(r"key_mean_(\d+)_(\d+)")

ReadCell = Callable[[int, int, str], CellData]


def fit_key_means(
    read: ReadCell, cells: Mapping[Cell, int], rotations: Mapping[Cell, Rotation] | None = None
) -> dict[Cell, np.ndarray]:
    """{cell: [head_dim] float32} over the split calibrate; `cells` says how many sinks each leaves out.

    `read(layer, kv_head, split)` gives a cell's data (a capture store's `cell`). Cells in
    `rotations` get the mean of their un-rotated keys.
    """
    known = rotations or {}
    return {cell: key_mean(read(*cell, "calibrate"), sinks, known.get(cell)) for cell, sinks in cells.items()}


def means_to_arrays(means: Mapping[Cell, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a means artifact: one [head_dim] float32 for each cell, "key_mean_LAYER_HEAD"."""
    return {f"key_mean_{cell.layer}_{cell.kv_head}": mean for cell, mean in means.items()}


def means_from_arrays(arrays: Mapping[str, np.ndarray]) -> dict[Cell, np.ndarray] | None:
    """The means in an artifact's arrays; None when it is another kind of artifact."""
    found = {name: _NAME.fullmatch(name) for name in arrays}
    if not found or not all(found.values()):
        return None
    return {Cell(int(m[1]), int(m[2])): arrays[name] for name, m in found.items() if m}
