"""The units of work: a small picklable spec in, a part file (or an artifact) out.

A job reads one cell of one split, computes, writes its rows as one part into the run
directory, and returns the part's path. Running it twice writes the same file twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from polykv.errors import PolicyError, PolykvError
from polykv.execution.digests import CONTROL_EXPECTED
from polykv.execution.means import load_mean, save_mean
from polykv.execution.steps import STEPS, Steps
from polykv.rotation import Rotation, rotation_from_arrays
from polykv.schemas import CONTROLS, RESULTS, TableSchema
from polykv.storage.artifacts import load_artifact
from polykv.storage.parts import write_part


@dataclass(frozen=True)
class Place:
    """Where a job reads and writes, and which cell and split it is about."""

    store_url: str
    run_path: str
    run_id: str
    layer: int
    kv_head: int
    split: str
    steps: Steps = STEPS

    def read_cell(self) -> Any:
        """The CellData of this cell and split, every slab checked."""
        return self.steps.call("open_store", self.store_url).cell(self.layer, self.kv_head, self.split)

    def columns(self) -> dict[str, Any]:
        """The columns that say where a row comes from."""
        return {"run_id": self.run_id, "split": self.split, "layer": self.layer, "kv_head": self.kv_head}

    @property
    def stem(self) -> str:
        return f"L{self.layer:03d}-H{self.kv_head:02d}-{self.split}"


@dataclass(frozen=True)
class ReplayJob:
    """One cell × split × policy × some candidate_ks.

    `rows`: (row_kind, candidate_k, row digest) of each row to deliver; the sweep may return more
    (its window_only row, when another job of the same cell delivers that). `full_k`: the budget
    that covers every token. `mean_inputs`: what the keys' mean is fitted on, None when keys are
    not centred; `key_mean`: digest of the artifact with that mean, once it is fitted.
    """

    place: Place
    policy_name: str
    policy_digest: str
    policy: Mapping[str, Any]
    config: Mapping[str, Any]
    candidate_ks: tuple[int, ...]
    full_k: int
    rows: tuple[tuple[str, int, str], ...]
    mean_inputs: str | None = None
    key_mean: str | None = None
    table: ClassVar[TableSchema] = RESULTS

    @property
    def row_digests(self) -> tuple[str, ...]:
        return tuple(digest for _, _, digest in self.rows)

    def run(self) -> str:
        """Sweep, write the part, return its path."""
        steps = self.place.steps
        policy = steps.call("policy", dict(self.policy))
        config = steps.call("config", {**self.config, "candidate_ks": list(self.candidate_ks)})
        if self.mean_inputs is not None and self.key_mean is None:
            raise PolykvError(f"{self.place.stem}: the keys' mean of policy {self.policy_name!r} is not fitted yet")
        mean = None if self.key_mean is None else load_mean(self.place.run_path, self.key_mean)
        artifacts = partial(load_artifact, Path(self.place.run_path) / "artifacts")
        found = steps.call("sweep_cell", self.place.read_cell(), policy, config, mean, artifacts)
        by_identity = {(row["row_kind"], row["candidate_k"]): row for row in found}
        wanted = {(kind, candidate_k): digest for kind, candidate_k, digest in self.rows}
        rows = _with_digests(self.place, by_identity, wanted)
        stem = f"{self.place.stem}-{re.sub(r'[^A-Za-z0-9_.]+', '_', self.policy_name)[:40]}"
        return _write(self.place, stem, RESULTS, rows)

    def failed_rows(self, reason: str) -> list[dict[str, Any]]:
        """The rows this job owes, as rows that say why there are no figures."""
        policy = {"policy": self.policy_name, "policy_digest": self.policy_digest}
        return [
            _failed(RESULTS, reason)
            | self.place.columns()
            | policy
            | {"row_kind": kind, "candidate_k": k, "is_full": kind == "candidate" and k >= self.full_k, "row_digest": d}
            for kind, k, d in self.rows
        ]


@dataclass(frozen=True)
class ControlJob:
    """The controls of one cell × split; `rows`: (control, row digest)."""

    place: Place
    config: Mapping[str, Any]
    rows: tuple[tuple[str, str], ...]
    table: ClassVar[TableSchema] = CONTROLS

    @property
    def row_digests(self) -> tuple[str, ...]:
        return tuple(digest for _, digest in self.rows)

    def run(self) -> str:
        """Replay the controls, write the part, return its path."""
        config = self.place.steps.call("config", dict(self.config))
        found = self.place.steps.call("control_rows", self.place.read_cell(), config)
        rows = _with_digests(self.place, {row["control"]: row for row in found}, dict(self.rows))
        return _write(self.place, self.place.stem, CONTROLS, rows)

    def failed_rows(self, reason: str) -> list[dict[str, Any]]:
        """The rows this job owes, as rows that say why there are no figures."""
        return [
            _failed(CONTROLS, reason)
            | self.place.columns()
            | {"control": control, "expected": CONTROL_EXPECTED[control], "row_digest": digest}
            for control, digest in self.rows
        ]


@dataclass(frozen=True)
class MeanJob:
    """The mean key of one cell over `place.split` (calibrate), sinks left out.

    `inputs` names what it is fitted on. `rotation`: digest of the run's artifact that un-rotates
    keys first, None when they stay as they are.
    """

    place: Place
    sink_tokens: int
    inputs: str
    rotation: str | None = None

    def run(self) -> str:
        """Fit the mean, keep it as an artifact, return the artifact's digest."""
        data = self.place.read_cell()
        mean = self.place.steps.call("key_mean", data, self.sink_tokens, *self._rotations())
        return save_mean(self.place.run_path, self.inputs, mean)

    def _rotations(self) -> tuple[Rotation, ...]:
        """The layer's rotation, or nothing."""
        if self.rotation is None:
            return ()
        found = rotation_from_arrays(load_artifact(Path(self.place.run_path) / "artifacts", self.rotation))
        if self.place.layer not in found:
            raise PolicyError(f"rotation {self.rotation[:12]}… has no layer {self.place.layer}; it has {sorted(found)}")
        return (found[self.place.layer],)


Job = ReplayJob | ControlJob | MeanJob


def run_job(job: Job) -> str:
    """What every engine calls: run one job, return the path or digest of what it wrote."""
    return job.run()


def _with_digests(place: Place, found: Mapping[Any, Mapping[str, Any]], wanted: Mapping[Any, str]) -> list[dict]:
    missing = [identity for identity in wanted if identity not in found]
    if missing:
        raise PolykvError(f"the replay of {place.stem} gave no row for {missing[0]}; it gave {sorted(found)}")
    return [{**found[identity], **place.columns(), "row_digest": digest} for identity, digest in wanted.items()]


def _write(place: Place, stem: str, table: TableSchema, rows: Iterable[Mapping[str, Any]]) -> str:
    return str(write_part(Path(place.run_path) / "parts", stem, table, rows))


def _failed(table: TableSchema, reason: str) -> dict[str, Any]:
    return dict.fromkeys(table.column_names) | {"status": "failed", "reason": reason}
