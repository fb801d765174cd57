"""What a run directory holds, read once: its state and every table that is there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polykv.errors import StoreError
from polykv.receipts import parse_json
from polykv.schemas import TABLES
from polykv.storage.results import read_rows
from polykv.storage.run import RunDirectory

RECEIPTS = ("gonogo", "certify")
Rows = tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class RunTables:
    """A run as the report reads it: `state` is run.json, `tables` maps the name of each table present to its rows,
    `receipts` the name of each whole-run receipt present (gonogo, certify) to its JSON. `certified_by`: another run
    whose certification belongs to this one (`polykv certify --out`)."""

    path: Path
    state: Mapping[str, Any]
    tables: Mapping[str, Rows]
    receipts: Mapping[str, Any]
    certified_by: RunTables | None = None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> RunTables:
        """Read a run. Raises StoreError where there is none, or one without any table yet."""
        run = RunDirectory.open(path)
        found = {
            name: tuple(read_rows(run.table_path(name), table))
            for name, table in TABLES.items()
            if run.table_path(name).is_file()
        }
        if not found:
            raise StoreError(
                f"{run.path}: this run is {run.status} and has no table yet; "
                "finish it with the command that started it, then ask again"
            )
        files = {name: run.path / f"{name}.json" for name in RECEIPTS}
        receipts = {name: parse_json(path.read_bytes(), str(path)) for name, path in files.items() if path.is_file()}
        return cls(run.path, run.state, found, receipts)

    @classmethod
    def certification(cls, path: str | os.PathLike[str]) -> RunTables:
        """Read a run for its certification. Raises StoreError where it has none."""
        run = cls.read(path)
        if not run.rows("certify"):
            raise StoreError(
                f"{run.path} holds no certification: it has no certify.parquet; "
                f"polykv certify --model MODEL --policy POLICY --out {path} makes one"
            )
        return run

    @property
    def certifications(self) -> tuple[RunTables, ...]:
        """The runs whose certification this one shows: itself, then `certified_by`."""
        own = (self,) if self.rows("certify") else ()
        return own if self.certified_by is None else (*own, self.certified_by)

    def rows(self, name: str) -> Rows:
        """A table's rows; none when the run has no such table."""
        return self.tables.get(name, ())

    @property
    def config(self) -> Mapping[str, Any]:
        return self.state["config"]

    @property
    def run_id(self) -> str:
        return self.state["run_id"]

    @property
    def status(self) -> str:
        return self.state["status"]

    @property
    def model_id(self) -> str:
        certified = self.receipts.get("certify", {}).get("model", {}).get("id", "the model")
        return str(self.config.get("model_id", certified))

    @property
    def gates(self) -> tuple[dict[str, Any], ...]:
        """The gates of the sweep as {metric, direction, limit}; none when the run is no sweep."""
        return tuple(self.config.get("sweep", {}).get("gates", ()))

    def limit(self, metric: str) -> float | None:
        """The limit of the gate on a metric; None when no gate is."""
        return next((gate["limit"] for gate in self.gates if gate["metric"] == metric), None)
