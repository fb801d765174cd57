"""The dictionary go/no-go over a capture: a job per layer and stream, its rows as one part.

Resume is by job digest: it covers what is read, the settings and NUMERICS_VERSION, and stands
in the part's name, so a finished job is found without knowing its rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from polykv.calibration import GonogoSettings, failed_rows, gonogo_cell, overall
from polykv.calibration.cells import ALL_HEADS
from polykv.errors import InputError, StorageFullError
from polykv.execution.engines import Engine, JobFailure, open_session
from polykv.execution.jobs import run_job
from polykv.execution.sweep import OnProgress
from polykv.receipts import NUMERICS_VERSION, digest_json, pretty_json
from polykv.schemas import GONOGO, TableSchema
from polykv.storage import CaptureStore
from polykv.storage.artifacts import save_artifact
from polykv.storage.atomic import write_bytes
from polykv.storage.parts import scan_parts, write_part
from polykv.storage.results import read_rows, write_table
from polykv.storage.run import RunDirectory
from polykv.types import STREAMS

_STEM_HEX_DIGITS = 16
SPLITS = ("calibrate", "confirm")


@dataclass(frozen=True)
class GonogoJob:
    """One stream of one layer: of all its heads together, or of one (`per_head`)."""

    store_url: str
    run_path: str
    run_id: str
    layer: int
    kv_heads: tuple[int, ...]
    stream: str
    per_head: bool
    settings: Mapping[str, Any]
    inputs: str
    table: ClassVar[TableSchema] = GONOGO

    @property
    def stem(self) -> str:
        heads = f"H{self.kv_heads[0]:02d}" if self.per_head else "all"
        return f"L{self.layer:03d}-{self.stream}-{heads}-{self.inputs[:_STEM_HEX_DIGITS]}"

    def run(self) -> str:
        """Learn, judge, keep the dictionaries and the rows; returns the part's path."""
        store = CaptureStore.open(self.store_url)
        calibrate, confirm = (
            [store.cell(self.layer, head, split, with_logits=False) for head in self.kv_heads] for split in SPLITS
        )
        found = gonogo_cell(calibrate, confirm, self.stream, settings_of(self.settings), self.per_head, self.run_id)
        for arrays in found.artifacts.values():
            save_artifact(Path(self.run_path) / "artifacts", arrays)
        return str(write_part(Path(self.run_path) / "parts", self.stem, GONOGO, found.rows))

    def failed_rows(self, reason: str) -> list[dict[str, Any]]:
        """The rows this job owes, as rows that say why there are no figures."""
        head = self.kv_heads[0] if self.per_head else ALL_HEADS
        place = {"run_id": self.run_id, "layer": self.layer, "stream": self.stream, "kv_head": head}
        return failed_rows(place, settings_of(self.settings), reason)


@dataclass(frozen=True)
class GonogoSummary:
    """What a go/no-go did: jobs, seconds, the run's receipt (see `calibration.overall`), its files."""

    jobs_run: int
    jobs_reused: int
    jobs_failed: int
    failures: Mapping[str, int]
    receipt: Mapping[str, Any]
    seconds: float
    table: str
    receipt_file: str


def settings_of(raw: Mapping[str, Any]) -> GonogoSettings:
    """GonogoSettings from plain JSON."""
    grid = tuple(tuple(point) for point in raw["grid"])
    return GonogoSettings(**{**raw, "grid": grid, "coefficients": tuple(raw["coefficients"])})


def gonogo_config(store: Any, settings: GonogoSettings, layers: Sequence[int] | None, per_head: bool) -> dict[str, Any]:
    """The configuration of a go/no-go's run directory."""
    chosen = chosen_layers(store, layers)
    return {
        "kind": "gonogo",
        "store": store.digest,
        "gonogo": settings.to_dict(),
        "layers": chosen,
        "n_kv_heads": {str(layer): store.meta.layer(layer).n_kv_heads for layer in chosen},
        "per_head": per_head,
    }


def chosen_layers(store: Any, layers: Sequence[int] | None) -> list[int]:
    """The layers to judge, ascending; raises InputError naming one the capture lacks."""
    known = [spec.layer for spec in store.meta.layers]
    for layer in layers or ():
        store.meta.layer(layer)
    return sorted(set(known if layers is None else layers))


def plan_gonogo(
    store: Any, settings: GonogoSettings, run: RunDirectory, layers: Sequence[int] | None = None, per_head: bool = False
) -> list[GonogoJob]:
    """Every job of the go/no-go, done or not. Raises InputError for a store without the splits it needs."""
    for split, why in {"calibrate": "to learn dictionaries", "confirm": "to judge them"}.items():
        if not store.meta.passages(split):
            raise InputError(f"{store.url} has no passage of split {split!r}, needed {why}; capture more passages")
    url = store.url if "://" in store.url else str(Path(store.url).absolute())
    jobs = []
    for layer in chosen_layers(store, layers):
        heads = tuple(range(store.meta.layer(layer).n_kv_heads))
        slabs = {split: {h: store.cell_digests(layer, h, split, False) for h in heads} for split in SPLITS}
        for stream in STREAMS:
            for group in [(h,) for h in heads] if per_head else [heads]:
                read = [slabs[split][h] for split in SPLITS for h in group]
                inputs = digest_json([layer, group, stream, per_head, settings.to_dict(), read, GONOGO.version, NUMERICS_VERSION])  # fmt: skip
                jobs.append(
                    GonogoJob(
                        url, str(run.path), run.run_id, layer, group, stream, per_head, settings.to_dict(), inputs
                    )
                )
    return jobs


def run_gonogo(
    store: Any,
    settings: GonogoSettings,
    run: RunDirectory,
    engine: Engine,
    layers: Sequence[int] | None = None,
    per_head: bool = False,
    on_progress: OnProgress | None = None,
) -> GonogoSummary:
    """Judge every (layer, stream) into `run`: gonogo.parquet, gonogo.json, dictionaries in artifacts/.

    Only jobs without a sound part are run; a failed one is rows that say why, and the next run
    of the same command repairs it. The table is the same whatever the engine.
    """
    began = time.monotonic()
    jobs = plan_gonogo(store, settings, run, layers, per_head)
    held = _parts_by_stem(run)
    missing = [job for job in jobs if job.stem not in held]
    tell = on_progress or (lambda done, failed, total: None)
    tell(0, 0, len(missing))
    reasons: dict[str, str] = {}
    with open_session(engine) as session:
        for done, (job, outcome) in enumerate(session.fan_out(run_job, missing), start=1):
            if isinstance(outcome, JobFailure):
                if outcome.kind == StorageFullError.__name__:
                    raise StorageFullError(outcome.text)
                reasons[job.stem] = str(outcome)
            tell(done, len(reasons), len(missing))
    receipt = _write(run, jobs, reasons, settings)
    failures = {text: list(reasons.values()).count(text) for text in reasons.values()}
    table, receipt_file = run.table_path(GONOGO.name), run.path / "gonogo.json"
    counts = (len(missing) - len(reasons), len(jobs) - len(missing), len(reasons))
    summary = GonogoSummary(*counts, failures, receipt, time.monotonic() - began, str(table), str(receipt_file))
    run.record("gonogo", {"jobs_run": counts[0], "jobs_reused": counts[1], "failures": failures}, failed=bool(reasons))
    return summary


def _parts_by_stem(run: RunDirectory) -> dict[str, Path]:
    """Sound parts of the table by their job's stem; damaged ones are set aside."""
    paths = sorted(set(scan_parts(run.parts, GONOGO).rows.values()))
    return {path.stem.removeprefix(f"{GONOGO.name}-").rpartition("-")[0]: path for path in paths}


def _write(
    run: RunDirectory, jobs: Iterable[GonogoJob], reasons: Mapping[str, str], settings: GonogoSettings
) -> dict[str, Any]:
    held = _parts_by_stem(run)
    rows: list[dict[str, Any]] = []
    for job in jobs:
        if job.stem in held:
            rows += [{**row, "run_id": run.run_id} for row in read_rows(held[job.stem], GONOGO)]
        else:
            rows += job.failed_rows(reasons.get(job.stem, "its part was lost; run the same command again"))
    write_table(run.table_path(GONOGO.name), GONOGO, rows)
    receipt = overall(rows, settings)
    write_bytes(run.path / "gonogo.json", pretty_json(receipt).encode())
    for path in (run.table_path(GONOGO.name), run.path / "gonogo.json"):
        run.record_output(path)
    return receipt
