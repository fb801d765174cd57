"""The stage `policy fit`: residual VQ codebooks for every head of a capture, as a policy and its artifacts.

plan = plan_fit(request)              # all that can be refused, and what it will take
path = run_fit(plan, tick)            # NAME.policy.json, artifacts/DIGEST.npz
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from polykv.calibration.residual_vq import METRICS, ResidualVqSettings, residual_vq_policy
from polykv.codecs.residual_vq import packed_nbytes
from polykv.errors import InputError
from polykv.policy_files import policy_file_name, write_policy
from polykv.replay.cost import FLOAT16_BYTES
from polykv.storage import CaptureStore
from polykv.storage.run import local_path
from polykv.types import STREAMS, Cell, CellData

__all__ = ["METRICS", "FitPlan", "FitRequest", "ResidualVqSettings", "plan_fit", "run_fit"]

Tick = Callable[[int, int, int], None]
_GAIN_BYTES = 2
_FLOAT32_BYTES = 4


@dataclass(frozen=True)
class FitRequest:
    """A fit as a person asks for it: from `store`'s split calibrate into the folder `out`. layers None: all."""

    store: str
    out: str
    layers: tuple[int, ...] | None = None
    name: str = "residual_vq"
    settings: ResidualVqSettings = field(default_factory=ResidualVqSettings)


@dataclass(frozen=True, eq=False)
class FitPlan:
    """n_vectors: calibration vectors of one head's keys (or values); bytes_per_token: codes of K and V of all
    `cells`; float16_ratio: how many times less than in float16; codebook_bytes: codebooks (int8, with
    scales) and means."""

    request: FitRequest
    store: CaptureStore
    cells: tuple[Cell, ...]
    n_vectors: int
    bytes_per_token: int
    float16_ratio: float
    codebook_bytes: int


def plan_fit(request: FitRequest) -> FitPlan:
    """Open the store and refuse what cannot be fitted or written; raises InputError, PolicyError for its name."""
    _refuse_no_place(local_path(request.out) / policy_file_name(request.name))
    store, settings = CaptureStore.open(request.store), request.settings
    meta = store.meta
    specs = meta.layers if request.layers is None else [meta.layer(layer) for layer in request.layers]
    passages = meta.passages("calibrate")
    if not passages:
        raise InputError(f"{store.url} has no passage of split calibrate; codebooks are fitted on nothing else")
    n_vectors = sum(max(0, len(store.token_ids(p)) - settings.sink_tokens) for p in passages)
    if n_vectors == 0:
        raise InputError(f"no token of split calibrate lies past {settings.sink_tokens} sinks; lower --sinks")
    settings.check_rows(n_vectors)
    heads = [
        (Cell(spec.layer, head), spec.head_dim + spec.value_dim) for spec in specs for head in range(spec.n_kv_heads)
    ]
    width = sum(width for _, width in heads)
    vector = packed_nbytes(settings.stages, settings.bits) + (_GAIN_BYTES if settings.gain else 0)
    n_bytes = len(STREAMS) * vector * len(heads)
    books = (settings.stages * (2**settings.bits + _FLOAT32_BYTES) + _FLOAT32_BYTES) * width  # a scale a stage, a mean
    cells = tuple(cell for cell, _ in heads)
    return FitPlan(request, store, cells, n_vectors, n_bytes, FLOAT16_BYTES * width / n_bytes, books)


def _refuse_no_place(path: Path) -> None:
    """Raises InputError where no policy's file can be written; writes nothing."""
    try:
        if path.exists():
            raise InputError(f"{path} exists; give another --out or --name, or delete it")
        there = next(folder for folder in path.parents if folder.exists())
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error
    if not there.is_dir():
        raise InputError(f"{there} is a file; --out must be a folder or not exist yet")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{there} may not be written to; give another --out")


def run_fit(plan: FitPlan, tick: Tick = lambda done, failed, total: None) -> Path:
    """Fit and write; returns the policy's file. tick(cells done, 0, cells)."""
    request = plan.request
    policy, artifacts = residual_vq_policy(_cells(plan, tick), request.settings, request.name)
    return write_policy(request.out, policy, artifacts)


def _cells(plan: FitPlan, tick: Tick) -> Iterator[CellData]:
    for done, cell in enumerate(plan.cells, start=1):
        yield plan.store.cell(*cell, "calibrate", with_logits=False)
        tick(done, 0, len(plan.cells))
