"""Reading slabs: nothing leaves here that is missing, empty, undecodable or other than the seal says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import zarr
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import WrapperStore

from polykv.errors import DamagedStoreError, PolykvError, StoreError
from polykv.receipts import digest_array
from polykv.storage.layout import ArrayLayout
from polykv.storage.location import Location
from polykv.storage.seal import Seal


class AbsentChunkError(Exception):
    """A chunk file that is not there, or holds nothing; zarr would read it as the fill value."""


class _PresentOnly(WrapperStore):
    """A store that never answers "absent" for a chunk, so that no fill value is ever read."""

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        value = await self._store.get(key, prototype, byte_range)
        if key.rpartition("/")[2] != "zarr.json" and (value is None or len(value) == 0):
            raise AbsentChunkError("its file is missing" if value is None else "its file is empty (0 bytes)")
        return value


class SlabReader:
    """Checked reads of one sealed store; every slab's digest is compared on every read."""

    def __init__(self, location: Location, layout: dict[str, ArrayLayout], seal: Seal) -> None:
        self._location = location
        self._layout = layout
        self._seal = seal
        self._store = _PresentOnly(location.zarr_store(read_only=True))
        self._arrays: dict[str, zarr.Array] = {}

    def slab(self, name: str, index: tuple[int, ...]) -> np.ndarray:
        """One slab in its stored dtype. Raises DamagedStoreError naming array, passage, layer, head."""
        layout = self._layout[name]
        array = self._array(layout)
        try:
            values = np.asarray(array[layout.region(index)])
        except (PolykvError, MemoryError):
            raise
        except Exception as error:
            raise self._why(layout, index, error) from error
        self._check(layout, index, values)
        return values

    def whole(self, name: str) -> np.ndarray:
        """A whole array, slab by slab."""
        layout = self._layout[name]
        values = np.empty(layout.shape, layout.dtype)
        for index in layout.slabs:
            values[layout.region(index)] = self.slab(name, index)
        return values

    def passages(self, name: str, passages: Sequence[int], kv_head: int | None = None) -> np.ndarray:
        """The slabs of several passages (of one KV head) in one request: [passage, …], stored dtype."""
        layout = self._layout[name]
        array = self._array(layout)
        indices = [(p, *_head_index(layout, kv_head)) for p in passages]
        rest = layout.region(indices[0])[1:] if indices else tuple(slice(0, n) for n in layout.shape[1:])
        try:
            values = np.asarray(array.oindex[(np.asarray(passages, dtype=np.int64), *rest)])
        except MemoryError:
            raise
        except Exception as error:
            self._find_damage(layout, indices)
            raise StoreError(f"{self._location.url}, array {name}: {type(error).__name__}: {error}") from error
        for index, slab in zip(indices, values, strict=True):
            self._check(layout, index, slab)
        return values

    def _find_damage(self, layout: ArrayLayout, indices: list[tuple[int, ...]]) -> None:
        """Read one by one what could not be read together, to name the slab at fault."""
        for index in indices:
            self.slab(layout.name, index)

    def _array(self, layout: ArrayLayout) -> zarr.Array:
        if layout.name not in self._arrays:
            self._arrays[layout.name] = self._open(layout)
        return self._arrays[layout.name]

    def _open(self, layout: ArrayLayout) -> zarr.Array:
        where = f"{self._location.url}, array {layout.name}"
        try:
            array = zarr.open_array(self._store, path=layout.name, mode="r", zarr_format=3)
        except MemoryError:
            raise
        except Exception as error:
            raw = self._location.read_bytes(f"{layout.name}/zarr.json")
            state = "is missing" if raw is None else f"({len(raw)} bytes) cannot be understood"
            raise DamagedStoreError(f"{where} is damaged: its zarr.json {state}") from error
        for what, found, expected in (
            ("shape", array.shape, layout.shape),
            ("chunks", array.chunks, layout.chunks),
            ("dtype", str(array.dtype), layout.dtype),
        ):
            if found != expected:
                raise DamagedStoreError(
                    f"{where} is damaged: its {what} is {found}, the capture's meta says {expected}"
                )
        return array

    def _check(self, layout: ArrayLayout, index: tuple[int, ...], values: np.ndarray) -> None:
        found, sealed = digest_array(values), self._seal.slab(layout, index)
        if found != sealed:
            raise DamagedStoreError(
                f"{self._location.url}, {layout.place(index)}: its digest is {found}, the seal says {sealed}"
            )

    def _why(self, layout: ArrayLayout, index: tuple[int, ...], error: Exception) -> StoreError:
        """Tell a damaged slab from a place that cannot be read just now."""
        where = f"{self._location.url}, {layout.place(index)}"
        if isinstance(error, AbsentChunkError):
            return DamagedStoreError(f"{where}: {error}")
        key = f"{layout.name}/{'.'.join(['c', *(str(i) for i in index)])}"
        try:
            raw = self._location.read_bytes(key)
        except StoreError as unreadable:
            return unreadable
        return DamagedStoreError(
            f"{where}: its file {key} ({len(raw or b'')} bytes) cannot be decoded: it was truncated or altered"
        )


def _head_index(layout: ArrayLayout, kv_head: int | None) -> tuple[int, ...]:
    """Chunk numbers after the passage: the KV head where the array has heads, zeros elsewhere."""
    return tuple(kv_head if axis in ("kv_head", "q_head") else 0 for axis in layout.axes[1:])
