"""Captured fixtures: queries with the keys and values they saw, as the seed's JSON, both ways.

Reading is strict: every number is finite and fits float32, or is refused with its place
("queries[3].keys[2][5] is inf"); an unknown key is refused by name. `schema_version` is
kept and not judged, as in the seed. Two keys go beyond the seed, and its reader ignores them:
`softmax_scale`, which multiplies q·k (1.0 when absent), and `note`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from polykv.errors import InputError
from polykv.receipts import digest_array, digest_json, parse_json
from polykv.strict import SEED_LIMIT, items, known_fields, number, rows, text, vector, whole, within

FIXTURE_SCHEMA = "poly_kv_captured_replay_fixture_v1"
Rows = np.ndarray | tuple[np.ndarray, ...]


@dataclass(frozen=True, eq=False)
class ModelReplayQuery:
    """One query [head_dim] float32 of a model-shaped replay, and its synthetic label."""

    query: np.ndarray
    label_token: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "query", vector(self.query, "query"))
        object.__setattr__(self, "label_token", whole(self.label_token, "label_token"))

    def to_dict(self) -> dict[str, Any]:
        return {"query": self.query.tolist(), "label_token": self.label_token}

    @classmethod
    def from_dict(cls, raw: Any) -> ModelReplayQuery:
        return cls(**known_fields(raw, "a query", [item.name for item in fields(cls)]))


@dataclass(frozen=True, eq=False)
class CapturedReplayQuery:
    """One query and what it saw, float32.

    query [head_dim]; keys, values [token, head_dim]; exact_attention_output [head_dim];
    exact_logits [label]; label_token indexes the logits. Rows of unequal length stay a
    tuple of arrays until the replay refuses them, in the seed's order of checks.
    """

    query: np.ndarray
    keys: Rows
    values: Rows
    exact_attention_output: np.ndarray
    exact_logits: np.ndarray
    label_token: int

    def __post_init__(self) -> None:
        for name in ("query", "exact_attention_output", "exact_logits"):
            object.__setattr__(self, name, vector(getattr(self, name), name))
        for name in ("keys", "values"):
            object.__setattr__(self, name, rows(getattr(self, name), name))
        object.__setattr__(self, "label_token", whole(self.label_token, "label_token"))

    def to_dict(self) -> dict[str, Any]:
        return {item.name: _listed(getattr(self, item.name)) for item in fields(self)}

    @classmethod
    def from_dict(cls, raw: Any) -> CapturedReplayQuery:
        return cls(**known_fields(raw, "a query", [item.name for item in fields(cls)]))


@dataclass(frozen=True, eq=False)
class CapturedReplayFixture:
    """Captured queries of one head, and the projection [label, head_dim] float32 from its output to logits.

    The first `shared_tokens` rows of every query are the pool, the others the shell.
    """

    model_id: str
    head_dim: int
    shared_tokens: int
    seed: int
    output_projection: Rows
    queries: tuple[CapturedReplayQuery, ...]
    schema_version: str = FIXTURE_SCHEMA
    softmax_scale: float | None = None
    note: str | None = field(default=None)

    def __post_init__(self) -> None:
        for name in ("model_id", "schema_version"):
            text(getattr(self, name), name)
        for name in ("head_dim", "shared_tokens"):
            object.__setattr__(self, name, whole(getattr(self, name), name))
        object.__setattr__(self, "seed", whole(self.seed, "seed", limit=SEED_LIMIT))
        object.__setattr__(self, "output_projection", rows(self.output_projection, "output_projection"))
        object.__setattr__(self, "queries", tuple(self.queries))
        if self.note is not None:
            text(self.note, "note")
        if self.softmax_scale is not None:
            object.__setattr__(self, "softmax_scale", _scale(self.softmax_scale))

    @property
    def scale(self) -> float:
        """What q·k is multiplied by: softmax_scale, or 1.0."""
        return 1.0 if self.softmax_scale is None else self.softmax_scale

    def to_dict(self) -> dict[str, Any]:
        """The seed's JSON; `softmax_scale` and `note` only where there are any."""
        found = {"schema_version": self.schema_version}
        found |= {item.name: _listed(getattr(self, item.name)) for item in fields(self)}
        found["queries"] = [query.to_dict() for query in self.queries]
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def from_dict(cls, raw: Any) -> CapturedReplayFixture:
        names = [item.name for item in fields(cls)]
        extra = ("softmax_scale", "note")
        found = known_fields(raw, "a fixture", [name for name in names if name not in extra], extra)
        found["queries"] = _queries(found["queries"], CapturedReplayQuery)
        return cls(**found)

    def digest(self) -> str:
        """blake3 over the scalars and the float32 bytes of every array."""
        arrays = {
            f"queries[{i}].{name}": digest_array(getattr(query, name))
            for i, query in enumerate(self.queries)
            for name in ("query", "keys", "values", "exact_attention_output", "exact_logits")
        }
        scalars = {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if item.name not in ("queries", "output_projection", "note")
        }
        labels = [query.label_token for query in self.queries]
        projection = {"shape": list(self.output_projection.shape), "bytes": digest_array(self.output_projection)}
        return digest_json({**scalars, "labels": labels, "arrays": arrays, "output_projection": projection})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fixture as compact JSON."""
        data = json.dumps(self.to_dict(), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        try:
            Path(path).write_text(data + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path}: the fixture cannot be written: {error.strerror}") from error


def read_fixture(path: str | os.PathLike[str]) -> tuple[CapturedReplayFixture, Mapping[str, Any] | None]:
    """A fixture file, or one that wraps it as {"fixture": …, "config": …}; returns (fixture, the raw config or None)."""
    raw = read_json(path)
    if isinstance(raw, Mapping) and "fixture" in raw:
        with within(f"{path}: "):
            found = known_fields(raw, "a fixture file", ("fixture",), ("config",))
            return CapturedReplayFixture.from_dict(found["fixture"]), found.get("config")
    with within(f"{path}: "):
        return CapturedReplayFixture.from_dict(raw), None


def read_json(path: str | os.PathLike[str]) -> Any:
    """The strictly parsed JSON of a file."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    return parse_json(data, str(path))


def model_queries(raw: Sequence[Any]) -> tuple[ModelReplayQuery, ...]:
    """A JSON array of model-replay queries; a fault is named with its place."""
    return _queries(raw, ModelReplayQuery)


def _queries(raw: Any, kind: type[Any]) -> tuple[Any, ...]:
    found = []
    for i, item in enumerate(items(raw, "queries")):
        with within(f"queries[{i}]."):
            found.append(item if isinstance(item, kind) else kind.from_dict(item))
    return tuple(found)


def _scale(value: Any) -> float:
    scale = number(value, "softmax_scale")
    with np.errstate(over="ignore", under="ignore"):
        single = np.float32(scale)
    if not 0 < single < np.inf:
        raise InputError(f"softmax_scale is {scale}, must be above 0 and within float32")
    return scale


def _listed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return (
        [row.tolist() for row in value]
        if isinstance(value, tuple) and value and isinstance(value[0], np.ndarray)
        else value
    )
