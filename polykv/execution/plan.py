"""What a replay has to do, minus what the run directory already holds.

A plan is data, made from the store's seal and the parts' row digests alone: no slab is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polykv.errors import InputError
from polykv.execution.digests import CONTROL_EXPECTED, RowInputs, mean_inputs, row_digest, slabs_digest
from polykv.execution.jobs import ControlJob, MeanJob, Place, ReplayJob
from polykv.execution.means import known_mean
from polykv.execution.steps import STEPS, Steps
from polykv.policy import KEEP_ROTATION
from polykv.schemas import CONTROLS, RESULTS
from polykv.storage.parts import PartScan, scan_parts
from polykv.storage.run import RunDirectory
from polykv.types import Cell

SPLITS = ("select", "confirm")
Unit = ReplayJob | ControlJob


@dataclass(frozen=True)
class Plan:
    """`units`: one uncut job per cell × split × policy (and one for the controls): all rows of the run.

    `jobs`: what remains to do, cut by ks_per_job. `means`: key means to fit first. `known_means`:
    inputs → artifact of those fitted before. `held`: row digests found in sound parts.
    """

    units: tuple[Unit, ...]
    jobs: tuple[Unit, ...]
    means: tuple[MeanJob, ...]
    known_means: Mapping[str, str]
    held: frozenset[str]
    set_aside: tuple[Path, ...]
    notes: tuple[str, ...]

    def of_layer(self, layer: int) -> Plan:
        """The part of the plan that is about one layer."""

        def here(jobs: Iterable[Any]) -> tuple[Any, ...]:
            return tuple(job for job in jobs if job.place.layer == layer)

        return replace(self, units=here(self.units), jobs=here(self.jobs), means=here(self.means))

    @property
    def n_rows(self) -> int:
        """Rows the run ends with, results and controls together."""
        return sum(len(unit.rows) for unit in self.units)

    @property
    def n_held(self) -> int:
        """Those among them that need no work."""
        return sum(digest in self.held for unit in self.units for digest in unit.row_digests)


def replay_config(
    store: Any, policies: Sequence[Any], config: Any, cells: Iterable[tuple[int, int]] | None = None
) -> dict[str, Any]:
    """The configuration of a replay's run directory: digests and values that decide its rows.

    How the work is cut and where it runs take no part, nor does the place of the store.
    """
    return {
        "kind": "replay",
        "store": store.digest,
        "policies": {policy.name: policy.to_dict() for policy in policies},
        "sweep": config.to_dict(),
        "cells": [list(cell) for cell in _chosen_cells(store, cells)],
    }


def plan_replay(
    store: Any,
    policies: Sequence[Any],
    config: Any,
    run: RunDirectory,
    ks_per_job: int | None = None,
    cells: Iterable[tuple[int, int]] | None = None,
    steps: Steps = STEPS,
) -> Plan:
    """Plan the sweep of `policies` over a CaptureStore, for the splits select and confirm.

    `ks_per_job`: candidate_ks a job (None: all). `cells`: (layer, kv_head) pairs, None for all.
    Damaged parts are set aside. Raises InputError for no policy, two policies of one name, no
    candidate_k, an unknown cell, or a store without passages to replay.
    """
    _check(policies, config, ks_per_job)
    planner = _Planner(store, tuple(policies), config.to_dict(), tuple(config.candidate_ks), run, steps)
    units = tuple(planner.units(_chosen_cells(store, cells)))
    scans = [scan_parts(run.parts, table) for table in (RESULTS, CONTROLS)]
    held = frozenset(digest for scan in scans for digest in scan.rows)
    jobs = tuple(job for unit in units for job in _remaining(unit, held, ks_per_job))
    needed = {job.mean_inputs for job in jobs if isinstance(job, ReplayJob)} - {None}
    known = {inputs: known_mean(str(run.path), inputs) for inputs in needed}
    return Plan(
        units=units,
        jobs=jobs,
        means=tuple(job for inputs, job in planner.means.items() if inputs in needed and known[inputs] is None),
        known_means={inputs: digest for inputs, digest in known.items() if digest is not None},
        held=held,
        set_aside=tuple(path for scan in scans for path in scan.set_aside),
        notes=tuple(planner.notes()),
    )


def rescan(run: RunDirectory) -> dict[str, PartScan]:
    """What the parts hold now, by table name."""
    return {table.name: scan_parts(run.parts, table) for table in (RESULTS, CONTROLS)}


class _Planner:
    """Turns cells into uncut jobs; collects the key means they need on the way."""

    def __init__(
        self, store: Any, policies: tuple[Any, ...], config: dict, ks: tuple[int, ...], run: RunDirectory, steps: Steps
    ) -> None:
        self.means: dict[str, MeanJob] = {}
        self._uncentred: set[str] = set()
        self._store = store
        self._policies = policies
        self._config = config
        self._ks = tuple(sorted(set(ks)))
        self._run = run
        self._steps = steps
        self._splits = tuple(split for split in SPLITS if store.meta.passages(split))
        self._centres = bool(store.meta.passages("calibrate"))
        if not self._splits:
            raise InputError(f"{store.url} has no passage in the splits {' or '.join(SPLITS)}: nothing to replay")

    def units(self, cells: Iterable[Cell]) -> Iterator[Unit]:
        for layer, kv_head in cells:
            for split in self._splits:
                place = self._place(layer, kv_head, split)
                slabs = slabs_digest(self._store.cell_digests(layer, kv_head, split))
                inputs = RowInputs(layer, kv_head, split, slabs, self._config)
                yield ControlJob(place, self._config, tuple(self._control_rows(inputs)))
                for policy in self._policies:
                    yield self._replay(place, inputs, policy)

    def notes(self) -> Iterator[str]:
        """What a reader of the run should know; complete once the units are made."""
        for split in SPLITS:
            if split not in self._splits:
                yield f"the store has no passage in split {split}: no rows for it"
        if self._uncentred:
            names = ", ".join(sorted(self._uncentred))
            yield f"the store has no passage in split calibrate: keys are not centred in {names}"

    def _place(self, layer: int, kv_head: int, split: str) -> Place:
        url = self._store.url
        absolute = url if "://" in url else str(Path(url).absolute())
        return Place(absolute, str(self._run.path), self._run.run_id, layer, kv_head, split, self._steps)

    def _control_rows(self, inputs: RowInputs) -> Iterator[tuple[str, str]]:
        for control in CONTROL_EXPECTED:
            yield control, inputs.digest(CONTROLS, control=control)

    def _replay(self, place: Place, inputs: RowInputs, policy: Any) -> ReplayJob:
        mean = self._mean(place, policy)
        sweep = inputs.digest(RESULTS, policy=policy.digest(), mean_inputs=mean)
        identities = [("window_only", 0), *(("candidate", k) for k in self._ks)]
        return ReplayJob(
            place=place,
            policy_name=policy.name,
            policy_digest=policy.digest(),
            policy=policy.to_dict(),
            config=self._config,
            candidate_ks=self._ks,
            full_k=self._store.meta.n_tokens,
            rows=tuple((kind, k, row_digest(sweep, kind, k)) for kind, k in identities),
            mean_inputs=mean,
        )

    def _mean(self, place: Place, policy: Any) -> str | None:
        """Inputs digest of the key mean this policy needs for the cell; None when it needs none."""
        here = policy.for_cell(place.layer, place.kv_head)
        if here.center_keys == "off":
            return None
        if not self._centres:
            self._uncentred.add(policy.name)
            return None
        slabs = slabs_digest(self._store.cell_digests(place.layer, place.kv_head, "calibrate"))
        rotation = None if here.key_rotation == KEEP_ROTATION else here.key_rotation
        inputs = mean_inputs(place.layer, place.kv_head, slabs, here.sink_tokens, rotation)
        if inputs not in self.means:
            self.means[inputs] = MeanJob(replace(place, split="calibrate"), here.sink_tokens, inputs, rotation)
        return inputs


def _check(policies: Sequence[Any], config: Any, ks_per_job: int | None) -> None:
    names = [policy.name for policy in policies]
    if not names:
        raise InputError("no policy to replay: name at least one")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"two policies are named {twice[0]!r}: rename one, rows are told apart by the name")
    if not config.candidate_ks:
        raise InputError("candidate_ks is empty: give at least one budget")
    if ks_per_job is not None and ks_per_job < 1:
        raise InputError(f"ks_per_job is {ks_per_job}, must be at least 1")


def _chosen_cells(store: Any, cells: Iterable[tuple[int, int]] | None) -> list[Cell]:
    known = store.meta.cells
    chosen = known if cells is None else tuple(dict.fromkeys(Cell(*cell) for cell in cells))
    unknown = [cell for cell in chosen if cell not in known]
    if unknown or not chosen:
        what = f"cell {unknown[0].key} is not in the capture" if unknown else "no cell to replay"
        raise InputError(f"{what}: {store.url} has {len(known)} cells, {known[0].key} to {known[-1].key}")
    return sorted(chosen)


def _remaining(unit: Unit, held: frozenset[str], ks_per_job: int | None) -> Iterator[Unit]:
    """The jobs that compute the unit's missing rows; the window_only row goes with the first."""
    missing = tuple(row for row in unit.rows if row[-1] not in held)
    if not missing:
        return
    if isinstance(unit, ControlJob):
        yield replace(unit, rows=missing)
        return
    candidates = [row for row in missing if row[0] == "candidate"]
    window_only = [row for row in missing if row[0] == "window_only"]
    step = ks_per_job or max(1, len(candidates))
    for start in range(0, max(1, len(candidates)), step):
        rows = (*window_only, *candidates[start : start + step])
        window_only = []
        # A sweep needs a budget, also when only its window_only row is missing.
        ks = tuple(k for kind, k, _ in rows if kind == "candidate") or unit.candidate_ks[:1]
        yield replace(unit, candidate_ks=ks, rows=rows)
