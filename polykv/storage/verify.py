"""Reading a whole store to list what is damaged, instead of stopping at the first slab."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np

from polykv.errors import StoreError
from polykv.storage.layout import ArrayLayout
from polykv.storage.slabs import SlabReader

Progress = Callable[[int, int], None]

BATCH = 8  # slabs in flight at once: hides an object store's latency, holds a few MB


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
    """Read every slab; `progress(done, total)` is called as slabs are done. Holds one batch at a time."""
    n_slabs = sum(len(array.slabs) for array in layout.values())
    damage: list[Damage] = []
    done = 0
    for array in layout.values():
        for batch in _batches(array):
            damage += _check_batch(reader, array, batch)
            done += len(batch)
            if progress is not None:
                progress(done, n_slabs)
    n_bytes = sum(prod(array.shape) * np.dtype(array.dtype).itemsize for array in layout.values())
    return VerifyReport(url, digest, n_slabs, n_bytes, tuple(damage))


def _batches(array: ArrayLayout) -> Iterator[list[tuple[int, ...]]]:
    """Slabs read in one request: up to BATCH passages of one KV head, else a slab alone."""
    if not array.per_passage:
        yield from ([index] for index in array.slabs)
        return
    for first in array.passage_slabs(0):
        passages = range(array.shape[0])
        for start in range(0, len(passages), BATCH):
            yield [(p, *first[1:]) for p in passages[start : start + BATCH]]


def _check_batch(reader: SlabReader, array: ArrayLayout, batch: list[tuple[int, ...]]) -> list[Damage]:
    if array.per_passage:
        try:
            reader.passages(array.name, [index[0] for index in batch], array.kv_head(batch[0]))
            return []
        except StoreError:
            pass  # read again one by one, to list each slab at fault
    damage = []
    for index in batch:
        try:
            reader.slab(array.name, index)
        except StoreError as error:
            passage = index[0] if array.per_passage else None
            damage.append(Damage(array.name, passage, array.layer, array.kv_head(index), str(error)))
    return damage
