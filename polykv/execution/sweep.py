"""A whole replay: plan it, run what is missing, and leave its tables in the run directory.

    with RunDirectory.create_or_resume(path, replay_config(store, policies, config)) as run:
        summary = run_replay(store, policies, config, run, Engine.parse("local"))

A job that fails becomes rows that say why, and the next run of the same command repairs them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from polykv.errors import StorageFullError
from polykv.execution.engines import SERIAL, Engine, JobFailure, Session, open_session
from polykv.execution.jobs import ReplayJob, run_job
from polykv.execution.plan import Plan, Unit, plan_replay, rescan
from polykv.execution.steps import STEPS, Steps
from polykv.schemas import CONTROLS, RESULTS, SELECTION
from polykv.storage.atomic import TEMP_SUFFIX
from polykv.storage.parts import PartScan, compact_rows
from polykv.storage.results import amend, read_rows, write_table
from polykv.storage.run import RunDirectory

_LOST_PART = "DamagedStoreError: the part with this row was lost after its job; run the same command again"


class OnProgress(Protocol):
    """Called at the start and after each job, with counts of jobs."""

    def __call__(self, done: int, failed: int, total: int) -> None: ...


@dataclass(frozen=True)
class ReplaySummary:
    """What a replay did: counts of jobs and rows, seconds, and where its tables are.

    `failures`: the distinct reasons of failed rows, with how many rows each. `parts_set_aside`:
    damaged parts found, by their new names. Rows are those of results and controls together.
    """

    jobs_run: int
    jobs_failed: int
    rows_computed: int
    rows_reused: int
    rows_failed: int
    failures: Mapping[str, int]
    parts_set_aside: tuple[str, ...]
    notes: tuple[str, ...]
    seconds: float
    results: str
    controls: str
    selection: str


class Replay:
    """A planned replay: run its layers in any order or at once, then finish.

        replay = Replay.planned(store, policies, config, run)
        for layer in replay.layers:
            replay.run_layer(layer, session)
        summary = replay.finish(engine)

    Layers may run in several threads, each with a session of its own on one Dask client.
    """

    def __init__(self, run: RunDirectory, plan: Plan, steps: Steps, on_progress: OnProgress | None = None) -> None:
        self.plan = plan
        self.layers = tuple(sorted({unit.place.layer for unit in plan.units}))
        self._run = run
        self._steps = steps
        self._began = time.monotonic()
        self._tally = _Tally(len(plan.means) + len(plan.jobs), on_progress)
        self._reasons: dict[str, str] = {}

    @classmethod
    def planned(
        cls,
        store: Any,
        policies: Sequence[Any],
        config: Any,
        run: RunDirectory,
        ks_per_job: int | None = None,
        cells: Iterable[tuple[int, int]] | None = None,
        steps: Steps = STEPS,
        on_progress: OnProgress | None = None,
    ) -> Replay:
        """Plan what is missing from `run`; raises InputError (see `plan_replay`)."""
        return cls(run, plan_replay(store, policies, config, run, ks_per_job, cells, steps), steps, on_progress)

    def run_all(self, session: Session) -> None:
        """Run every job that is missing."""
        self._reasons |= _run_jobs(session, self.plan, self._tally)

    def run_layer(self, layer: int, session: Session) -> tuple[int, int]:
        """Run one layer's missing jobs; returns (jobs run, jobs failed)."""
        part = self.plan.of_layer(layer)
        tally = _Tally(len(part.means) + len(part.jobs), lambda done, failed, total: None, self._tally)
        self._reasons |= _run_jobs(session, part, tally)
        return tally.done, tally.failed

    def end(self, status: str) -> None:
        """End the run with a status and no tables, for a caller that is about to stop for good."""
        self._run.finish(status)

    def finish(self, engine: Engine) -> ReplaySummary:
        """Write the tables from the parts and note in run.json what was done and where."""
        plan, run = self.plan, self._run
        rows_failed, failures = _write_tables(run, plan, self._reasons, self._steps)
        summary = ReplaySummary(
            jobs_run=self._tally.done,
            jobs_failed=self._tally.failed,
            rows_computed=plan.n_rows - plan.n_held - rows_failed,
            rows_reused=plan.n_held,
            rows_failed=rows_failed,
            failures=failures,
            parts_set_aside=tuple(path.name for path in plan.set_aside),
            notes=plan.notes,
            seconds=time.monotonic() - self._began,
            results=str(run.table_path(RESULTS.name)),
            controls=str(run.table_path(CONTROLS.name)),
            selection=str(run.table_path(SELECTION.name)),
        )
        run.record("replay", {**asdict(summary), "engine": _described(engine)}, failed=rows_failed > 0)
        return summary


def run_replay(
    store: Any,
    policies: Sequence[Any],
    config: Any,
    run: RunDirectory,
    engine: Engine = SERIAL,
    ks_per_job: int | None = None,
    cells: Iterable[tuple[int, int]] | None = None,
    steps: Steps = STEPS,
    on_progress: OnProgress | None = None,
) -> ReplaySummary:
    """Replay `policies` over a CaptureStore into `run` (results, controls, selection).

    The tables are the same whatever the engine, its workers and `ks_per_job`. Raises InputError
    (see `plan_replay`), WorkerError when the workers cannot do the work, StorageFullError; what
    was finished before is kept in the run's parts.
    """
    replay = Replay.planned(store, policies, config, run, ks_per_job, cells, steps, on_progress)
    with open_session(engine) as session:
        replay.run_all(session)
    return replay.finish(engine)


class _Tally:
    """Counts finished jobs, tells the progress callback, and passes the count on to a `whole`."""

    def __init__(self, total: int, on_progress: OnProgress | None, whole: _Tally | None = None) -> None:
        self.done = self.failed = 0
        self._total = total
        self._tell = on_progress or (lambda done, failed, total: None)
        self._whole = whole
        self._lock = Lock()
        self._tell(0, 0, total)

    def count(self, failed: bool) -> None:
        with self._lock:
            self.done += 1
            self.failed += failed
            self._tell(self.done, self.failed, self._total)
        if self._whole is not None:
            self._whole.count(failed)


def _run_jobs(session: Session, plan: Plan, tally: _Tally) -> dict[str, str]:
    """Run means, then jobs; returns row digest → reason of every row that failed."""
    means: dict[str, Any] = dict(plan.known_means)
    for job, outcome in _outcomes(session, plan.means, tally):
        means[job.inputs] = outcome
    reasons: dict[str, str] = {}
    ready: list[Unit] = []
    for job in plan.jobs:
        mean = means[job.mean_inputs] if isinstance(job, ReplayJob) and job.mean_inputs is not None else None
        if isinstance(mean, JobFailure):
            reasons |= dict.fromkeys(job.row_digests, f"the keys' mean could not be fitted: {mean}")
            tally.count(failed=True)
        else:
            ready.append(replace(job, key_mean=mean) if mean is not None else job)
    for job, outcome in _outcomes(session, ready, tally):
        reason = str(outcome) if isinstance(outcome, JobFailure) else _unseen(Path(outcome))
        if reason is not None:
            reasons |= dict.fromkeys(job.row_digests, reason)
    return reasons


def _outcomes(session: Session, jobs: Sequence[Any], tally: _Tally) -> Iterator[tuple[Any, Any]]:
    """(job, outcome) as completed, counted; a full disk stops everything, for no job could write."""
    with closing(session.fan_out(run_job, jobs)) as stream:
        for job, outcome in stream:
            failed = isinstance(outcome, JobFailure)
            if failed and outcome.kind == StorageFullError.__name__:
                raise StorageFullError(outcome.text)
            tally.count(failed)
            yield job, outcome


def _unseen(part: Path) -> str | None:
    """Why a part that a worker wrote cannot be used here; None when it is there."""
    if part.is_file():
        return None
    return f"StoreError: a worker wrote {part.name} where this machine cannot see it; use a shared run directory"


def _write_tables(
    run: RunDirectory, plan: Plan, reasons: Mapping[str, str], steps: Steps
) -> tuple[int, dict[str, int]]:
    """Compact results and controls, choose, write the selection; returns failed rows and their reasons."""
    scans = rescan(run)
    failures: dict[str, int] = {}
    # a temporary name: no reader takes verdicts for final that the controls have not judged
    unjudged = run.path / f".{RESULTS.name}-unjudged{TEMP_SUFFIX}"
    for table in (RESULTS, CONTROLS):
        units = [unit for unit in plan.units if unit.table is table]
        failed = list(_failed_rows(units, scans[table.name], reasons))
        for row in failed:
            failures[row["reason"]] = failures.get(row["reason"], 0) + 1
        wanted = (digest for unit in units for digest in unit.row_digests)
        out = unjudged if table is RESULTS else run.table_path(table.name)
        compact_rows(scans[table.name], table, wanted, failed, run.run_id, out)
    _judge(unjudged, run, steps, sorted({unit.place.layer for unit in plan.units}))
    for table in (RESULTS, CONTROLS, SELECTION):
        run.record_output(run.table_path(table.name))
    return sum(failures.values()), failures


def _failed_rows(units: Iterable[Unit], scan: PartScan, reasons: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """A row with its reason for every planned row that no part holds: a cell is never absent."""
    for unit in units:
        if all(digest in scan.rows for digest in unit.row_digests):
            continue
        for row in unit.failed_rows(_LOST_PART):
            if row["row_digest"] not in scan.rows:
                yield row | {"reason": reasons.get(row["row_digest"], _LOST_PART)}


def _judge(unjudged: Path, run: RunDirectory, steps: Steps, layers: Sequence[int]) -> None:
    """Write the selection, and the results with what the controls make of their verdicts.

    Layer by layer, so that memory holds one layer's rows at a time. Parts keep the verdicts as
    measured: a control that is repaired later judges them anew.
    """
    controls = read_rows(run.table_path(CONTROLS.name), CONTROLS)
    chosen: list[dict[str, Any]] = []
    changed: dict[str, dict[str, Any]] = {}
    for layer in layers:
        rows = read_rows(unjudged, RESULTS, layer=layer)
        chosen.extend({**row, "run_id": run.run_id} for row in steps.call("selection_rows", rows, controls))
        for row, judged in zip(rows, steps.call("judged", rows, controls), strict=True):
            if judged["verdict"] != row["verdict"]:
                changed[row["row_digest"]] = {name: judged[name] for name in ("verdict", "verdict_reason")}
    write_table(run.table_path(SELECTION.name), SELECTION, chosen)
    amend(unjudged, run.table_path(RESULTS.name), RESULTS, "row_digest", changed)
    unjudged.unlink()


def _described(engine: Engine) -> dict[str, Any]:
    """The engine for run.json: kind, workers it would start, scheduler address."""
    workers = engine.local_workers if engine.kind == "local" else None
    return {"kind": engine.kind, "n_workers": workers, "address": engine.address}
