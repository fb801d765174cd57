"""Pools and shells on disk: a manifest and the codes, digests checked on the way back.

    folder/pool.json, pool.codes        folder/shell.json, shell.codes

The codes file is the arrays' little-endian bytes one after the other; the JSON says name, dtype,
shape and place of each, so nothing is unpickled and nothing larger than the file is allocated.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polykv.codecs.base import Codes
from polykv.codecs.registry import ArtifactLoader
from polykv.errors import DamagedStoreError, InputError, PolykvError, StoreError
from polykv.policy import CompressionPolicy
from polykv.pool.encoding import TierLayer, tier_codecs
from polykv.pool.manifest import PoolManifest, ShellManifest
from polykv.pool.pool import SharedKVPool
from polykv.pool.shell import AgentShell
from polykv.receipts import parse_json, pretty_json
from polykv.shape import KvTensorShape
from polykv.strict import items, known_fields, text, whole, within

_STREAMS = ("key", "value")
_KINDS = "fiub"


def save_pool(pool: SharedKVPool, folder: str | os.PathLike[str]) -> None:
    """Write the pool's manifest and codes into `folder`, which is made."""
    _save(Path(folder), "pool", pool.manifest.to_dict(), pool.layers)


def save_shell(shell: AgentShell, folder: str | os.PathLike[str]) -> None:
    """Write the shell's manifest and codes into `folder`, which is made."""
    _save(Path(folder), "shell", shell.manifest.to_dict(), shell.layers)


def open_pool(folder: str | os.PathLike[str], artifacts: ArtifactLoader | None = None) -> SharedKVPool:
    """The pool saved in `folder`.

    Raises StoreError when there is none, DamagedStoreError when manifest or codes are not what
    was written.
    """
    raw, data, where = _load(Path(folder), "pool")
    with _as_damage(where):
        manifest = PoolManifest.from_dict(raw["manifest"])
        layers = _layers(raw["layers"], data, manifest.shape, manifest.policy, "pool", manifest.build_seed, artifacts)
        pool = SharedKVPool(manifest, layers, artifacts)
        _check_digest("pool_id", manifest.pool_id, pool.digest())
    return pool


def open_shell(folder: str | os.PathLike[str], pool: SharedKVPool) -> AgentShell:
    """The shell saved in `folder`, which must be of `pool`. Raises as `open_pool`, InputError for another pool's."""
    raw, data, where = _load(Path(folder), "shell")
    with _as_damage(where):
        manifest = ShellManifest.from_dict(raw["manifest"])
    if manifest.pool_digest != pool.manifest.pool_id:
        raise InputError(f"{where}: digest mismatch: expected pool {manifest.pool_digest}, got {pool.manifest.pool_id}")
    with _as_damage(where):
        seed = manifest.materialize_seed
        layers = _layers(raw["layers"], data, pool.manifest.shape, pool.policy, "shell", seed, pool.artifacts)
        shell = AgentShell(manifest, layers)
        _check_digest("shell_digest", manifest.shell_digest, shell.digest())
    return shell


class _as_damage:
    """Turns whatever reading meets into DamagedStoreError naming the file."""

    def __init__(self, where: Path) -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, PolykvError) and not isinstance(error, StoreError):
            raise DamagedStoreError(f"{self._where} is damaged: {error}") from error
        if isinstance(error, DamagedStoreError):
            raise DamagedStoreError(f"{self._where} is damaged: {error}") from error


def _save(folder: Path, name: str, manifest: Mapping[str, Any], layers: Sequence[TierLayer]) -> None:
    blob = bytearray()
    described = [
        {
            "layer_index": layer.layer_index,
            "n_tokens": layer.n_tokens,
            "block_digest": layer.digest(),
            "key": [_described(codes, blob) for codes in layer.key_codes],
            "value": [_described(codes, blob) for codes in layer.value_codes],
        }
        for layer in layers
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.codes").write_bytes(blob)
        (folder / f"{name}.json").write_text(pretty_json({"manifest": manifest, "layers": described}), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{folder}: the {name} cannot be written: {error.strerror}") from error


def _described(codes: Codes, blob: bytearray) -> dict[str, Any]:
    """Append the arrays' bytes to `blob`; returns what the JSON says of each."""
    found = {}
    for array_name, array in codes.arrays.items():
        little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
        found[array_name] = {"dtype": little.dtype.str, "shape": list(array.shape), "offset": len(blob)}
        blob += little.tobytes()
    return found


def _load(folder: Path, name: str) -> tuple[dict[str, Any], bytes, Path]:
    where = folder / f"{name}.json"
    try:
        raw, data = where.read_bytes(), (folder / f"{name}.codes").read_bytes()
    except OSError as error:
        raise StoreError(f"{folder} holds no saved {name}: {error.filename}: {error.strerror}") from error
    with _as_damage(where):
        return known_fields(parse_json(raw, str(where)), where.name, ("manifest", "layers")), data, where


def _layers(
    raw: Any,
    data: bytes,
    shape: KvTensorShape,
    policy: CompressionPolicy,
    tier: str,
    seed: int,
    artifacts: ArtifactLoader | None,
) -> tuple[TierLayer, ...]:
    layers = []
    for index, item in enumerate(items(raw, "layers")):
        with within(f"layers[{index}]: "):
            found = known_fields(item, "a layer", ("layer_index", "n_tokens", "block_digest", *_STREAMS))
            n_tokens = whole(found["n_tokens"], "n_tokens", low=1)
            codes = [_head_codes(found[stream], stream, data, n_tokens, shape) for stream in _STREAMS]
            heads = range(shape.num_kv_heads)
            pairs = [tier_codecs(policy, tier, index, head, shape.head_dim, seed, artifacts) for head in heads]
            layer = TierLayer(index, n_tokens, tuple(k for k, _ in pairs), tuple(v for _, v in pairs), *codes)
            _check_digest("block_digest", text(found["block_digest"], "block_digest"), layer.digest())
            layers.append(layer)
    return tuple(layers)


def _head_codes(raw: Any, stream: str, data: bytes, n_tokens: int, shape: KvTensorShape) -> tuple[Codes, ...]:
    heads = items(raw, stream)
    if len(heads) != shape.num_kv_heads:
        raise InputError(f"{stream} has {len(heads)} heads, the manifest says {shape.num_kv_heads}")
    found = []
    for head, arrays in enumerate(heads):
        if not isinstance(arrays, Mapping):
            raise InputError(f"{stream}[{head}] must be a JSON object, got {type(arrays).__name__}")
        named = {name: _array(entry, f"{stream}[{head}].{name}", data) for name, entry in arrays.items()}
        found.append(Codes(n_tokens, shape.head_dim, named))
    return tuple(found)


def _array(raw: Any, place: str, data: bytes) -> np.ndarray:
    entry = known_fields(raw, place, ("dtype", "shape", "offset"))
    try:
        dtype = np.dtype(text(entry["dtype"], place))
    except TypeError as error:
        raise InputError(f"{place}: unknown dtype {entry['dtype']!r}") from error
    if dtype.kind not in _KINDS:
        raise InputError(f"{place}: dtype {dtype} is not a number's")
    sizes = tuple(whole(size, f"{place}: shape") for size in items(entry["shape"], place))
    offset, n_bytes = whole(entry["offset"], f"{place}: offset"), math.prod(sizes) * dtype.itemsize
    if offset + n_bytes > len(data):
        raise InputError(f"{place}: {n_bytes} bytes at offset {offset} end beyond the file's {len(data)}")
    return np.frombuffer(data, dtype, count=math.prod(sizes), offset=offset).reshape(sizes)


def _check_digest(name: str, stated: str, found: str) -> None:
    if stated != found:
        raise DamagedStoreError(f"{name} is stated as {stated}, found {found}")
