"""The stage `log`: a finished run told to an experiment tracker.

Nothing here prints; what was told, and where it is, comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polykv import __version__
from polykv.errors import InputError, PolicyError, StoreError
from polykv.policy import POLICY_SCHEMA, CompressionPolicy
from polykv.receipts import parse_json
from polykv.report.summary import policy_summaries
from polykv.report.tables import RunTables
from polykv.report_stages import REPORT_FILE, report_stage
from polykv.tracking import RunRecord, tracker_named
from polykv.tracking.record import certify_metrics, check_names, gonogo_metrics, policy_metrics, tracker_name

__all__ = ["FINISHED", "Logged", "RunRecord", "log_stage", "record_of"]

FINISHED = ("complete", "failed")
_SIGNS = {"min": ">=", "max": "<="}


@dataclass(frozen=True)
class Logged:
    """What was told and where it is: a URL or a path; None when it was a rehearsal."""

    tracker: str
    project: str
    record: RunRecord
    place: str | None


def log_stage(
    run: str | Path, to: str, project: str = "polykv", offline: bool = False, dry_run: bool = False
) -> Logged:
    """Tell the tracker `to` (mlflow, wandb) what `run` found, its report written first if it has none.

    Each call makes a run of its own there, tagged with ours. `dry_run` gathers all that would be
    told, needs no tracker's package and writes nothing. Raises InputError for an unknown tracker
    and a run that is not finished, MissingExtraError without the package, StoreError for a run
    without tables, TrackingError for what the tracker refuses.
    """
    tracker = tracker_named(to)
    if not project.strip():
        raise InputError("the project (experiment) needs a name")
    tables = RunTables.read(run)
    if tables.status not in FINISHED:
        raise InputError(
            f"{tables.path}: this run is {tables.status}, and only a finished run is logged; "
            "finish it with the command that started it"
        )
    record = record_of(tables)
    if dry_run:
        return Logged(to, project, record, None)
    tracker.load()
    if not record.files[REPORT_FILE].is_file():
        report_stage(run)
    return Logged(to, project, record, tracker.log(record, project, offline))


def record_of(tables: RunTables) -> RunRecord:
    """All that a tracker is told about a run; report.html is among the files whether it is written yet or not."""
    digests = _policy_digests(tables)
    check_names(digests)
    metrics = policy_metrics(policy_summaries(tables.rows("selection")))
    metrics |= certify_metrics(tables.rows("certify")) | gonogo_metrics(tables.rows("gonogo"))
    return RunRecord(tables.path.name, tables.run_id, _params(tables, digests), metrics, _files(tables))


def _policy_digests(tables: RunTables) -> dict[str, str]:
    """{policy: digest}; a sweep's own entry stands, a certified policy also has its budgets filled in."""
    rows = [*tables.rows("certify"), *tables.rows("selection")]
    return {row["policy"]: row["policy_digest"] for row in rows}


def _params(tables: RunTables, digests: Mapping[str, str]) -> dict[str, str]:
    config = tables.config
    gates = [f"{gate['metric']} {_SIGNS[gate['direction']]} {gate['limit']:g}" for gate in tables.gates]
    known: dict[str, Any] = {
        "run_id": tables.run_id,
        "config_digest": tables.state["config_digest"],
        "kind": config.get("kind"),
        "status": tables.status,
        "model_id": tables.model_id,
        "policies": ", ".join(digests),
        "gates": "; ".join(gates),
        "seed": config.get("sweep", {}).get("seed", config.get("config", {}).get("seed")),
        "polykv_version": __version__,
    }
    params = {name: str(value) for name, value in known.items() if value not in (None, "")}
    return params | {f"policy_digest.{tracker_name(name)}": digest for name, digest in digests.items()}


def _files(tables: RunTables) -> dict[str, Path]:
    """Tables, JSON (run.json, receipts, policies), what the policies need to be loaded, and the report."""
    names = [f"{name}.parquet" for name in tables.tables]
    names += [path.name for path in sorted(tables.path.glob("*.json"))]
    for name in [name for name in names if name.endswith(".json")]:
        names += _artifacts_of(tables.path / name)
    return {name: tables.path / name for name in dict.fromkeys([*names, REPORT_FILE])}


def _artifacts_of(file: Path) -> list[str]:
    """Where a policy file's artifacts lie, relative to the run; none for another JSON file."""
    raw = parse_json(file.read_bytes(), str(file))
    if not isinstance(raw, Mapping) or raw.get("schema_version") != POLICY_SCHEMA:
        return []
    try:
        places = list(CompressionPolicy.from_dict(raw).artifacts.values())
    except PolicyError as error:
        raise StoreError(f"{file}: {error}") from error
    inside = [place for place in places if not Path(place).is_absolute() and ".." not in Path(place).parts]
    lost = [place for place in inside if not (file.parent / place).is_file()]
    if lost:
        raise StoreError(f"{file} needs {lost[0]}, which is not in {file.parent}")
    return inside
