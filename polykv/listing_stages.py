"""What `polykv runs` tells: every run of a folder with its state and verdict, and what pruning frees."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polykv.errors import PolykvError
from polykv.receipts import parse_json
from polykv.schemas import CERTIFY, SELECTION
from polykv.stages import read_findings
from polykv.storage.results import read_rows
from polykv.storage.run_list import RunOnDisk, prunable, prune_parts, runs_in

# Best first: a run's verdict is that of its best policy.
_ORDER = ("pass", "inconclusive", "fail")


@dataclass(frozen=True)
class RunLine:
    """One run of a folder.

    `kind`: replay, gonogo or certify (None when run.json cannot be read). `verdict`: pass,
    inconclusive or fail of the best policy (go, no-go or inconclusive of a go/no-go); None without
    a table. `detail`: how many cells each policy holds, or what is wrong. Sizes in bytes.
    """

    name: str
    run_id: str | None
    kind: str | None
    status: str
    verdict: str | None
    detail: str
    model_id: str | None
    started_at: str | None
    n_bytes: int
    parts_bytes: int


@dataclass(frozen=True)
class Pruned:
    """What pruning one run freed (or would free), or why its parts are kept."""

    name: str
    n_bytes: int
    problem: str | None = None


def list_runs(folder: str | os.PathLike[str]) -> list[RunLine]:
    """The runs in a folder by name; one that is damaged is a line too. Raises InputError for no folder."""
    return [_line(run) for run in runs_in(folder)]


def prune_runs(folder: str | os.PathLike[str], dry_run: bool = False) -> list[Pruned]:
    """Delete the parts of every complete run in a folder; `dry_run` only says what that would free."""
    return [_prune(run, dry_run) for run in runs_in(folder) if prunable(run)]


def _prune(run: RunOnDisk, dry_run: bool) -> Pruned:
    if dry_run:
        return Pruned(run.path.name, run.parts_bytes)
    try:
        return Pruned(run.path.name, prune_parts(run.path))
    except PolykvError as error:
        return Pruned(run.path.name, 0, str(error))


def _line(run: RunOnDisk) -> RunLine:
    state = run.state or {}
    config = state.get("config", {})
    sessions = state.get("sessions") or [{}]
    verdict, detail = (None, run.problem or "") if run.state is None else _verdict(run.path)
    return RunLine(
        name=run.path.name,
        run_id=state.get("run_id"),
        kind=config.get("kind"),
        status=run.status,
        verdict=verdict,
        detail=detail,
        model_id=config.get("model_id"),
        started_at=sessions[-1].get("started_at"),
        n_bytes=run.n_bytes,
        parts_bytes=run.parts_bytes,
    )


def _verdict(path: Path) -> tuple[str | None, str]:
    """(verdict, detail) from the tables that are there; one that cannot be read is the detail."""
    try:
        if (path / f"{SELECTION.name}.parquet").is_file():
            found = read_findings(path)
            return found.verdict, ", ".join(f"{p.policy} {p.n_pass}/{p.n_cells}" for p in found.policies)
        if (path / f"{CERTIFY.name}.parquet").is_file():
            return _certified(read_rows(path / f"{CERTIFY.name}.parquet", CERTIFY, slice_kind="all"))
        if (path / "gonogo.json").is_file():
            overall = parse_json((path / "gonogo.json").read_bytes(), str(path / "gonogo.json"))
            counts = overall.get("verdicts", {}).items()
            return overall.get("verdict"), ", ".join(f"{count} {name}" for name, count in counts)
    except PolykvError as error:
        return None, str(error)
    return None, "no table yet"


def _certified(rows: Iterable[dict[str, Any]]) -> tuple[str | None, str]:
    whole = list(rows)
    known = [row["verdict"] for row in whole if row["verdict"] in _ORDER]
    told = ", ".join(f"{row['policy']} {100 * row['ppl_increase']:+.2f} % PPL" for row in whole)
    return min(known, key=_ORDER.index, default=None), told
