"""The stage `policy search`: from a capture and a budget to a policy, its trace and its certification.

prepared = prepare_search(request)        # everything that can be refused, before the model is loaded
outcome = run_search(prepared, watch)     # policy file, search.parquet, sensitivity.parquet, certify.parquet
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from polykv.capture.corpus import read_corpus
from polykv.capture.models import LoadedModel, load_model
from polykv.certify import Budget, CertifyConfig
from polykv.certify.fisher import FisherConfig
from polykv.certify_stages import (
    CertifyOutcome,
    CertifyRequest,
    check_same_model,
    prepare_certification,
    run_certification,
    write_certification,
)
from polykv.errors import InputError, MissingExtraError, UnsupportedModelError
from polykv.policy import MEAN_UNSELECTED, UNSELECTED_VALUES
from polykv.policy_files import policy_file_name
from polykv.receipts import NUMERICS_VERSION
from polykv.report.search_front import search_picture
from polykv.schemas import SEARCH, SENSITIVITY
from polykv.search.kept import passes_of, pieces_of
from polykv.search.loop import Found, Target
from polykv.search.rates import rate_named
from polykv.search.rows import proxy_agreement, sensitivity_rows, trial_rows
from polykv.search.run import Search, SearchSettings
from polykv.search.units import UnitSettings
from polykv.storage import CaptureStore
from polykv.storage.atomic import write_bytes
from polykv.storage.results import write_table
from polykv.storage.run import RunDirectory, refuse_no_place_for_a_run

Tick = Callable[[int, int, int], None]
Watch = Callable[[str, str], AbstractContextManager[Tick]]
MOST_FLOOR_BYTES = 32
METRICS = ("fisher", "output")
SENSITIVITIES = ("layers", "heads", "none")


@dataclass(frozen=True)
class SearchRequest:
    """A search as a person asks for it.

    Exactly one of max_ppl_increase (.01 is +1 %: fewest bytes within it) and budget_bytes (K and V
    codes of one token, all layers: least KL within them). rate: "fixed", or "entropy" (a real
    bitstream; needs the extra `entropy`). metric: "fisher" (gradients over gradient_passages of split calibrate
    say what an error costs, in nats) or "output" (no gradients: attention outputs and one-layer KLs say it).
    sensitivities: whose true KL is measured, "layers", "heads" too, or "none". margin: share of the PPL budget that the KL
    on split select may use, the rest is for texts it has not seen. corpus: texts of the verdict
    (empty: the confirm passages of the store). reuse: the run directory of another search of this store,
    whose measurements count where they are the same.
    """

    store: str
    model: str
    out: str
    max_ppl_increase: float | None = 0.01
    budget_bytes: float | None = None
    margin: float = 0.5
    min_cosine: float | None = 0.9998
    floor_bytes: float = 3
    rate: str = "fixed"
    metric: str = "fisher"
    gradient_passages: int = 16
    unselected_values: str = MEAN_UNSELECTED
    select_passages: int = 8
    sensitivities: str = "layers"
    sensitivity_passages: int = 2
    confirm_passages: int = 20
    max_passes: int = 1000
    before_rope: bool = True
    name: str = "searched"
    corpus: tuple[str, ...] = ()
    seed: int = 0
    sink_tokens: int = 4
    recent_window: int = 32
    model_cache: str | None = None
    reuse: str | None = None

    def __post_init__(self) -> None:
        if (self.max_ppl_increase is None) == (self.budget_bytes is None):
            raise InputError(
                "give one budget: a perplexity increase (then bytes are made few) or bytes (then KL small)"
            )
        if self.max_ppl_increase is not None:
            Target.of_ppl(self.max_ppl_increase, self.margin)
        if self.budget_bytes is not None and not self.budget_bytes > 0:
            raise InputError(f"the budget is {self.budget_bytes} bytes, must be > 0")
        if self.min_cosine is not None and not 0 < self.min_cosine < 1:
            raise InputError(f"min_cosine is {self.min_cosine}, must be in (0, 1)")
        known = {"metric": METRICS, "sensitivities": SENSITIVITIES, "unselected_values": UNSELECTED_VALUES}
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise InputError(f"{name} is {getattr(self, name)!r}; known: {', '.join(values)}")
        if self.metric == "output" and self.sensitivities == "none":
            raise InputError('metric "output" weighs layers by their one-layer KL: sensitivities cannot be "none"')
        for name in ("gradient_passages", "select_passages", "sensitivity_passages", "confirm_passages", "max_passes"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}, must be at least 1")
        rate_named(self.rate)
        policy_file_name(self.name)
        if not 0 < self.floor_bytes <= MOST_FLOOR_BYTES:
            raise InputError(f"floor_bytes is {self.floor_bytes}, must be above 0, at most {MOST_FLOOR_BYTES}")

    @property
    def settings(self) -> SearchSettings:
        """What decides the result, as the search room takes it."""
        return SearchSettings(
            name=self.name,
            rate=self.rate,
            metric=self.metric,
            gradient_passages=self.gradient_passages,
            unselected_values=self.unselected_values,
            sensitivities=self.sensitivities,
            floor_bytes=self.floor_bytes,
            min_cosine=self.min_cosine,
            sensitivity_passages=self.sensitivity_passages,
            select_passages=self.select_passages,
            max_passes=self.max_passes,
            units=UnitSettings(self.sink_tokens, self.recent_window, self.seed),
        )

    @property
    def certify_config(self) -> CertifyConfig:
        """The verdict's numbers; a store decides the tokens of its own passages."""
        budget = Budget() if self.max_ppl_increase is None else Budget(max_ppl_increase=self.max_ppl_increase)
        return CertifyConfig(n_passages=self.confirm_passages, budget=budget)


@dataclass(frozen=True, eq=False)
class SearchOutcome:
    """policy: the file written (None: nothing met the budget, or the passes ran out first); agreement:
    {proxy: {one of PARTS: Spearman with the true KL, None where undefined}}; certified:
    the verdict on passages the search never saw; picture: the trials as SVG; notes: what a reader must know."""

    path: Path
    policy: Path | None
    found: Found
    target: Target | None
    trials: list[dict[str, Any]]
    agreement: dict[str, dict[str, float | None]]
    certified: CertifyOutcome | None
    passes: int
    picture: Path | None
    notes: tuple[str, ...]


def prepare_search(request: SearchRequest) -> CaptureStore:
    """Open the store and refuse what cannot be searched, before a model is loaded."""
    refuse_no_place_for_a_run(request.out)
    store = CaptureStore.open(request.store)
    if request.reuse is not None:
        _check_reuse(request.reuse, store)
    for split in ("calibrate", "select"):
        if not store.meta.passages(split):
            raise InputError(f"{store.url} has no passage of split {split}; a search needs calibrate and select")
    if not request.corpus and not store.meta.passages("confirm"):
        raise InputError(f"{store.url} has no passage of split confirm for the verdict; give --corpus FILE")
    return store


def _check_reuse(reuse: str, store: CaptureStore) -> None:
    """Only another search of the same capture has answers to this one's questions."""
    config = RunDirectory.open(reuse).config
    if config.get("kind") != "search":
        raise InputError(f"{reuse} is no run of a search; there is nothing in it to reuse")
    if config.get("store_digest") != store.digest:
        raise InputError(
            f"{reuse} searched the capture with the digest {str(config.get('store_digest'))[:12]}, {store.url} has "
            f"{store.digest[:12]}: none of its answers holds here; leave --reuse out"
        )


def expected_passes(request: SearchRequest, store: CaptureStore) -> dict[str, int]:
    """About how many forward passes each step takes."""
    meta, most = store.meta, request.gradient_passages
    n_places = {"none": 0, "layers": len(meta.layers), "heads": len(meta.layers) + len(meta.cells)}
    n_streams = 2 * n_places[request.sensitivities]
    n_gradients = min(most, min(most, len(meta.passages("calibrate"))) * pieces_of(meta.n_tokens))
    return {
        "gradients": n_gradients * passes_of(FisherConfig()) if request.metric == "fisher" else 0,
        "sensitivities": (n_streams + 1) * request.sensitivity_passages if n_streams else 0,
        "trials": 6 * request.select_passages if request.budget_bytes is None else request.select_passages,
        "verdict": 2 * request.confirm_passages + 5,
    }


def run_search(
    request: SearchRequest, watch: Watch = lambda label, unit: nullcontext(lambda done, failed, total: None)
) -> SearchOutcome:
    """Search, write everything into the run directory `request.out`, certify. The same request resumes.

    `watch(label, unit)` gives a context whose value is called with (done, failed, total).
    """
    store = prepare_search(request)
    loaded = load_model(request.model, "float32", request.model_cache)
    check_same_model(store, loaded)
    with RunDirectory.create_or_resume(request.out, _config(request, store, loaded)) as run:
        run.record("request", asdict(request))
        search, notes = _search(request, store, loaded, run)
        measured = _measure(search, watch)
        found, target = Found(None, (), complete=False), None
        if measured:
            search.share()
            with watch("search", "trials") as tick:
                found, target = _close(request, search, tick)
        if not found.complete:
            notes += (f"stopped at --max-passes {request.max_passes}: the same command with more goes on from here",)
        outcome = _finish(request, search, found, target, run, loaded, notes, watch)
        run.record(
            "search", {"policy": None if outcome.policy is None else outcome.policy.name, "notes": outcome.notes}
        )
    return outcome


def _search(
    request: SearchRequest, store: CaptureStore, loaded: LoadedModel, run: RunDirectory
) -> tuple[Search, tuple[str, ...]]:
    """The search with the model's rotation, and a note where keys stay as they are."""
    search = Search(
        store, loaded, request.settings, run.path, reuse=None if request.reuse is None else Path(request.reuse)
    )
    if not request.before_rope:
        return search, ()
    try:
        search.undo_rotation()
    except UnsupportedModelError as error:
        return search, (f"keys are coded after RoPE: {error}",)
    return search, ()


def _measure(search: Search, watch: Watch) -> bool:
    """All a sharing rests on; False when the passes are used up."""
    with watch("gradients", "passages") as tick:
        if not search.measure_fisher(tick):
            return False
    with watch("fit", "cells") as tick:
        search.fit_units(tick)
    with watch("candidate_k", "cells") as tick:
        search.find_budgets(tick)
    with watch("sensitivity", "streams") as tick:
        return search.measure_sensitivities(tick)


def _close(request: SearchRequest, search: Search, tick: Tick) -> tuple[Found, Target | None]:
    if request.budget_bytes is None:
        target = Target.of_ppl(request.max_ppl_increase, request.margin)
        return search.close_the_loop(target, tick), target
    trial = search.judged_at(search.place_within(request.budget_bytes))
    tick(1, 0, 1)
    return Found(trial, () if trial is None else (trial,), complete=trial is not None), None


def _finish(
    request: SearchRequest,
    search: Search,
    found: Found,
    target: Target | None,
    run: RunDirectory,
    loaded: LoadedModel,
    notes: tuple[str, ...],
    watch: Watch,
) -> SearchOutcome:
    rows = trial_rows(search, found, target, run.run_id)
    run.record_output(write_table(run.table_path(SEARCH.name), SEARCH, rows))
    sensitivities = sensitivity_rows(search, found.best, run.run_id)
    run.record_output(write_table(run.table_path(SENSITIVITY.name), SENSITIVITY, sensitivities))
    policy, certified = None, None
    if found.best is not None:
        chosen = search.policy_at(found.best.place)
        policy = run.path / policy_file_name(chosen.name)
        chosen.save(policy)
        certified = _certify(request, policy, run, loaded, watch)
    elif found.complete:
        notes += ("no sharing met the budget, not even the dearest one: raise the budget or --margin",)
    picture = None
    try:
        drawn = search_picture(rows, None if target is None else target.kl) if rows else None
        picture = None if drawn is None else write_bytes(run.path / "search.svg", drawn.encode())
    except MissingExtraError as error:
        notes += (f"no picture: {error}",)
    agreement = proxy_agreement(sensitivities)
    return SearchOutcome(run.path, policy, found, target, rows, agreement, certified, search.passes, picture, notes)


def _certify(
    request: SearchRequest, policy: Path, run: RunDirectory, loaded: LoadedModel, watch: Watch
) -> CertifyOutcome:
    """The verdict, on passages that neither fitting nor choosing has seen."""
    config = request.certify_config
    if request.corpus:
        config = replace(config, n_tokens=CaptureStore.open(request.store).meta.n_tokens)
    asked = CertifyRequest(request.model, (str(policy),), request.corpus, request.store, config)
    with watch("certify", "forward passes") as tick:
        outcome = run_certification(prepare_certification(asked), tick, loaded, run.run_id)
    for path in write_certification(run.path, outcome):
        run.record_output(path)
    return outcome


def _config(request: SearchRequest, store: CaptureStore, loaded: LoadedModel) -> dict[str, Any]:
    """All that decides the figures; the number of passes allowed does not: it is raised to go on."""
    plain = asdict(request)
    for name in ("out", "store", "model", "model_cache", "max_passes", "corpus", "reuse"):
        plain.pop(name)
    if request.metric != "fisher":
        plain.pop("gradient_passages")
    return {
        "kind": "search",
        "model_id": loaded.model_id,
        "weight_digest": loaded.weight_digest,
        "store_digest": store.digest,
        "search": plain,
        "corpus": [document.digest for document in read_corpus(request.corpus, "text")] if request.corpus else [],
        "numerics_version": NUMERICS_VERSION,
    }
