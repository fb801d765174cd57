"""From a finished run to a policy file that an engine can load, with the evidence for every cell.

The file is a policy (`polykv_policy_v1`) like any other: `cells` holds each cell's candidate_k,
and what has not passed is kept exact. Beside it stands `evidence`, which readers of the policy
leave alone: per cell the verdict, its intervals, the reason, and the digest of its receipt.
"""

from __future__ import annotations

import csv
import difflib
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from polykv.errors import InputError
from polykv.policy import KEEP_ROTATION, CompressionPolicy
from polykv.receipts import parse_json, pretty_json
from polykv.replay.sweep_receipt import receipt_of_rows
from polykv.schemas import RESULTS, SELECTION
from polykv.storage.atomic import write_bytes
from polykv.storage.results import read_rows
from polykv.storage.run import RunDirectory
from polykv.types import Cell

OTHERWISE = ("exact", "full")
_INTERVALS = ("output_cosine", "output_relative_error")
_ENDS = ("mean", "low", "high")
_COLUMNS = (
    "policy", "layer", "kv_head", "verdict", "kept", "candidate_k", *(f"{n}_{e}" for n in _INTERVALS for e in _ENDS),
    "decode_reduction", "bytes_per_token", "reason", "receipt_digest",
)  # fmt: skip

Row = Mapping[str, Any]


@dataclass(frozen=True)
class ExportedPolicy:
    """A policy with `evidence`: {run_id, config_digest, model_id, gates, source_policy_digest, cells: {"layer/kv_head": …}}."""

    policy: CompressionPolicy
    evidence: Mapping[str, Any]

    def to_json(self) -> str:
        """The policy file as text."""
        return pretty_json({**self.policy.to_dict(), "evidence": self.evidence})

    def to_csv(self) -> str:
        """One line a cell; null is empty."""
        text = io.StringIO()
        writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        for key, cell in self.evidence["cells"].items():
            layer, _, head = key.partition("/")
            flat = {f"{name}_{end}": cell[name][end] for name in _INTERVALS for end in _ENDS}
            rest = {name: cell[name] for name in _COLUMNS if name in cell}
            writer.writerow({"policy": self.policy.name, "layer": layer, "kv_head": head, **flat, **rest})
        return text.getvalue()


def export_policy(
    run: str | Path, name: str | None = None, otherwise: str = "exact", folder: str | Path = "."
) -> ExportedPolicy:
    """What a run found about one of its policies, as a policy.

    A cell that passes gets its candidate_k ("full" where it covered everything seen: a longer
    context has more to see). Any other cell is kept in float32 (`otherwise` "exact"), or coded all
    the same and decoded in full ("full"). Artifacts' paths are relative to `folder`, where the file
    will stand. Raises InputError for an unknown policy, StoreError for a run without decisions.
    """
    if otherwise not in OTHERWISE:
        raise InputError(f"otherwise is {otherwise!r}; known: {', '.join(OTHERWISE)}")
    opened = RunDirectory.open(run)
    selection = read_rows(opened.existing_table(SELECTION.name), SELECTION)
    source = _chosen(opened, name, sorted({row["policy"] for row in selection}))
    decided = [row for row in selection if row["policy"] == source.name]
    results = read_rows(opened.existing_table(RESULTS.name), RESULTS, policy=source.name, split="confirm")
    receipts = _receipt_digests(opened, results)
    cells = {_key(row): _override(source, row, otherwise) for row in decided}
    evidence = {
        "run_id": opened.run_id,
        "config_digest": opened.config_digest,
        "model_id": opened.config.get("model_id"),
        "gates": opened.config["sweep"]["gates"],
        "source_policy_digest": source.digest(),
        "cells": {_key(row): _evidence(row, cells[_key(row)], otherwise, receipts) for row in decided},
    }
    policy = replace(source, cells=cells, artifacts=_artifacts(source, opened, Path(folder)))
    return ExportedPolicy(policy, evidence)


def write_export(exported: ExportedPolicy, path: str | Path, form: str) -> Path:
    """Write the file, whole or not at all; `form` json or csv."""
    target = Path(path)
    if not target.parent.is_dir() or target.is_dir():
        raise InputError(f"{target} cannot be written: it is a folder, or {target.parent} is none")
    return write_bytes(target, (exported.to_csv() if form == "csv" else exported.to_json()).encode())


def read_policy_file(text: str) -> tuple[CompressionPolicy, Mapping[str, Any] | None]:
    """A policy by name or .json file, and the evidence that stands in the file, if any."""
    policy = CompressionPolicy.resolve(text)
    raw = parse_json(Path(text).read_bytes(), text) if text.endswith(".json") else {}
    return policy, raw.get("evidence")


def policy_json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of `polykv_policy_v1`, evidence included."""
    text = resources.files("polykv").joinpath("policy_v1.schema.json").read_text(encoding="utf-8")
    return parse_json(text, "policy_v1.schema.json")


def _chosen(run: RunDirectory, name: str | None, decided: Sequence[str]) -> CompressionPolicy:
    if not decided:
        raise InputError(f"{run.path}: this run has decided nothing: its selection has no row")
    if name is None and len(decided) > 1:
        raise InputError(f"{run.path} holds the policies {', '.join(decided)}; choose one with --policy")
    wanted = name or decided[0]
    if wanted not in decided:
        near = difflib.get_close_matches(wanted, decided, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"{run.path} has no policy {wanted!r}{hint} (it has {', '.join(decided)})")
    return CompressionPolicy.from_dict(run.config["policies"][wanted])


def _override(source: CompressionPolicy, row: Row, otherwise: str) -> dict[str, Any]:
    """The cell's overrides: those the policy already had, and what the run adds."""
    had = dict(source.cells.get(_key(row), {}))
    if row["verdict"] == "pass" and row["candidate_k"] is not None:
        return had | {"candidate_k": "full" if row["is_full"] else row["candidate_k"]}
    if otherwise == "full":
        return had | {"candidate_k": "full"}
    exact = CompressionPolicy.exact()
    plain = {"pool": exact.pool, "shell": exact.shell, "center_keys": "off", "candidate_k": "full"}
    return plain if source.key_rotation == KEEP_ROTATION else plain | {"key_rotation": KEEP_ROTATION}


def _evidence(row: Row, override: Row, otherwise: str, receipts: Mapping[str, str]) -> dict[str, Any]:
    passes = row["verdict"] == "pass"
    reasons = [row["verdict_reason"]] if row["verdict_reason"] else []
    reasons += [f"{b['gate']} {'not finite' if b['value'] is None else format(b['value'], '.5g')} (limit {b['limit']:g})" for b in row["blockers"] or ()]  # fmt: skip
    return {
        "verdict": row["verdict"],
        "kept": "compressed" if passes or otherwise == "full" else "exact",
        "candidate_k": override["candidate_k"],
        **{name: {end: row[f"confirm_{name}_{end}"] for end in _ENDS} for name in _INTERVALS},
        "decode_reduction": row["decode_reduction"],
        "bytes_per_token": row["bytes_per_token"],
        "reason": "; ".join(reasons) or None,
        "receipt_digest": receipts.get(_key(row)),
    }


def _receipt_digests(run: RunDirectory, results: Sequence[Row]) -> dict[str, str]:
    """Body digest of each cell's receipt on confirm, as `polykv receipt show` states it; none for a cell whose rows all failed."""
    by_cell: dict[str, list[Row]] = {}
    for row in results:
        by_cell.setdefault(_key(row), []).append(row)
    model_id = str(run.config.get("model_id", ""))
    return {
        key: receipt_of_rows(rows, model_id, run.run_id, run.config_digest).body_digest()
        for key, rows in by_cell.items()
        if any(row["status"] == "ok" and row["row_kind"] == "candidate" for row in rows)
    }


def _artifacts(source: CompressionPolicy, run: RunDirectory, folder: Path) -> dict[str, str]:
    return {
        digest: Path(os.path.relpath(run.artifacts / f"{digest}.npz", folder.absolute())).as_posix()
        for digest in source.artifacts
    }


def _key(row: Row) -> str:
    return Cell(row["layer"], row["kv_head"]).key
