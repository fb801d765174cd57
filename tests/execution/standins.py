"""Stand-ins that keep the replay's contract, with failures planned by the test.

They compute real (if simple) figures from the slabs they are given, so that a wrong cell,
split, policy, mean or cut shows in the tables. What shall go wrong, and a log of every call,
lie in the folder that the environment variable names: worker processes inherit it.
"""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from polykv.errors import StorageFullError
from polykv.execution.steps import Steps
from polykv.receipts import digest_json
from polykv.schemas import CONTROLS, RESULTS, SELECTION
from polykv.storage import CaptureWriter
from polykv.types import CaptureMeta, CellData, Document, LayerCapture, LayerSpec, PassageCapture

PLAN_VARIABLE = "POLYKV_TEST_PLAN"
CONTROLS_EXPECTED = {"exact": "pass", "zero_keys": "fail", "shuffled_keys": "fail", "zero_values": "fail"}


@dataclass(frozen=True)
class StandInPolicy:
    name: str
    scale: float = 1.0
    center_keys: str = "off"
    sink_tokens: int = 0
    off_in: tuple[tuple[int, int], ...] = ()  # cells whose keys are not centred
    key_rotation: str = "keep"

    def for_cell(self, layer: int, kv_head: int) -> StandInPolicy:
        return replace(self, center_keys="off") if (layer, kv_head) in self.off_in else self

    def to_dict(self) -> dict:
        return asdict(self)

    def digest(self) -> str:
        return digest_json(self)

    @classmethod
    def from_dict(cls, raw: dict) -> StandInPolicy:
        return cls(**raw | {"off_in": tuple(map(tuple, raw["off_in"]))})


@dataclass(frozen=True)
class StandInConfig:
    candidate_ks: tuple[int, ...]
    shared_tokens: int | None = None
    limit: float = 0.5
    seed: int = 0

    def to_dict(self) -> dict:
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: dict) -> StandInConfig:
        return cls(**{**raw, "candidate_ks": tuple(raw["candidate_ks"])})


STEPS = Steps(
    policy="standins:StandInPolicy.from_dict",
    config="standins:StandInConfig.from_dict",
    sweep_cell="standins:sweep_cell",
    control_rows="standins:control_rows",
    key_mean="standins:key_mean",
    selection_rows="standins:selection_rows",
    judged="standins:judged",
)


class FailurePlan:
    """What goes wrong on which call; "L/H/split/what" → kind, and how often (None: always)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def here(cls) -> FailurePlan:
        return cls(Path(os.environ[PLAN_VARIABLE]))

    def set(self, **failures: tuple[str, int | None]) -> None:
        (self.folder / "plan.json").write_text(json.dumps(failures))

    def calls(self, word: str = "") -> list[str]:
        """Calls made so far whose name holds `word`, in no order."""
        return sorted(path.name.rpartition("~")[0] for path in self.folder.glob("*~*") if word in path.name)

    def forget(self) -> None:
        for path in self.folder.glob("*~*"):
            path.unlink()

    def called(self, name: str) -> None:
        """Note a call, and fail if the plan says so."""
        earlier = len(self.calls(name))
        (self.folder / f"{name}~{uuid.uuid4().hex}").touch()
        path = self.folder / "plan.json"
        for pattern, (kind, times) in (json.loads(path.read_text()) if path.exists() else {}).items():
            if pattern.replace("_", ",") in name and (times is None or earlier < times):
                self._fail(kind, name)

    def _fail(self, kind: str, name: str) -> None:
        if kind == "raise":
            raise ValueError(f"planned failure of {name}")
        if kind == "full":
            raise StorageFullError("planned: no space")
        if kind == "interrupt":
            raise KeyboardInterrupt
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "sleep":
            time.sleep(0.3)


def sweep_cell(
    data: CellData, policy: StandInPolicy, config: StandInConfig, key_mean: np.ndarray | None, artifacts: object = None
) -> list[dict]:
    """Rows of every candidate_k and of window_only; each figure comes from a float32 matrix product."""
    cell = f"{data.spec.layer},{data.kv_head},{data.split}"
    FailurePlan.here().called(f"sweep,{cell},{policy.name},k{','.join(map(str, config.candidate_ks))},")
    keys = np.nan_to_num(data.keys) - (0 if key_mean is None else key_mean)
    scores = np.einsum("pgqd,ptd->pgqt", np.nan_to_num(data.queries), keys * np.float32(policy.scale))
    ranked = np.sort(scores, axis=-1)[..., ::-1]
    rows = [
        _row(data, policy, config, "candidate", k, float(ranked[..., :k].mean(dtype=np.float64)))
        for k in config.candidate_ks
    ]
    return [*rows, _row(data, policy, config, "window_only", 0, 0.25)]


def _row(data: CellData, policy: StandInPolicy, config: StandInConfig, kind: str, k: int, figure: float) -> dict:
    filled = {c.name: _FILL[c.kind](figure) for c in RESULTS.columns if c.name not in ("run_id", "row_digest")}
    return filled | {
        "split": data.split,
        "layer": data.spec.layer,
        "kv_head": data.kv_head,
        "policy": policy.name,
        "policy_digest": policy.digest(),
        "row_kind": kind,
        "candidate_k": k,
        "is_full": k >= data.keys.shape[1],
        "status": "ok",
        "reason": None,
        "n_passages": len(data.passages),
        "verdict": "pass" if figure > config.limit else "fail",
    }


_FILL = {
    "string": lambda figure: "text",
    "int64": lambda figure: 1,
    "double": lambda figure: figure,
    "bool": lambda figure: figure > 0,
    "list<double>": lambda figure: [figure, figure / 2],
    "blockers": lambda figure: [{"gate": "output_cosine_mean", "value": figure, "limit": 0.999}],
}


def control_rows(data: CellData, config: StandInConfig) -> list[dict]:
    FailurePlan.here().called(f"control,{data.spec.layer},{data.kv_head},{data.split},")
    figure = float(np.nanmean(data.values, dtype=np.float64))
    filled = {c.name: _FILL[c.kind](figure) for c in CONTROLS.columns if c.name not in ("run_id", "row_digest")}
    cell = {"split": data.split, "layer": data.spec.layer, "kv_head": data.kv_head, "status": "ok", "reason": None}
    return [filled | cell | {"control": name, "expected": expected} for name, expected in CONTROLS_EXPECTED.items()]


def key_mean(data: CellData, sink_tokens: int) -> np.ndarray:
    FailurePlan.here().called(f"mean,{data.spec.layer},{data.kv_head},{data.split},")
    return np.nanmean(data.keys[:, sink_tokens:], axis=(0, 1)).astype(np.float32)


def selection_rows(results: list[dict], controls: list[dict]) -> list[dict]:
    """The smallest passing candidate_k on select, per cell and policy."""
    groups: dict[tuple, list[dict]] = {}
    for row in results:
        groups.setdefault((row["layer"], row["kv_head"], row["policy"]), []).append(row)
    chosen = []
    for rows in groups.values():
        passing = [
            r for r in rows if r["split"] == "select" and r["row_kind"] == "candidate" and r["verdict"] == "pass"
        ]
        k = min((r["candidate_k"] for r in passing), default=None)
        selected = {c.name: None for c in SELECTION.columns}
        same = {name: rows[0][name] for name in ("layer", "kv_head", "policy", "policy_digest")}
        chosen.append(selected | same | {"candidate_k": k, "verdict": "pass" if k else "failed"})
    return chosen


def judged(results: list[dict], controls: list[dict]) -> list[dict]:
    """Cells whose exact control failed are invalid."""
    bad = {(r["split"], r["layer"], r["kv_head"]) for r in controls if r["control"] == "exact" and not r["as_expected"]}
    return [
        row | {"verdict": "invalid", "verdict_reason": "exact control"}
        if row["status"] == "ok" and (row["split"], row["layer"], row["kv_head"]) in bad
        else row
        for row in results
    ]


N_TOKENS, HEAD_DIM = 16, 8
CELLS = ((1, 0), (4, 0), (4, 1))


def write_store(
    path: Path,
    splits: tuple[str, ...] = ("calibrate", "select", "confirm", "confirm"),
    n_tokens: int = N_TOKENS,
    positions: tuple[int, ...] = (10, 12, 14),
) -> None:
    """A sealed capture of one layer with one KV head and one with two, seeded."""
    layers = tuple(LayerSpec(layer, 2 * heads, heads, HEAD_DIM, HEAD_DIM, 0.35) for layer, heads in ((1, 1), (4, 2)))
    meta = CaptureMeta(
        model_id="tiny",
        weight_digest="2" * 64,
        tokenizer="bytes",
        bos_rule="none",
        rope_point="after",
        documents=(Document("a.txt", "0" * 64, 100),),
        passage_split=splits,
        passage_document=(0,) * len(splits),
        layers=layers,
        n_tokens=n_tokens,
        n_queries=len(positions),
        logits_reason="no_linear_projection",
    )
    writer = CaptureWriter.create(str(path), meta)
    for index in range(len(splits)):
        rng = np.random.default_rng([7, index])

        def draw(*shape: int, rng: np.random.Generator = rng) -> np.ndarray:
            return rng.standard_normal(shape).astype(np.float32)

        captured = {
            spec.layer: LayerCapture(
                k=draw(spec.n_kv_heads, n_tokens, HEAD_DIM),
                v=draw(spec.n_kv_heads, n_tokens, HEAD_DIM),
                q=draw(spec.n_q_heads, len(positions), HEAD_DIM),
                out=draw(spec.n_q_heads, len(positions), HEAD_DIM),
            )
            for spec in layers
        }
        writer.write_passage(PassageCapture(index, rng.integers(0, 99, n_tokens), np.array(positions), captured))
    writer.seal()
