"""Opening a sealed capture store, and reading from it exactly what one replay job needs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from polykv.errors import DamagedStoreError, InputError, SchemaVersionError
from polykv.receipts import digest_json, parse_json
from polykv.storage.inspection import summarize
from polykv.storage.layout import (
    LABEL_ID,
    LOGIT_ARRAYS,
    PROJECTION_ROWS,
    SCHEMA,
    SCHEMA_PREFIX,
    STREAM_ARRAYS,
    WLM_GAMMA,
    capture_layout,
    layer_array,
)
from polykv.storage.location import Location
from polykv.storage.seal import SEAL_FILE, Seal, read_seal
from polykv.storage.slabs import SlabReader
from polykv.storage.verify import Progress, VerifyReport, verify_slabs
from polykv.storage.writer import CaptureWriter
from polykv.types import CaptureMeta, CellData, CellLogits, LayerSpec

__all__ = ["CaptureStore", "CaptureWriter"]

PASSAGE_ARRAYS = ("length", "query_position")


class CaptureStore:
    """A sealed capture, read only.

        store = CaptureStore.open("captures/smollm2")      # or s3://bucket/smollm2
        data = store.cell(layer=3, kv_head=1, split="confirm")

    `meta` says what was captured, `url` is what was opened, `digest` the store's own digest.
    """

    def __init__(self, location: Location, meta: CaptureMeta, seal: Seal) -> None:
        self.url = location.url
        self.meta = meta
        self.digest = seal.digest
        self._location = location
        self._seal = seal
        self._layout = capture_layout(meta, seal.n_unique_labels)
        self._reader = SlabReader(location, self._layout, seal)

    @classmethod
    def open(cls, url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> CaptureStore:
        """Open a store by path or fsspec URL.

        Raises InputError when there is nothing or something else, UnsealedStoreError,
        SchemaVersionError, DamagedStoreError, and StoreError when the place cannot be read.
        """
        location = Location.of(url, storage_options)
        raw_meta = _read_attributes(location)
        seal = read_seal(location)
        if digest_json(raw_meta) != seal.meta_digest:
            raise DamagedStoreError(
                f"{url} is damaged: its meta has digest {digest_json(raw_meta)}, the seal says {seal.meta_digest}"
            )
        return cls(location, CaptureMeta.from_dict(raw_meta), seal)

    def cell(self, layer: int, kv_head: int, split: str, with_logits: bool = True) -> CellData:
        """All passages of one split for one cell; reads its own chunks and no others.

        Raises InputError for a cell or split that is not there, DamagedStoreError naming array,
        passage, layer and head. `logits` is None when the capture holds none, or none are wanted.
        """
        spec, passages = self._cell(layer, kv_head, split)
        streams = {
            name: self._reader.passages(layer_array(layer, name), passages, kv_head).astype(np.float32, copy=False)
            for name in STREAM_ARRAYS
        }
        sinks = self._reader.slab(layer_array(layer, "sink_logits"), (kv_head,)) if spec.has_sink_logits else None
        wants_logits = with_logits and self.meta.n_labels > 0
        return CellData(
            spec=spec,
            kv_head=kv_head,
            split=split,
            passages=np.array(passages, dtype=np.int64),
            documents=self._documents[list(passages)],
            lengths=self._reader.passages("length", passages),
            query_position=self._reader.passages("query_position", passages),
            keys=streams["k"][:, 0],
            values=streams["v"][:, 0],
            queries=streams["q"],
            outputs=streams["out"],
            sink_logits=sinks,
            logits=self._logits(spec, kv_head, passages) if wants_logits else None,
            slab_digests=self.cell_digests(layer, kv_head, split, with_logits),
        )

    def cell_digests(self, layer: int, kv_head: int, split: str, with_logits: bool = True) -> dict[str, str]:
        """Digest of everything `cell` reads, by name, from the seal alone: the identity of a job's input.

        Besides slabs it names the layer's attributes (scale, window …) and, with logits, the
        whole projection under one digest.
        """
        spec, passages = self._cell(layer, kv_head, split)
        wants_logits = with_logits and self.meta.n_labels > 0
        streams = [layer_array(layer, name) for name in STREAM_ARRAYS]
        per_passage = [*PASSAGE_ARRAYS, *(LOGIT_ARRAYS if wants_logits else ())]
        found = {layer_array(layer, "attributes"): digest_json(spec)}
        for name in ("split", "document", *((LABEL_ID, WLM_GAMMA) if wants_logits else ())):
            found[name] = self._seal.array_digest(name)
        for passage in passages:
            found.update(self._slab_digests((name, (passage, kv_head, 0, 0)) for name in streams))
            found.update(
                self._slab_digests((name, self._layout[name].passage_slabs(passage)[0]) for name in per_passage)
            )
        if spec.has_sink_logits:
            found.update(self._slab_digests([(layer_array(layer, "sink_logits"), (kv_head,))]))
        if wants_logits:
            found.update(self._slab_digests([(layer_array(layer, "w_o"), (0, kv_head))]))
        return found

    def token_ids(self, passage: int) -> np.ndarray:
        """The tokens of one passage: [token] int64, padding left out."""
        if not 0 <= passage < self.meta.n_passages:
            raise InputError(f"passage {passage} is not in the capture, which has {self.meta.n_passages}")
        length = int(self._reader.slab("length", (passage,))[0])
        return self._reader.slab("token_ids", (passage, 0))[0, :length]

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Read every slab and list all damage; `progress(done, total)` is called as slabs are done."""
        return verify_slabs(self.url, self.digest, self._reader, self._layout, progress)

    def inspect(self) -> dict[str, Any]:
        """What the store holds, as plain JSON types; sizes in bytes, lengths in tokens."""
        return summarize(self.url, self.meta, self._seal, self._layout, self._location.size_bytes())

    @cached_property
    def _documents(self) -> np.ndarray:
        return self._reader.whole("document")

    def _cell(self, layer: int, kv_head: int, split: str) -> tuple[LayerSpec, tuple[int, ...]]:
        spec, passages = self.meta.layer(layer), self.meta.passages(split)
        if not 0 <= kv_head < spec.n_kv_heads:
            raise InputError(f"layer {layer} has KV heads 0 to {spec.n_kv_heads - 1}, not {kv_head}")
        if not passages:
            counts = {name: len(self.meta.passages(name)) for name in sorted(set(self.meta.passage_split))}
            raise InputError(f"{self.url} has no passage in split {split!r}; it has {counts}")
        return spec, passages

    def _slab_digests(self, slabs: Any) -> dict[str, str]:
        return {self._layout[name].slab_name(i): self._seal.slab(self._layout[name], i) for name, i in slabs}

    def _logits(self, spec: LayerSpec, kv_head: int, passages: Sequence[int]) -> CellLogits:
        label_set, full, final_rms, label_token = (self._reader.passages(name, passages) for name in LOGIT_ARRAYS)
        w_o = self._reader.slab(layer_array(spec.layer, "w_o"), (0, kv_head)).astype(np.float32, copy=False)
        w_o = w_o.reshape(self.meta.hidden_size, spec.group_size, spec.value_dim).transpose(1, 0, 2)
        return CellLogits(np.ascontiguousarray(w_o), self._label_rows(label_set), full, final_rms, label_token)

    def _label_rows(self, label_set: np.ndarray) -> np.ndarray:
        """Rows of wlm_gamma [passage, label, hidden] float32 for label_set [passage, label]."""
        label_ids = self._reader.whole(LABEL_ID)
        rows = np.searchsorted(label_ids, label_set)
        gathered = np.empty((*label_set.shape, self.meta.hidden_size), dtype=np.float32)
        for chunk in np.unique(rows // PROJECTION_ROWS):
            here = rows // PROJECTION_ROWS == chunk
            gathered[here] = self._reader.slab(WLM_GAMMA, (int(chunk), 0))[rows[here] % PROJECTION_ROWS]
        return gathered


def _read_attributes(location: Location) -> Mapping[str, Any]:
    """The raw meta in the store's root zarr.json, its schema checked."""
    raw = location.read_bytes("zarr.json")
    if raw is None:
        present = location.entries()
        if not present:
            raise InputError(f"{location.url} does not exist or is empty; a capture store was expected there")
        if SEAL_FILE in present or "layers" in present:
            raise DamagedStoreError(f"{location.url} is damaged: its zarr.json is missing")
        if "run.json" in present:
            raise InputError(
                f"{location.url} is a run directory, not a capture store; name the store that it is a run of"
            )
        raise InputError(f"{location.url} is not a capture store: it has no zarr.json (it holds {present[0]!r})")
    what = f"{location.url}, file zarr.json"
    try:
        attributes = parse_json(raw, what)["attributes"]
        schema = attributes.get("schema")
    except (InputError, KeyError, TypeError, AttributeError) as error:
        raise DamagedStoreError(f"{what} ({len(raw)} bytes) is damaged: {error}") from error
    if not str(schema).startswith(SCHEMA_PREFIX):
        raise InputError(f"{location.url} is not a capture store: its schema is {schema!r}, not {SCHEMA!r}")
    if schema != SCHEMA:
        raise SchemaVersionError(f"{location.url} has schema {schema!r}, this release reads {SCHEMA!r}")
    if not isinstance(attributes.get("meta"), dict):
        raise DamagedStoreError(f"{what} is damaged: it has no meta")
    return attributes["meta"]
