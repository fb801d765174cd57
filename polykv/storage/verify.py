"""Reading a whole store to list what is damaged, instead of stopping at the first slab."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np

from polykv.errors import StoreError
from polykv.storage.layout import ArrayLayout
from polykv.storage.slabs import SlabReader

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Damage:
    """One slab that is not what the seal says; None where the slab belongs to no passage, layer or head."""

    array: str
    passage: int | None
    layer: int | None
    kv_head: int | None
    reason: str


@dataclass(frozen=True)
class VerifyReport:
    """What a full read found: slabs read, their bytes uncompressed, and all that is damaged."""

    url: str
    digest: str
    n_slabs: int
    n_bytes: int
    damage: tuple[Damage, ...]

    @property
    def ok(self) -> bool:
        return not self.damage

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


def verify_slabs(
    url: str, digest: str, reader: SlabReader, layout: Mapping[str, ArrayLayout], progress: Progress | None = None
) -> VerifyReport:
    """Read every slab; `progress(done, total)` is called after each. Holds one slab at a time."""
    work = [(array, index) for array in layout.values() for index in array.slabs]
    damage = []
    for done, (array, index) in enumerate(work, start=1):
        try:
            reader.slab(array.name, index)
        except StoreError as error:
            passage = index[0] if array.per_passage else None
            damage.append(Damage(array.name, passage, array.layer, array.kv_head(index), str(error)))
        if progress is not None:
            progress(done, len(work))
    n_bytes = sum(prod(array.shape) * np.dtype(array.dtype).itemsize for array in layout.values())
    return VerifyReport(url, digest, len(work), n_bytes, tuple(damage))
