"""A policy search, step by step: units, sensitivities, budgets, sharing. What it asks is kept in a ledger.

search = Search(store, loaded, settings, folder, ledger)
search.fit_units(); search.measure_sensitivities(); search.find_budgets()
found = search.close_the_loop(Target.of_ppl(0.01, 0.7))
policy = search.policy_at(found.best.place)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from polykv.capture.models import LoadedModel
from polykv.certify.cells import plan_cells
from polykv.certify.config import CertifyConfig
from polykv.certify.judge import Judge, Judged
from polykv.certify.passages import spread_over_documents
from polykv.codecs.exact import ExactCodec
from polykv.errors import InputError
from polykv.policy import CompressionPolicy
from polykv.receipts import NUMERICS_VERSION, digest_array, digest_json
from polykv.rotation import Rotation
from polykv.search.allocation import Allocation, allocations
from polykv.search.budgets import head_budget
from polykv.search.ledger import Ledger
from polykv.search.loop import Found, Target, Trial, search_sharing
from polykv.search.rates import rate_named
from polykv.search.units import DISTURBANCE, Unit, UnitSettings, fit_unit, unit_entry
from polykv.storage import CaptureStore
from polykv.storage.artifacts import load_artifact, save_artifact
from polykv.types import STREAMS, Cell

Tick = Callable[[int, int, int], None]
LEDGER = "search.jsonl"
_EXACT = {"id": ExactCodec.codec_id}


@dataclass(frozen=True)
class SearchSettings:
    """What decides a search's result. min_cosine None: every value is decoded. max_passes: forward passes
    of the model in all, baselines and sensitivities included, the final verdict apart."""

    name: str = "searched"
    rate: str = "fixed"
    floor_bytes: float = 3
    min_cosine: float | None = 0.999
    sensitivity_passages: int = 2
    select_passages: int = 8
    max_passes: int = 1000
    units: UnitSettings = field(default_factory=UnitSettings)


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """kl: one-layer KL in nats a token: all heads of the stream coded by DISTURBANCE, all else exact."""

    layer: int
    stream: str
    kl: float


class Search:
    """One search over `store`'s cells for `loaded`; artifacts go to `folder`/artifacts. `reuse`: the folder of
    another search, whose answers to the same questions count."""

    def __init__(
        self,
        store: CaptureStore,
        loaded: LoadedModel,
        settings: SearchSettings,
        folder: Path,
        rotations: Mapping[int, Rotation] | None = None,
        rotation_digest: str | None = None,
        reuse: Path | None = None,
    ) -> None:
        self.store, self.settings, self.folder = store, settings, folder
        self.rotations, self.rotation_digest = rotations, rotation_digest
        self.ledger = Ledger(folder / LEDGER, None if reuse is None else reuse / LEDGER)
        self.units: list[Unit] = []
        self.budgets: dict[Cell, int | str] = {}
        self.sensitivities: list[Sensitivity] = []
        self.sharings: list[Allocation] = []
        self.passes = 0
        whole = _whole_passages(store, "select")
        documents = [store.meta.passage_document[p] for p in whole]
        used = spread_over_documents(whole, documents, settings.select_passages)
        passages = [store.token_ids(p) for p in used]
        if not passages:
            raise InputError(f"{store.url} has no whole passage in split select to judge sharings on")
        config = CertifyConfig(n_passages=len(passages), n_tokens=store.meta.n_tokens)
        self.judge = Judge(loaded, passages, config, self._count)
        missing = sorted(set(self.judge.specs) - {cell.layer for cell in store.meta.cells})
        if missing:
            raise InputError(
                f"{store.url} lacks {len(missing)} of the model's {len(self.judge.specs)} layers (the first: {missing[0]}); "
                "a search compresses all of them: capture without --layers"
            )
        self._identity = digest_json([NUMERICS_VERSION, loaded.weight_digest, *(digest_array(ids) for ids in passages)])

    def fit_units(self, tick: Tick) -> None:
        """Basis, reference codec and proxies of every cell and stream, on split calibrate."""
        cells, rate = self.store.meta.cells, rate_named(self.settings.rate)
        for done, cell in enumerate(cells, start=1):
            data = self.store.cell(*cell, "calibrate", with_logits=False)
            turned = None if self.rotations is None else self.rotations[cell.layer]
            self.units += [fit_unit(data, stream, turned, rate, self.settings.units) for stream in STREAMS]
            tick(done, 0, len(cells))

    def find_budgets(self, tick: Tick) -> None:
        """candidate_k of every cell, on split select."""
        cells = self.store.meta.cells
        for done, cell in enumerate(cells, start=1):
            self.budgets[cell] = self._budget(cell)
            tick(done, 0, len(cells))

    def measure_sensitivities(self, tick: Tick) -> bool:
        """True one-layer KL of every (layer, stream) under DISTURBANCE; False when the passes are used up."""
        asked = list(self._layer_streams())
        for done, (layer, stream) in enumerate(asked, start=1):
            policy = self._one_layer(layer, stream)
            judged = self._judged(policy, self.settings.sensitivity_passages, only_layer=layer)
            if judged is None:
                return False
            self.sensitivities.append(Sensitivity(layer, stream, float(judged["kl"])))
            tick(done, 0, len(asked))
        return True

    def share(self) -> None:
        """Every sharing of bytes that some price strikes, costs in nats as the sensitivities say."""
        known = {(one.layer, one.stream): one.kl for one in self.sensitivities}
        totals: dict[tuple[int, str], float] = {}
        for unit in self.units:
            place = (unit.cell.layer, unit.stream)
            totals[place] = totals.get(place, 0.0) + unit.proxies.output_error
        nats = np.array([_nats(known, totals, (unit.cell.layer, unit.stream)) for unit in self.units])
        costs = np.array([unit.costs for unit in self.units]) * nats[:, None]
        sizes = np.array([unit.sizes for unit in self.units])
        self.sharings = allocations(costs, sizes, self.settings.floor_bytes)

    def close_the_loop(self, target: Target, tick: Tick) -> Found:
        """The cheapest sharing that meets `target` in the model, all at once, on split select."""
        trials = 0

        def judge(place: int) -> Trial | None:
            nonlocal trials
            trial = self.judged_at(place)
            trials += 1
            tick(trials, 0, trials)
            return trial

        sizes = [one.total_bytes for one in self.sharings]
        return search_sharing(sizes, [one.total_cost for one in self.sharings], target, judge)

    def judged_at(self, place: int) -> Trial | None:
        """One sharing in the model; None when the passes are used up."""
        judged = self._judged(self.policy_at(place), None)
        return None if judged is None else self._trial(place, judged)

    def _trial(self, place: int, judged: Mapping[str, float]) -> Trial:
        """A trial of what the ledger holds."""
        cost = self.sharings[place].total_cost
        ratios = np.array(judged["passage_log_ratio"])
        error = float(ratios.std(ddof=1) / np.sqrt(len(ratios))) if len(ratios) > 1 else 0.0
        return Trial(place, cost, judged["kl"], judged["log_ratio"], judged["bytes_per_token"], error)

    def place_within(self, bytes_per_token: float) -> int:
        """The dearest sharing of at most `bytes_per_token` (K and V codes of all cells)."""
        within = [i for i, one in enumerate(self.sharings) if one.total_bytes <= bytes_per_token]
        if not within:
            raise InputError(
                f"the budget of {bytes_per_token:,.0f} bytes a token is below {self.sharings[0].total_bytes:,.0f}, what "
                f"{len(self.units)} streams take at the floor of {self.settings.floor_bytes} bytes a vector"
            )
        return within[-1]

    def policy_at(self, place: int) -> CompressionPolicy:
        """The policy of a sharing, its codecs fitted (once) and stored among the artifacts."""
        options = self.sharings[place].options
        cells: dict[str, dict] = {}
        digests = []
        for unit, option in zip(self.units, options, strict=True):
            entry = self._codec(unit, int(option))
            digests.append(entry["artifact"])
            tier = cells.setdefault(unit.cell.key, {"pool": {}, "candidate_k": self.budgets[unit.cell]})["pool"]
            tier[unit.stream] = entry
        for override in cells.values():
            override["shell"] = override["pool"]
        return self._policy(self.settings.name, cells, digests)

    def artifacts(self, digest: str) -> Mapping[str, np.ndarray]:
        """The arrays of one of the search's artifacts."""
        return load_artifact(self.folder / "artifacts", digest)

    def _budget(self, cell: Cell) -> int | str:
        exact, least = self.settings.units, self.settings.min_cosine
        if least is None:
            return "full"
        key = f"budget {NUMERICS_VERSION} {self.store.digest} {cell.key} {least!r} {exact.sink_tokens} {exact.recent_window}"
        known = self.ledger.get(key)
        if known is None:
            data = self.store.cell(*cell, "select", with_logits=False)
            known = self.ledger.put(key, head_budget(data, exact.sink_tokens, exact.recent_window, least))
        return known

    def _one_layer(self, layer: int, stream: str) -> CompressionPolicy:
        tier = {"key": _EXACT, "value": _EXACT} | {stream: DISTURBANCE}
        cells = {cell.key: {"pool": tier, "shell": tier} for cell in self.store.meta.cells if cell.layer == layer}
        return self._policy(f"one {layer} {stream}", cells, [], rotated=False)

    def _policy(
        self, name: str, cells: Mapping[str, dict], digests: list[str], rotated: bool = True
    ) -> CompressionPolicy:
        rotation = {} if self.rotation_digest is None or not rotated else {"key_rotation": self.rotation_digest}
        listed = [*digests, *rotation.values()]
        return CompressionPolicy(
            name,
            sink_tokens=self.settings.units.sink_tokens,
            recent_window=self.settings.units.recent_window,
            cells=cells,
            artifacts={digest: f"artifacts/{digest}.npz" for digest in listed},
            candidate_k="full",
            **rotation,
        )

    def _codec(self, unit: Unit, option: int) -> dict[str, str]:
        key = f"fit {unit.key} {unit.rate.name} {unit.rate.options[option]!r} {unit.seed} {digest_array(unit.basis.costs)}"
        known = self.ledger.get(key)
        if known is not None and (self.folder / "artifacts" / f"{known['artifact']}.npz").exists():
            return known
        arrays = unit.fit(option)
        save_artifact(self.folder / "artifacts", arrays)
        return self.ledger.put(key, unit_entry(unit, arrays))

    def _judged(
        self, policy: CompressionPolicy, n_passages: int | None, only_layer: int | None = None
    ) -> Mapping[str, float] | None:
        """kl, log_ratio and bytes_per_token, from the ledger when the same was asked before."""
        key = f"judge {self._identity} {policy.digest()} {n_passages}"
        known = self.ledger.get(key)
        if known is not None:
            return known
        n = self.judge.n_passages if n_passages is None else min(n_passages, self.judge.n_passages)
        if self.passes + n > self.settings.max_passes:
            return None
        specs = self.judge.specs if only_layer is None else {only_layer: self.judge.specs[only_layer]}
        judged = self.judge.judge(plan_cells(policy, specs, None, self.artifacts), n_passages)
        return self.ledger.put(key, _plain(judged))

    def _layer_streams(self) -> Iterator[tuple[int, str]]:
        for stream in STREAMS:
            for layer in sorted({unit.cell.layer for unit in self.units}):
                yield layer, stream

    def _count(self) -> None:
        self.passes += 1


def _plain(judged: Judged) -> dict[str, float]:
    return {
        "kl": float(judged.kl.mean()),
        "log_ratio": float(judged.log_ratio.mean()),
        "bytes_per_token": float(judged.bytes_per_token),
        "decoded": judged.decoded,
        "visible": judged.visible,
        "passage_kl": judged.kl.tolist(),
        "passage_log_ratio": judged.log_ratio.tolist(),
    }


def _nats(known: Mapping, totals: Mapping, place: tuple[int, str]) -> float:
    """Nats of KL per unit of summed squared output error in one (layer, stream); 1 where nothing was measured."""
    if place not in known or not totals[place] > 0:
        return 1.0
    return max(known[place], 1e-9) / totals[place]


def _whole_passages(store: CaptureStore, split: str) -> list[int]:
    meta = store.meta
    return [p for p in meta.passages(split) if len(store.token_ids(p)) == meta.n_tokens]
