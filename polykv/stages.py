"""One function a stage: what both the command line and the flows call.

    capture_stage    model and corpus → capture store
    check_sweep      request → request held against its store, refused early
    sweep_stage      checked request → run directory with its tables
    read_findings    run directory → what was found

Nothing here prints; progress goes to a callback, results come back as dataclasses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from polykv.capture import CaptureConfig
from polykv.errors import InputError
from polykv.execution.engines import Engine, Session, open_session
from polykv.execution.plan import replay_config
from polykv.execution.sweep import OnProgress, Replay, ReplaySummary
from polykv.policy import CompressionPolicy
from polykv.policy_files import Artifacts, load_policy
from polykv.replay.config import DEFAULT_GATES, NEEDS_LOGITS, PERFECT, Gate, SweepConfig, normalise_candidate_ks
from polykv.replay.rotation import cell_rotation, check_decodable
from polykv.report.compare import Movement, movements
from polykv.report.summary import PolicySummary, control_lines, headline, policy_summaries
from polykv.schemas import CONTROLS, SELECTION
from polykv.storage import CaptureStore, CaptureWriter, Location, refuse_occupied
from polykv.storage.results import read_rows
from polykv.storage.run import RunDirectory, refuse_no_place_for_a_run
from polykv.types import TIERS, Cell

__all__ = [
    "CaptureConfig",
    "CheckedSweep",
    "Engine",
    "Replay",
    "ReplaySummary",
    "RunFindings",
    "Session",
    "SweepRequest",
    "capture_stage",
    "check_request",
    "check_sweep",
    "moved_cells",
    "open_run",
    "open_session",
    "plan_capture_stage",
    "plan_sweep",
    "read_findings",
    "sweep_stage",
]

DEFAULT_POLICIES = ("two_tier", "int8")
DEFAULT_KS = ("8", "16", "32", "64", "128", "full")
# Tokens of a passage that no capture reaches: budgets are checked before there is a store to ask.
LONGEST = 2**31
FAIL_ON = ("fail", "inconclusive", "never")


@dataclass(frozen=True)
class SweepRequest:
    """A sweep as a person asks for it.

    `store` path or URL; `out` run directory; `policies` names or .json files; `ks` budgets,
    numbers or "full"; `gates` as text ("output_cosine_mean>=0.999"; none: the defaults);
    `ks_per_job` candidate_ks per job (None: all in one); `layers` of the model to sweep (None: all captured).
    """

    store: str
    out: str
    policies: tuple[str, ...] = DEFAULT_POLICIES
    ks: tuple[str, ...] = DEFAULT_KS
    gates: tuple[str, ...] = ()
    shared_tokens: int | None = None
    seed: int = 42
    ks_per_job: int | None = None
    layers: tuple[int, ...] | None = None


@dataclass(frozen=True)
class CheckedSweep:
    """A request held against its store: everything a run needs, before any work."""

    request: SweepRequest
    store: CaptureStore
    policies: tuple[CompressionPolicy, ...]
    config: SweepConfig
    artifacts: tuple[Artifacts, ...]
    notes: tuple[str, ...] = ()

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells to sweep: all captured ones of the layers asked for."""
        return _cells(self.store, self.request.layers)


def parse_gate(text: str) -> Gate:
    """A gate from text: "output_cosine_mean>=0.999" or "output_relative_error_mean<=0.05"."""
    found = re.fullmatch(r"\s*([a-z0-9_]+)\s*(>=|<=)\s*([^\s]+)\s*", text)
    if not found:
        raise InputError(f'gate {text!r} is not "metric>=limit" or "metric<=limit"; metrics: {", ".join(PERFECT)}')
    metric, sign, limit = found.groups()
    try:
        number = float(limit)
    except ValueError as error:
        raise InputError(f"gate {text!r}: {limit!r} is not a number") from error
    return Gate(metric, "min" if sign == ">=" else "max", number)


def parse_ks(texts: Sequence[str]) -> list[int | str]:
    """Budgets from text; "full" stays a word."""
    found: list[int | str] = []
    for text in texts:
        if text == "full":
            found.append(text)
            continue
        try:
            found.append(int(text))
        except ValueError as error:
            raise InputError(f'candidate_k {text!r} is neither a whole number nor "full"') from error
    return found


def check_request(request: SweepRequest) -> list[tuple[CompressionPolicy, Artifacts]]:
    """Refuse what no store could make right (policies, budgets, gates, seed, the run's place); returns the policies.

    A calibration with a model asks this before the capture, which may take hours.
    """
    loaded = [load_policy(name) for name in request.policies]
    if not loaded:
        raise InputError("no policy to sweep; for example --policy two_tier,int8")
    names = [policy.name for policy, _ in loaded]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise InputError(f"two policies are named {twice!r}; a table needs one name a policy")
    if request.ks_per_job is not None and request.ks_per_job < 1:
        raise InputError(f"ks_per_job is {request.ks_per_job}, must be at least 1")
    _config(request, LONGEST)
    refuse_no_place_for_a_run(request.out)
    return loaded


def check_sweep(request: SweepRequest, storage_options: dict[str, Any] | None = None) -> CheckedSweep:
    """Open the store and refuse what cannot work: policies, budgets, gates, layers, head_dims, splits, tiers."""
    loaded = check_request(request)
    store = CaptureStore.open(request.store, storage_options)
    config, notes = _config(request, store.meta.n_tokens)
    cells = _cells(store, request.layers)
    _check_splits(store)
    _check_gates(store, config)
    _check_tiers(store, config)
    for policy, artifacts in loaded:
        _check_codecs(store, cells, policy, artifacts)
        notes += _policy_notes(cells, policy)
    policies, artifacts = zip(*loaded, strict=True)
    checked = CheckedSweep(request, store, policies, config, artifacts, tuple(notes))
    refuse_no_place_for_a_run(request.out, _run_config(checked))
    return checked


def _config(request: SweepRequest, n_tokens: int) -> tuple[SweepConfig, list[str]]:
    ks, notes = normalise_candidate_ks(parse_ks(request.ks), n_tokens)
    gates = tuple(parse_gate(text) for text in request.gates) or DEFAULT_GATES
    return SweepConfig(ks, request.shared_tokens, gates, request.seed), list(notes)


def _cells(store: CaptureStore, layers: Sequence[int] | None) -> tuple[Cell, ...]:
    if layers is None:
        return store.meta.cells
    known = [spec.layer for spec in store.meta.layers]
    absent = [layer for layer in layers if layer not in known]
    if absent or not layers:
        what = f"layer {absent[0]} is not in the capture" if absent else "no layer is asked for"
        raise InputError(f"{what}; {store.url} has {', '.join(map(str, known))}")
    return tuple(cell for cell in store.meta.cells if cell.layer in layers)


def _check_splits(store: CaptureStore) -> None:
    needed = {"select": "to choose candidate_k", "confirm": "for the verdict"}
    for split, why in needed.items():
        if not store.meta.passages(split):
            raise InputError(f"{store.url} has no passage of split {split!r}, needed {why}; capture more passages")


def _check_gates(store: CaptureStore, config: SweepConfig) -> None:
    """A gate on what the capture cannot show would fail every cell without a word about compression."""
    asked = [gate.metric for gate in config.gates if gate.metric in NEEDS_LOGITS]
    if asked and not store.meta.n_labels:
        raise InputError(
            f"gate on {asked[0]}: {store.url} holds no logits ({store.meta.logits_reason}); "
            "capture with --labels, or gate another metric"
        )


def _check_tiers(store: CaptureStore, config: SweepConfig) -> None:
    if config.shared_tokens is not None and config.shared_tokens >= store.meta.n_tokens:
        raise InputError(
            f"shared_tokens {config.shared_tokens} must be below the {store.meta.n_tokens} tokens of a passage: "
            "the shell would be empty"
        )


def _policy_notes(cells: Sequence[Cell], policy: CompressionPolicy) -> list[str]:
    """What of a policy this sweep does not use."""
    notes = []
    absent = sorted(set(policy.cells) - {cell.key for cell in cells})
    if absent:
        notes.append(f"policy {policy.name!r} has {len(absent)} cell(s) that are not swept, such as {absent[0]}")
    if policy.candidate_k is not None or any("candidate_k" in cell for cell in policy.cells.values()):
        notes.append(f"policy {policy.name!r} names candidate_k: a sweep measures --ks and chooses anew")
    return notes


def _check_codecs(store: CaptureStore, cells: Sequence[Cell], policy: CompressionPolicy, artifacts: Artifacts) -> None:
    """Build every codec and rotation a sweep needs: a head_dim one cannot take, a lost artifact shows here."""
    for layer, kv_head in cells:
        spec = store.meta.layer(layer)
        for tier in TIERS:
            policy.codec(tier, "key", layer, kv_head, spec.head_dim, artifacts)
            policy.codec(tier, "value", layer, kv_head, spec.value_dim, artifacts)
        rotation = cell_rotation(policy, spec, kv_head, artifacts)
        for tier in TIERS if rotation is not None else ():
            check_decodable(policy.codec(tier, "key", layer, kv_head, spec.head_dim, artifacts), policy)


def open_run(checked: CheckedSweep) -> RunDirectory:
    """The run directory of a sweep, made or continued, as its only writer."""
    run = RunDirectory.create_or_resume(checked.request.out, _run_config(checked))
    run.record("request", asdict(checked.request))
    for policy, artifacts in zip(checked.policies, checked.artifacts, strict=True):
        for digest in policy.artifacts:
            run.save_artifact(artifacts(digest))  # the workers read them from the run
    return run


def _run_config(checked: CheckedSweep) -> dict[str, Any]:
    config = replay_config(checked.store, checked.policies, checked.config, checked.cells)
    return config | {"model_id": checked.store.meta.model_id}


def plan_sweep(checked: CheckedSweep, run: RunDirectory, on_progress: OnProgress | None = None) -> Replay:
    """What is missing from the run, as a replay whose layers can be run one by one or together."""
    return Replay.planned(
        checked.store,
        checked.policies,
        checked.config,
        run,
        checked.request.ks_per_job,
        checked.cells,
        on_progress=on_progress,
    )


def sweep_stage(
    checked: CheckedSweep,
    engine: Engine,
    on_progress: OnProgress | None = None,
    records: Mapping[str, str] | None = None,
) -> ReplaySummary:
    """The whole sweep into its run directory; `records`: what run.json says of other stages."""
    with open_run(checked) as run:
        for name, text in (records or {}).items():
            run.record(name, text)
        replay = plan_sweep(checked, run, on_progress)
        with open_session(engine) as session:
            replay.run_all(session)
        return replay.finish(engine)


@dataclass(frozen=True)
class RunFindings:
    """What a finished run found: the sentence, a summary a policy, and the selection's rows."""

    path: str
    run_id: str
    status: str
    model_id: str
    sentence: str
    policies: tuple[PolicySummary, ...]
    cells: tuple[dict[str, Any], ...]
    controls: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """The best policy's verdict over all cells: pass when one holds every cell it can be judged on."""
        orders = ("pass", "inconclusive", "fail")
        return min((p.verdict for p in self.policies), key=orders.index, default="fail")

    def fails(self, fail_on: str) -> bool:
        """Whether the command should exit with 1 (see `FAIL_ON`)."""
        if fail_on == "never":
            return False
        return self.verdict == "fail" or (fail_on == "inconclusive" and self.verdict != "pass")


def read_findings(path: str | Path) -> RunFindings:
    """Read what a run found from its tables; raises StoreError for a run that has none yet."""
    run = RunDirectory.open(path)
    cells = read_rows(run.existing_table(SELECTION.name), SELECTION)
    controls = read_rows(run.existing_table(CONTROLS.name), CONTROLS)
    policies = policy_summaries(cells)
    model_id = str(run.config.get("model_id", "the model"))
    return RunFindings(
        str(path),
        run.run_id,
        run.status,
        model_id,
        headline(policies, model_id),
        tuple(policies),
        tuple(cells),
        tuple(control_lines(controls)),
    )


def moved_cells(baseline: str | Path, path: str | Path) -> list[Movement]:
    """Cells of a run that left the interval of the same cell in a baseline run, worse ones first."""
    return movements(read_findings(baseline).cells, read_findings(path).cells)


def plan_capture_stage(config: CaptureConfig, out: str, on_load: Callable[[], None] | None = None) -> Any:
    """Load the model and rehearse one passage; a target that exists is refused before that.

    `on_load` is called when the files are in order and the model begins to load.
    """
    from polykv.capture.plan import plan_capture

    refuse_occupied(Location.of(out))
    return plan_capture(config, on_load=on_load)


def capture_stage(plan: Any, out: str, on_passage: Callable[[int, int], None] | None = None) -> Any:
    """Capture every passage of a plan into a new, sealed store at `out`."""
    from polykv.capture.run import capture_to_store

    return capture_to_store(plan, CaptureWriter.create(out, plan.meta), on_passage)
