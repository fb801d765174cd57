"""A policy search, step by step: units, sensitivities, budgets, sharing. What it asks is kept in a ledger.

search = Search(store, loaded, settings, folder, ledger)
search.measure_fisher(); search.fit_units(); search.find_budgets(); search.measure_sensitivities(); search.share()
found = search.close_the_loop(Target.of_ppl(0.01, 0.7))
policy = search.policy_at(found.best.place)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from polykv.capture.models import LoadedModel
from polykv.certify.cells import plan_cells
from polykv.certify.config import CertifyConfig
from polykv.certify.fisher import Fisher, FisherConfig
from polykv.certify.judge import Judge, Judged
from polykv.certify.passages import spread_over_documents
from polykv.codecs.exact import ExactCodec
from polykv.errors import InputError
from polykv.policy import DROP_UNSELECTED, MEAN_UNSELECTED, CompressionPolicy
from polykv.receipts import NUMERICS_VERSION, digest_array, digest_json
from polykv.rotation import Rotation
from polykv.search.allocation import Allocation, allocations
from polykv.search.budgets import head_budget
from polykv.search.kept import gradient_texts, kept_fisher, kept_rotation, passes_of
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
# of fitted arrays: a search begun when they were stored otherwise fits them again
_STORED_AS = "integers"


@dataclass(frozen=True)
class SearchSettings:
    """What decides a search's result. metric: "fisher" (gradients of the model say what an error costs) or
    "output" (attention alone says it, and one-layer KLs). min_cosine None: every value is decoded.
    sensitivities: one-layer KLs of "layers" (all heads of a stream at once), of "heads" too, or "none".
    max_passes: forward passes of the model in all, baselines and sensitivities included, the final verdict apart."""

    name: str = "searched"
    rate: str = "fixed"
    metric: str = "fisher"
    gradient_passages: int = 16
    floor_bytes: float = 3
    min_cosine: float | None = 0.9998
    unselected_values: str = MEAN_UNSELECTED
    sensitivities: str = "layers"
    sensitivity_passages: int = 2
    select_passages: int = 8
    max_passes: int = 1000
    units: UnitSettings = field(default_factory=UnitSettings)


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """kl: nats a token with this stream of a layer (of one head, where kv_head is not None) coded by
    DISTURBANCE, all else exact."""

    layer: int
    kv_head: int | None
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
        reuse: Path | None = None,
    ) -> None:
        self.store, self.settings, self.folder = store, settings, folder
        self.rotations: Mapping[int, Rotation] | None = None
        self.rotation_digest: str | None = None
        self.ledger = Ledger(folder / LEDGER, None if reuse is None else reuse / LEDGER)
        self._artifact_folders = [one / "artifacts" for one in (folder, reuse) if one is not None]
        self._loaded = loaded
        self._fisher = Fisher({}, {})
        self.units: list[Unit] = []
        self.budgets: dict[Cell, int | str] = {}
        self.sensitivities: list[Sensitivity] = []
        self.sharings: list[Allocation] = []
        self.passes = 0
        passages = _spread_passages(store, "select", settings.select_passages)
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

    def undo_rotation(self) -> None:
        """Code keys before RoPE; raises UnsupportedModelError for a model whose keys do not rotate so."""
        token_ids = self.store.token_ids(self.store.meta.passages("calibrate")[0])
        self.rotations, self.rotation_digest = kept_rotation(
            self.ledger, self._artifact_folders, self._loaded, self.judge.specs, token_ids
        )

    def measure_fisher(self, tick: Tick) -> bool:
        """What an error of every cell and stream costs, on split calibrate; False when the passes are used up."""
        if self.settings.metric != "fisher":
            return True
        units = self.settings.units
        config = FisherConfig(units.sink_tokens, units.recent_window, seed=units.seed)
        whole = _spread_passages(self.store, "calibrate", self.settings.gradient_passages)
        if not whole:
            raise InputError(
                f"{self.store.url} has no whole passage in split calibrate for gradients; use --metric output"
            )
        passages = gradient_texts(whole, self.settings.gradient_passages)

        def count(done: int) -> None:
            self.passes += passes_of(config)
            tick(done, 0, len(passages))

        found = kept_fisher(
            self.ledger,
            self._artifact_folders,
            self._loaded,
            passages,
            config,
            self.rotations,
            DISTURBANCE,
            self._may_take,
            count,
        )
        self._fisher = found or self._fisher
        return found is not None

    def fit_units(self, tick: Tick) -> None:
        """Basis, reference codec and proxies of every cell and stream, on split calibrate."""
        cells, rate = self.store.meta.cells, rate_named(self.settings.rate, self.settings.metric == "fisher")
        for done, cell in enumerate(cells, start=1):
            data = self.store.cell(*cell, "calibrate", with_logits=False)
            turned = None if self.rotations is None else self.rotations[cell.layer]
            for stream in STREAMS:
                nats, expected = (part.get((cell, stream)) for part in (self._fisher.metrics, self._fisher.disturbed))
                floor, exact = self.settings.floor_bytes, self.settings.units
                self.units.append(fit_unit(data, stream, turned, rate, exact, nats, expected, floor))
            tick(done, 0, len(cells))

    def find_budgets(self, tick: Tick) -> None:
        """candidate_k of every cell, on split select."""
        cells = self.store.meta.cells
        for done, cell in enumerate(cells, start=1):
            self.budgets[cell] = self._budget(cell)
            tick(done, 0, len(cells))

    def measure_sensitivities(self, tick: Tick) -> bool:
        """True KL of every (layer, stream), and head of it if asked, under DISTURBANCE; False when the
        passes are used up."""
        asked = list(self._places())
        for done, (layer, head, stream) in enumerate(asked, start=1):
            policy = self._one_place(layer, head, stream)
            judged = self._judged(policy, self.settings.sensitivity_passages, only_layer=layer)
            if judged is None:
                return False
            self.sensitivities.append(Sensitivity(layer, head, stream, float(judged["kl"])))
            tick(done, 0, len(asked))
        return True

    def share(self) -> None:
        """Every sharing of bytes that some price strikes, costs in nats as gradients or sensitivities say."""
        costs = np.array([unit.costs for unit in self.units])
        if self.settings.metric != "fisher":
            costs *= self._nats_per_output_error()[:, None]
        sizes = np.array([unit.sizes for unit in self.units])
        self.sharings = allocations(costs, sizes, self.settings.floor_bytes)

    def _nats_per_output_error(self) -> np.ndarray:
        """[unit] float64, from the one-layer KLs."""
        known = {(one.layer, one.stream): one.kl for one in self.sensitivities if one.kv_head is None}
        totals: dict[tuple[int, str], float] = {}
        for unit in self.units:
            place = (unit.cell.layer, unit.stream)
            totals[place] = totals.get(place, 0.0) + unit.proxies.output_error
        return np.array([_nats(known, totals, (unit.cell.layer, unit.stream)) for unit in self.units])

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
        # a name changes a policy's digest and nothing it does: an answer given under another one holds
        policy = replace(self.policy_at(place), name=SearchSettings.name)
        judged = self._judged(policy, None)
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
        rules = (least, exact.sink_tokens, exact.recent_window, self.settings.unselected_values)
        key = f"budget {NUMERICS_VERSION} {self.store.digest} {cell.key} {rules!r}"
        known = self.ledger.get(key)
        if known is None:
            data = self.store.cell(*cell, "select", with_logits=False)
            known = self.ledger.put(key, head_budget(data, exact.sink_tokens, exact.recent_window, least, rules[-1]))
        return known

    def _one_place(self, layer: int, head: int | None, stream: str) -> CompressionPolicy:
        tier = {"key": _EXACT, "value": _EXACT} | {stream: DISTURBANCE}
        disturbed = [cell for cell in self.store.meta.cells if cell.layer == layer and head in (None, cell.kv_head)]
        cells = {cell.key: {"pool": tier, "shell": tier} for cell in disturbed}
        which = f"{layer}" if head is None else f"{layer}/{head}"
        return self._policy(f"one {which} {stream}", cells, [], rotated=False)

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
            unselected_values=self.settings.unselected_values if rotated else DROP_UNSELECTED,
            **rotation,
        )

    def _codec(self, unit: Unit, option: int) -> dict[str, str]:
        about = (
            f"{unit.key} {unit.rate.name} {unit.rate.options[option]!r} {unit.seed} {digest_array(unit.basis.costs)}"
        )
        key = f"fit {NUMERICS_VERSION} {_STORED_AS} {about}"
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
        if not self._may_take(self.judge.passes_of(n_passages)):
            return None
        specs = self.judge.specs if only_layer is None else {only_layer: self.judge.specs[only_layer]}
        judged = self.judge.judge(plan_cells(policy, specs, None, self.artifacts), n_passages)
        return self.ledger.put(key, _plain(judged))

    def _places(self) -> Iterator[tuple[int, int | None, str]]:
        """(layer, kv_head or None for all of them, stream) of every sensitivity asked for."""
        asked, cells = self.settings.sensitivities, self.store.meta.cells
        layers = sorted({cell.layer for cell in cells}) if asked != "none" else ()
        for stream in STREAMS:
            yield from ((layer, None, stream) for layer in layers)
        for stream in STREAMS:
            yield from ((cell.layer, cell.kv_head, stream) for cell in cells if asked == "heads")

    def _may_take(self, passes: int) -> bool:
        return self.passes + passes <= self.settings.max_passes

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


def _spread_passages(store: CaptureStore, split: str, most: int) -> list[np.ndarray]:
    """Token ids of at most `most` whole passages of a split, evenly from its documents."""
    meta = store.meta
    whole = [p for p in meta.passages(split) if len(store.token_ids(p)) == meta.n_tokens]
    documents = [meta.passage_document[p] for p in whole]
    return [store.token_ids(p) for p in spread_over_documents(whole, documents, most)]
