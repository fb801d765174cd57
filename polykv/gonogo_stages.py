"""The stage `gonogo`: what the command line and the flow call.

summary = gonogo_stage(GonogoRequest("data/smollm2-sample", "runs/gonogo"), Engine.parse("local"))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from polykv.calibration import GonogoSettings
from polykv.errors import InputError
from polykv.execution.engines import Engine
from polykv.execution.gonogo import GonogoSummary, chosen_layers, gonogo_config, run_gonogo
from polykv.execution.sweep import OnProgress
from polykv.policy import CompressionPolicy
from polykv.schemas import GONOGO
from polykv.storage import CaptureStore
from polykv.storage.atomic import write_bytes
from polykv.storage.results import read_rows
from polykv.storage.run import RunDirectory
from polykv.types import Cell

__all__ = [
    "Engine",
    "GonogoRequest",
    "GonogoSummary",
    "check_gonogo",
    "gonogo_rows",
    "gonogo_stage",
    "publish_gonogo",
    "sparse_policy",
]


@dataclass(frozen=True)
class GonogoRequest:
    """A go/no-go as a person asks for it.

    `atoms` × `sparsity` is the grid, its first point the primary one that gives the verdict;
    `layers` None: all; `per_head`: a dictionary per KV head instead of one per layer.
    """

    store: str
    out: str
    layers: tuple[int, ...] | None = None
    per_head: bool = False
    atoms: tuple[int, ...] = (256,)
    sparsity: tuple[int, ...] = (4,)
    iterations: int = 20
    method: str = "mod"
    seed: int = 0

    def settings(self) -> GonogoSettings:
        grid = tuple((a, s) for a in self.atoms for s in self.sparsity)
        return GonogoSettings(grid=grid, iterations=self.iterations, method=self.method, seed=self.seed)


def check_gonogo(request: GonogoRequest) -> tuple[CaptureStore, GonogoSettings, int]:
    """(store, settings, number of jobs); what cannot work is refused here, before any work."""
    store, settings = CaptureStore.open(request.store), request.settings()
    heads = [store.meta.layer(layer).n_kv_heads for layer in chosen_layers(store, request.layers)]
    return store, settings, 2 * (sum(heads) if request.per_head else len(heads))


def gonogo_stage(request: GonogoRequest, engine: Engine, on_progress: OnProgress | None = None) -> GonogoSummary:
    """Judge a capture's dictionaries into a run directory of their own; the same call resumes it."""
    store, settings, _ = check_gonogo(request)
    config = gonogo_config(store, settings, request.layers, request.per_head)
    with RunDirectory.create_or_resume(request.out, config | {"model_id": store.meta.model_id}) as run:
        run.record("request", asdict(request))
        return run_gonogo(store, settings, run, engine, request.layers, request.per_head, on_progress)


def publish_gonogo(out: str | Path) -> list[Path]:
    """Copy table and receipt of the go/no-go in `out`/gonogo beside the other tables of the run `out`.

    A run directory belongs to one configuration, so that a calibration's go/no-go resumes in one
    of its own; readers find every table in the run they asked for.
    """
    folder = Path(out)
    return [
        write_bytes(folder / name, (folder / "gonogo" / name).read_bytes())
        for name in ("gonogo.parquet", "gonogo.json")
    ]


def gonogo_rows(out: str | Path) -> list[dict[str, Any]]:
    """The primary rows of a finished go/no-go, by layer and stream."""
    rows = read_rows(RunDirectory.open(out).table_path(GONOGO.name), GONOGO)
    return sorted((r for r in rows if r["is_primary"]), key=lambda r: (r["layer"], r["kv_head"], r["stream"]))


def sparse_policy(out: str | Path, name: str, rows: Sequence[Mapping[str, Any]]) -> CompressionPolicy:
    """A policy that codes every judged cell with its learned dictionary, sinks and window exact.

    The artifacts stay where they are: `artifacts` points into the run directory. A stream
    without a learned dictionary is int8. Raises InputError when there is none at all.
    """
    learned = [row for row in rows if row["status"] == "ok" and row["artifact"]]
    if not learned:
        raise InputError(f"{out} holds no learned dictionary: nothing to write a policy of")
    cells: dict[str, dict[str, Any]] = {}
    for row in learned:
        codec = {"id": "sparse", "artifact": row["artifact"], "sparsity": row["sparsity"], "coefficients": row["coefficients"]}  # fmt: skip
        for head in _heads_of(out, row):
            tier = cells.setdefault(Cell(row["layer"], head).key, dict(CompressionPolicy.int8().pool))
            cells[Cell(row["layer"], head).key] = {**tier, row["stream"]: codec}
    int8 = CompressionPolicy.int8()
    return CompressionPolicy(
        name,
        sink_tokens=4,
        recent_window=32,
        pool=int8.pool,
        shell=int8.shell,
        cells={key: {"pool": tier, "shell": tier} for key, tier in cells.items()},
        artifacts={row["artifact"]: f"artifacts/{row['artifact']}.npz" for row in learned},
    )


def _heads_of(out: str | Path, row: Mapping[str, Any]) -> range | tuple[int]:
    if row["kv_head"] >= 0:
        return (row["kv_head"],)
    heads = RunDirectory.open(out).config["n_kv_heads"]
    return range(heads[str(row["layer"])])
