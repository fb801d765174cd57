"""A compression policy: which codec keeps which part of the cache, as one JSON object.

Schema `polykv_policy_v1` (read by every command, written by the search):

    {"schema_version": "polykv_policy_v1", "name": "two_tier", "seed": 42,
     "sink_tokens": 4, "recent_window": 32, "center_keys": "calibrate_mean",
     "pool":  {"key": {"id": "fib_k4_n32", …}, "value": {…}},
     "shell": {"key": {"id": "turbo_8bit", …}, "value": {…}},
     "key_rotation": "keep", "candidate_k": null, "unselected_values": "drop",
     "cells": {"11/2": {"candidate_k": 64}}, "artifacts": {}}

A codec is {"id": …, **arguments}; `head_dim` and `seed` are filled in when it is built: the
pool's codecs take the policy's seed, the shell's that seed + 10,000 (seed document 003).
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from polykv.codecs.base import Codec
from polykv.codecs.registry import build_codec
from polykv.errors import InputError, PolicyError
from polykv.receipts import digest_json, parse_json, pretty_json, to_plain
from polykv.strict import within
from polykv.types import STREAMS, TIERS, Cell

POLICY_SCHEMA = "polykv_policy_v1"
CENTERINGS = ("off", "calibrate_mean")
KEEP_ROTATION = "keep"
DROP_UNSELECTED = "drop"
MEAN_UNSELECTED = "mean"
UNSELECTED_VALUES = (DROP_UNSELECTED, MEAN_UNSELECTED)
SHELL_SEED_OFFSET = 10_000
_SEED_LIMIT = 2**64
_DIGEST = re.compile("[0-9a-f]{64}")
# as `Cell.key` spells it: with a leading zero an override would never be found
_CELL_KEY = re.compile("(0|[1-9][0-9]*)/(0|[1-9][0-9]*)")
_CELL_FIELDS = (
    "sink_tokens", "recent_window", "center_keys", "key_rotation", "pool", "shell", "candidate_k", "unselected_values"
)  # fmt: skip
# Fields younger than the schema, left out of the JSON at their old meaning: policies from before keep their digests
_LATER_FIELDS = {"key_rotation": KEEP_ROTATION, "unselected_values": DROP_UNSELECTED}

_FIB_REFERENCE = {"id": "fib_k4_n32", "query_mode": "gram", "zero_vectors": "refuse"}
_FIB_MENDED = {"id": "fib_k4_n32", "query_mode": "asymmetric", "zero_vectors": "encode"}
_TURBO_REFERENCE = {
    "id": "turbo_8bit",
    "bits": 8,
    "qjl": "unit_norm",
    "radii": "float32",
    "angle_point": "lower_edge",
}
_TURBO_MENDED = {"id": "turbo_8bit", "bits": 8, "qjl": "off", "radii": "log_u8", "angle_point": "centre"}
_EXACT = {"id": "exact_f32_fallback"}
_KIVI = {"id": "uniform", "mode": "asymmetric", "group_tokens": 32}
_INT8 = {"id": "uniform", "bits": 8, "mode": "symmetric", "axis": "vector"}


def _both(codec: Mapping[str, Any]) -> dict[str, Any]:
    return {"key": dict(codec), "value": dict(codec)}


@dataclass(frozen=True)
class CompressionPolicy:
    """How every cell of a model keeps its cache.

    `sink_tokens` first tokens and the `recent_window` newest (the query's own token counted)
    stay exact and are always attended. `center_keys="calibrate_mean"` subtracts each cell's
    mean key, fitted on the split calibrate, before keys are coded (a constant added to every
    key cancels in the softmax). `key_rotation`: "keep" codes keys as attention sees them; the
    digest of an artifact with the model's rotation (`polykv.rotation`) codes them before RoPE, and
    mean keys are then those of un-rotated keys. `candidate_k`: decoded values per query, "full",
    or None when a sweep is to find it. `unselected_values`: what the candidates beyond candidate_k
    leave to the output. "drop": nothing, the softmax runs over the tokens that are attended. "mean": the
    softmax runs over all the query sees, and the weight of the candidates that were not selected goes to
    the mean of the decoded values of all its candidates (Ribar et al. 2024, "SparQ Attention"), one
    vector a cell that a cache keeps up. `cells` overrides any of these for single cells.
    """

    name: str
    seed: int = 42
    sink_tokens: int = 0
    recent_window: int = 0
    center_keys: str = "off"
    pool: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: _both(_EXACT))
    shell: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: _both(_EXACT))
    candidate_k: int | str | None = None
    cells: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    artifacts: Mapping[str, str] = field(default_factory=dict)
    key_rotation: str = KEEP_ROTATION
    unselected_values: str = DROP_UNSELECTED

    def __post_init__(self) -> None:
        check_policy_name(self.name)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < _SEED_LIMIT:
            raise PolicyError(f"policy {self.name!r}: seed is {self.seed!r}, must be a whole number in [0, 2^64)")
        for name in ("sink_tokens", "recent_window"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise PolicyError(f"policy {self.name!r}: {name} is {value!r}, must be a whole number ≥ 0")
        for name, known in {"center_keys": CENTERINGS, "unselected_values": UNSELECTED_VALUES}.items():
            if getattr(self, name) not in known:
                raise PolicyError(f"policy {self.name!r}: {name} is {getattr(self, name)!r}; known: {', '.join(known)}")
        _check_rotation(self.key_rotation, self.name)
        _check_candidate_k(self.candidate_k, f"policy {self.name!r}")
        for tier in TIERS:
            _check_tier(getattr(self, tier), tier, self.name)
        for name in ("cells", "artifacts"):
            if not isinstance(getattr(self, name), Mapping):
                raise PolicyError(f"policy {self.name!r}: {name} must be an object, got {getattr(self, name)!r}")
        for digest, path in self.artifacts.items():
            if not isinstance(path, str):
                raise PolicyError(f"policy {self.name!r}: artifacts[{digest!r}] is {path!r}, must be a relative path")
        for key, override in self.cells.items():
            _check_override(key, override, self.name)
            replace(self, cells={}, **override)

    @property
    def has_exact_tokens(self) -> bool:
        """Whether sinks or a recent window stay exact."""
        return self.sink_tokens > 0 or self.recent_window > 0

    def for_cell(self, layer: int, kv_head: int) -> CompressionPolicy:
        """The policy as it stands for one cell: overrides applied, `cells` empty."""
        override = self.cells.get(Cell(layer, kv_head).key, {})
        return replace(self, cells={}, **override)

    def tier_seed(self, tier: str) -> int:
        """Seed of a tier's codecs, modulo 2^64."""
        return (self.seed + (SHELL_SEED_OFFSET if tier == "shell" else 0)) % _SEED_LIMIT

    def codec(
        self,
        tier: str,
        stream: str,
        layer: int,
        kv_head: int,
        head_dim: int,
        artifacts: Callable[[str], Mapping[str, np.ndarray]] | None = None,
    ) -> Codec:
        """The codec of one tier ("pool", "shell") and stream ("key", "value") of one cell."""
        if tier not in TIERS or stream not in STREAMS:
            raise InputError(f"no codec for {tier!r}/{stream!r}; tiers: {TIERS}, streams: {STREAMS}")
        here = self.for_cell(layer, kv_head)
        return build_codec(getattr(here, tier)[stream], head_dim, self.tier_seed(tier), artifacts)

    def pool_codec(self, head_dim: int, seed: int) -> Codec:
        """The pool's key codec at an explicit seed (the seed's short form: one codec for K and V)."""
        return build_codec(self.pool["key"], head_dim, seed)

    def shell_codec(self, head_dim: int, seed: int) -> Codec:
        """The shell's key codec at an explicit seed."""
        return build_codec(self.shell["key"], head_dim, seed)

    def to_dict(self) -> dict[str, Any]:
        """The policy as `polykv_policy_v1` JSON; key_rotation "keep" and unselected_values "drop" are left out."""
        plain = {f.name: to_plain(getattr(self, f.name)) for f in fields(self)}
        old = [name for name, meant in _LATER_FIELDS.items() if plain[name] == meant]
        return {"schema_version": POLICY_SCHEMA, **{name: v for name, v in plain.items() if name not in old}}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> CompressionPolicy:
        """Read `polykv_policy_v1`; unknown keys and other versions are refused by name."""
        if not isinstance(raw, Mapping):
            raise PolicyError(f"a policy is a JSON object, got {type(raw).__name__}")
        found = dict(raw)
        version = found.pop("schema_version", None)
        if version != POLICY_SCHEMA:
            raise PolicyError(f"policy schema_version is {version!r}, this release reads {POLICY_SCHEMA!r}")
        evidence = found.pop("evidence", None)  # what an exported policy rests on; no part of what it is
        if evidence is not None and not (isinstance(evidence, Mapping) and isinstance(evidence.get("cells"), Mapping)):
            raise PolicyError("a policy's evidence must be an object with the object 'cells'")
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(found) - known)
        if unknown:
            raise PolicyError(f"a policy has no field {unknown[0]!r}; it has {', '.join(sorted(known))}")
        if "name" not in found:
            raise PolicyError("a policy needs a name")
        for tier in TIERS:
            if tier not in found:
                raise PolicyError(f"policy {found['name']!r} names no codecs for its {tier}: nothing is guessed")
        return cls(**found)

    def digest(self) -> str:
        """The policy's identity: blake3 of its canonical JSON."""
        return digest_json(self.to_dict())

    def save(self, path: str | Path) -> None:
        """Write the policy as JSON."""
        Path(path).write_text(pretty_json(self.to_dict()), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> CompressionPolicy:
        """Read a policy file."""
        try:
            text = Path(path).read_bytes()
        except OSError as error:
            raise PolicyError(f"cannot read policy file {path}: {error.strerror}") from error
        with within(f"policy file {path}: "):
            return cls.from_dict(parse_json(text, "it"))

    @classmethod
    def reference(cls, seed: int = 42) -> CompressionPolicy:
        """The Rust system as it stands, its mistakes included (golden files show it bit for bit)."""
        return cls("reference", seed, pool=_both(_FIB_REFERENCE), shell=_both(_TURBO_REFERENCE))

    @classmethod
    def two_tier(cls, seed: int = 42) -> CompressionPolicy:
        """The same two tiers, mended: asymmetric scores, bin centres, log-u8 radii, exact sinks and window."""
        return cls(
            "two_tier",
            seed,
            sink_tokens=4,
            recent_window=32,
            center_keys="calibrate_mean",
            pool=_both(_FIB_MENDED),
            shell=_both(_TURBO_MENDED),
        )

    @classmethod
    def int8(cls, seed: int = 42) -> CompressionPolicy:
        """8 bits per value, one scale per vector, in both tiers."""
        return cls("int8", seed, pool=_both(_INT8), shell=_both(_INT8))

    @classmethod
    def exact(cls, seed: int = 42) -> CompressionPolicy:
        """float32 in both tiers: what a candidate_k alone costs."""
        return cls("exact", seed)

    @classmethod
    def kivi(cls, bits: int = 4, seed: int = 42) -> CompressionPolicy:
        """KIVI-like (Liu et al. 2024): keys per channel of 32 tokens, values per vector, window and sinks exact."""
        tier = {"key": _KIVI | {"bits": bits, "axis": "channel"}, "value": _KIVI | {"bits": bits, "axis": "vector"}}
        return cls(f"kivi{bits}", seed, sink_tokens=4, recent_window=32, pool=tier, shell=tier)

    @classmethod
    def turboquant(cls, bits: int = 4, seed: int = 42) -> CompressionPolicy:
        """TurboQuant-like (Zandieh et al. 2025): random rotation, Lloyd-Max levels, window and sinks exact."""
        tier = _both({"id": "rotated_scalar", "bits": bits})
        return cls(f"turboquant{bits}", seed, sink_tokens=4, recent_window=32, pool=tier, shell=tier)

    @classmethod
    def named(cls, name: str) -> CompressionPolicy:
        """One of the named policies; an unknown name is refused with the nearest one."""
        if name in NAMED_POLICIES:
            family, bits = name.rstrip("234"), name[-1]
            return getattr(cls, name)() if family == name else getattr(cls, family)(int(bits))
        near = difflib.get_close_matches(name, NAMED_POLICIES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise PolicyError(
            f"unknown policy {name!r}{hint} (named policies: {', '.join(NAMED_POLICIES)}; or a .json file)"
        )

    @classmethod
    def resolve(cls, text: str) -> CompressionPolicy:
        """A named policy, or the policy in the file whose name ends in .json."""
        if text.endswith(".json"):
            return cls.load(text)
        if text not in NAMED_POLICIES and ("/" in text or os.path.isfile(text)):
            raise PolicyError(f"{text!r} is no policy: the name of a policy file ends in .json")
        return cls.named(text)


NAMED_POLICIES = (
    "two_tier",
    "int8",
    "reference",
    "exact",
    *(f"{family}{bits}" for family in ("kivi", "turboquant") for bits in (4, 3, 2)),
)
Policy = CompressionPolicy


def _check_candidate_k(value: int | str | None, where: str) -> None:
    if value is None or value == "full":
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PolicyError(f'{where}: candidate_k is {value!r}, must be a whole number ≥ 1, "full" or null')


def check_policy_name(name: str) -> None:
    """Raises PolicyError for a name that no policy can have."""
    if not isinstance(name, str) or not name.strip():
        raise PolicyError("a policy needs a name")
    if not name.isprintable():
        raise PolicyError(f"policy name {name!r} has characters that cannot be printed")


def _check_rotation(value: Any, policy: str) -> None:
    if value != KEEP_ROTATION and not (isinstance(value, str) and _DIGEST.fullmatch(value)):
        raise PolicyError(
            f'policy {policy!r}: key_rotation is {value!r}, must be "{KEEP_ROTATION}" or the digest (64 hex digits) of '
            "an artifact with the rotation"
        )


def _check_tier(tier: Any, name: str, policy: str) -> None:
    if not isinstance(tier, Mapping) or sorted(tier) != sorted(STREAMS):
        got = sorted(tier) if isinstance(tier, Mapping) else type(tier).__name__
        raise PolicyError(f"policy {policy!r}: {name} needs exactly the codecs 'key' and 'value', got {got}")
    for stream, codec in tier.items():
        if not isinstance(codec, Mapping) or "id" not in codec:
            raise PolicyError(f'policy {policy!r}: {name}.{stream} must be {{"id": …, arguments}}, got {codec!r}')


def _check_override(key: str, override: Any, policy: str) -> None:
    if not _CELL_KEY.fullmatch(key):
        raise PolicyError(f'policy {policy!r}: cells has the key {key!r}; keys are "layer/kv_head", for example "11/2"')
    if not isinstance(override, Mapping):
        raise PolicyError(f"policy {policy!r}: cells[{key!r}] must be an object, got {type(override).__name__}")
    unknown = sorted(set(override) - set(_CELL_FIELDS))
    if unknown:
        raise PolicyError(
            f"policy {policy!r}: cells[{key!r}] cannot override {unknown[0]!r}; it can {', '.join(_CELL_FIELDS)}"
        )
    if "candidate_k" in override:
        _check_candidate_k(override["candidate_k"], f"policy {policy!r}, cell {key}")
    for tier in TIERS:
        if tier in override:
            _check_tier(override[tier], tier, policy)
