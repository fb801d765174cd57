"""The mean key of a cell: what centring subtracts before keys are coded."""

from __future__ import annotations

import numpy as np

from polykv.errors import InputError
from polykv.rotation import Rotation
from polykv.types import CellData


def key_mean(data: CellData, sink_tokens: int, rotation: Rotation | None = None) -> np.ndarray:
    """[head_dim] float32 mean of keys over the valid tokens of a split, sinks left out.

    Keys as attention sees them, or un-rotated by their positions when a `rotation` is given.

    A constant added to every key adds the same q·mean to every logit and cancels in the
    softmax; 40-69 % of the energy of real keys is this mean, so codes without it are finer.
    """
    total = np.zeros(data.spec.head_dim)
    count = 0
    for row, length in enumerate(data.lengths):
        keys = data.keys[row, sink_tokens : int(length)]
        if rotation is not None:
            keys = rotation.undo(keys, sink_tokens + np.arange(len(keys)))
        total += keys.sum(axis=0, dtype=np.float64)
        count += len(keys)
    if count == 0:
        raise InputError(
            f"layer {data.spec.layer}, KV head {data.kv_head}: split {data.split!r} has no token beyond its "
            f"{sink_tokens} sinks to take a mean key over"
        )
    return (total / count).astype(np.float32)
