"""Writing a capture store: laid out once, then one passage at a time, then sealed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import zarr
from zarr.codecs import ZstdCodec

from polykv.errors import DimensionMismatch, InputError
from polykv.receipts import digest_array, digest_json, to_plain
from polykv.storage.checks import cast_finite, check_passage, padded
from polykv.storage.layout import (
    LABEL_ID,
    SCHEMA,
    STREAM_ARRAYS,
    WLM_GAMMA,
    ArrayLayout,
    capture_layout,
    layer_array,
    projection_arrays,
)
from polykv.storage.location import Location, writing
from polykv.storage.seal import SEAL_FILE, Seal
from polykv.types import SPLITS, CaptureMeta, PassageCapture


def refuse_occupied(location: Location) -> None:
    """Raise InputError when anything stands at the place already."""
    present = location.entries()
    if present:
        state = "holds a sealed store" if SEAL_FILE in present else f"is not empty (it holds {present[0]!r})"
        raise InputError(f"{location.url} {state}; nothing is overwritten: choose another place or remove it first")


class CaptureWriter:
    """One process's hand on a new store; it holds digests and one passage, nothing more.

        writer = CaptureWriter.create("captures/smollm2", meta)
        writer.write_passage(passage)           # each of them once, in any order
        writer.write_layer_constants(3, w_o=w_o)
        writer.write_projection(label_ids, wlm_gamma)
        writer.seal()

    Until `seal` returns, every reader refuses the store.
    """

    def __init__(self, location: Location, meta: CaptureMeta) -> None:
        self.meta = meta
        self.url = location.url
        self._location = location
        self._store = location.zarr_store(read_only=False)
        self._arrays: dict[str, zarr.Array] = {}
        self._layout: dict[str, ArrayLayout] = {}
        self._digests: dict[str, dict[tuple[int, ...], str]] = {}
        self._labels: set[int] = set()
        self._written: set[int] = set()
        self._sealed = False

    @classmethod
    def create(
        cls, url: str | os.PathLike[str], meta: CaptureMeta, storage_options: Mapping[str, Any] | None = None
    ) -> CaptureWriter:
        """Lay out an empty store at a path or fsspec URL.

        Raises InputError when something is there already, or when `meta` announces no passages,
        layers or tokens, or labels without a hidden size.
        """
        _check_meta(meta)
        location = Location.of(url, storage_options)
        refuse_occupied(location)
        writer = cls(location, meta)
        attributes = {"schema": SCHEMA, "split_names": list(SPLITS), "meta": to_plain(meta.to_dict())}
        with writing(writer.url):
            zarr.create_group(writer._store, zarr_format=3, attributes=attributes)
        for layout in capture_layout(meta).values():
            writer._add_array(layout)
        writer._write_whole("split", np.array([SPLITS.index(name) for name in meta.passage_split]))
        writer._write_whole("document", np.array(meta.passage_document))
        return writer

    def write_passage(self, passage: PassageCapture) -> None:
        """Check, pad, cast and write one passage; all of it is checked before any of it is written.

        Raises InputError, DimensionMismatch or NonFiniteError for a passage that cannot be stored
        as it is, StorageFullError when there is no space.
        """
        self._refuse_sealed()
        check_passage(self.meta, passage)
        if passage.index in self._written:
            raise InputError(f"passage {passage.index} was written already; each passage is written once")
        index = passage.index
        self._write_passage_array("token_ids", index, np.asarray(passage.token_ids))
        self._write_passage_array("length", index, np.asarray(passage.length))
        self._write_passage_array("query_position", index, np.asarray(passage.query_position))
        for layer, capture in passage.layers.items():
            for stream in STREAM_ARRAYS:
                values = cast_finite(getattr(capture, stream), self.meta.store_dtype, f"layer {layer}, {stream}")
                self._write_passage_array(layer_array(layer, stream), index, values)
        if passage.logits is not None:
            for name in ("label_set", "full", "final_rms", "label_token"):
                self._write_passage_array(f"logits/{name}", index, np.asarray(getattr(passage.logits, name)))
            self._labels.update(int(label) for label in passage.logits.label_set)
        self._written.add(passage.index)

    def write_layer_constants(
        self, layer: int, sink_logits: np.ndarray | None = None, w_o: np.ndarray | None = None
    ) -> None:
        """Write a layer's learned sink logits [q_head] and output projection [hidden, q_head·value_dim].

        Each is wanted exactly when the meta announces it: `has_sink_logits`, `n_labels` > 0.
        """
        self._refuse_sealed()
        self.meta.layer(layer)
        for name, values in (("sink_logits", sink_logits), ("w_o", w_o)):
            if values is None:
                continue
            array = layer_array(layer, name)
            if array not in self._layout:
                raise InputError(f"layer {layer}: {name} given, but the capture's meta announces none")
            self._write_whole(array, np.asarray(values))

    def write_projection(self, label_ids: np.ndarray, wlm_gamma: np.ndarray) -> None:
        """Write rows of the language-model head times the final norm's weight.

        label_ids [unique label] int64, each once; wlm_gamma [unique label, hidden]. Stored in the
        order of the ids.
        """
        self._refuse_sealed()
        label_ids, wlm_gamma = np.asarray(label_ids), np.asarray(wlm_gamma)
        if not self.meta.n_labels:
            raise InputError("a projection was given, but the capture's meta announces no labels (n_labels is 0)")
        if LABEL_ID in self._layout:
            raise InputError("the projection was written already")
        if label_ids.ndim != 1 or not label_ids.size or len(np.unique(label_ids)) != label_ids.size:
            raise InputError(f"label_ids must be one row of distinct ids, got shape {list(label_ids.shape)}")
        order = np.argsort(label_ids)
        shape = (label_ids.size, self.meta.hidden_size)
        if wlm_gamma.shape != shape:
            raise DimensionMismatch(f"wlm_gamma: shape {list(wlm_gamma.shape)}, expected {list(shape)}")
        cast_finite(wlm_gamma, self.meta.store_dtype, "wlm_gamma", "row")
        for layout in projection_arrays(self.meta, label_ids.size):
            self._add_array(layout)
        self._write_whole(LABEL_ID, label_ids[order])
        self._write_whole(WLM_GAMMA, wlm_gamma[order])

    def seal(self) -> str:
        """Write the seal and return the store's digest.

        Raises InputError naming what is still missing. The digests were taken before the bytes left
        this process, so a reader also finds what went wrong on the way to the disk.
        """
        self._refuse_sealed()
        self._refuse_incomplete()
        seal = Seal(
            digest_json(self.meta.to_dict()),
            {name: tuple(self._digests[name][i] for i in layout.slabs) for name, layout in self._layout.items()},
            self._layout[LABEL_ID].shape[0] if LABEL_ID in self._layout else None,
        )
        self._location.write_bytes(SEAL_FILE, seal.to_bytes())
        self._sealed = True
        return seal.digest

    def _add_array(self, layout: ArrayLayout) -> None:
        with writing(f"{self.url}, array {layout.name}"):
            self._arrays[layout.name] = zarr.create_array(
                self._store,
                name=layout.name,
                shape=layout.shape,
                chunks=layout.chunks,
                dtype=layout.dtype,
                fill_value=layout.fill,
                # real vectors hardly compress: the codec is here for its checksum
                compressors=ZstdCodec(level=1, checksum=True),
                # flat chunk files: a folder per passage and head would take more room than the chunks
                chunk_key_encoding={"name": "default", "separator": "."},
                dimension_names=layout.axes,
                zarr_format=3,
                config={"write_empty_chunks": True},
            )
        self._layout[layout.name] = layout
        self._digests[layout.name] = {}

    def _write_passage_array(self, name: str, passage: int, values: np.ndarray) -> None:
        layout = self._layout[name]
        whole = padded(values, layout)
        digests = {index: digest_array(whole[layout.region(index)[1:]]) for index in layout.passage_slabs(passage)}
        with writing(f"{self.url}, array {name}, passage {passage}"):
            self._arrays[name][passage] = whole
        self._digests[name].update(digests)

    def _write_whole(self, name: str, values: np.ndarray) -> None:
        layout = self._layout[name]
        if values.shape != layout.shape:
            raise DimensionMismatch(f"{name}: shape {list(values.shape)}, expected {list(layout.shape)}")
        whole = cast_finite(values, layout.dtype, name, "row")
        with writing(f"{self.url}, array {name}"):
            self._arrays[name][...] = whole
        self._digests[name] = {index: digest_array(whole[layout.region(index)]) for index in layout.slabs}

    def _refuse_sealed(self) -> None:
        if self._sealed:
            raise InputError(f"{self.url} is sealed; a sealed store is never written again")

    def _refuse_incomplete(self) -> None:
        missing = sorted(set(range(self.meta.n_passages)) - self._written)
        if missing:
            raise InputError(f"{self.url} cannot be sealed: passages {missing} of {self.meta.n_passages} are missing")
        empty = [name for name, layout in self._layout.items() if len(self._digests[name]) != len(layout.slabs)]
        if self.meta.n_labels and LABEL_ID not in self._layout:
            empty.append(WLM_GAMMA)
        if empty:
            raise InputError(f"{self.url} cannot be sealed: {', '.join(empty)} not written")
        if self.meta.n_labels:
            unknown = sorted(self._labels - {int(i) for i in self._arrays[LABEL_ID][...]})
            if unknown:
                raise InputError(f"{self.url} cannot be sealed: labels {unknown[:5]} have no row in {WLM_GAMMA}")


def _check_meta(meta: CaptureMeta) -> None:
    for name in ("n_passages", "n_tokens", "n_queries"):
        if getattr(meta, name) < 1:
            raise InputError(f"{name} is {getattr(meta, name)}: a capture needs at least 1")
    if not meta.layers:
        raise InputError("the capture's meta names no layers")
    if meta.n_labels and meta.hidden_size < 1:
        raise InputError(f"n_labels is {meta.n_labels} but hidden_size is {meta.hidden_size}")
    numbers = [spec.layer for spec in meta.layers]
    if len(set(numbers)) != len(numbers) or min(numbers) < 0:
        raise InputError(f"layers {numbers} must be distinct and not negative")
    outside = [d for d in meta.passage_document if not 0 <= d < len(meta.documents)]
    if outside:
        raise InputError(f"passage_document {outside[0]} lies outside the {len(meta.documents)} documents")
