"""Receipts of the seed's two replays: its JSON, field by field, read and written strictly (seed document 003).

One key goes beyond the seed, and its reader ignores it: `provenance`, which names the policy, the input's
digest, the softmax scale, and what the exact side is. A figure that is not finite is null and
blocks as "non_finite: name": here NaN never passes a gate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields, replace
from typing import Any, ClassVar, Self

from polykv.errors import ReceiptError
from polykv.records import Comparison, Record, optional
from polykv.replay.gates import blockers
from polykv.replay.seed_config import CapturedReplayConfig, ModelReplayConfig, SeedGates
from polykv.strict import items, within

MODEL_REPLAY_RECEIPT_SCHEMA = "poly_kv_model_replay_receipt_v1"
CAPTURED_MODEL_REPLAY_RECEIPT_SCHEMA = "poly_kv_captured_model_replay_v1"
_NOT_MORE = "not production KV-cache preservation, and not provider/framework KV-cache byte-reduction evidence"
MODEL_CLAIM = f"deterministic model-shaped replay over synthetic projection; not real model PPL, {_NOT_MORE}"
CAPTURED_CLAIM = f"captured tensor replay against fixture Q/K/V/logits; not pretrained LLM PPL, {_NOT_MORE}"
BODY_DIGEST = "body_digest"
_ABS_DELTA = "abs(ppl_proxy_delta)"


@dataclass(frozen=True)
class CandidateReplayMetrics(Record):
    """One candidate_k: means over the queries, counts over all of them, gates judged."""

    candidate_k: int
    output_cosine_mean: float | None
    output_mse_mean: float | None
    kl_divergence_mean: float | None
    top1_agreement: float | None
    ppl_proxy_exact: float | None
    ppl_proxy_compressed: float | None
    ppl_proxy_delta: float | None
    decoded_values_total: int
    full_decode_value_count: int
    decode_reduction: float
    passed: bool
    blockers: tuple[str, ...]


@dataclass(frozen=True)
class ModelReplayMetrics(Record):
    """The selected candidate_k's figures, and how many queries they are of."""

    query_count: int
    exact_attention_outputs: int
    logit_vectors_compared: int
    output_cosine_mean: float | None
    output_mse_mean: float | None
    kl_divergence_mean: float | None
    top1_agreement: float | None
    ppl_proxy_exact: float | None
    ppl_proxy_compressed: float | None
    ppl_proxy_delta: float | None
    decoded_values_total: int
    full_decode_value_count: int
    decode_reduction: float


_FIGURES = [item.name for item in fields(ModelReplayMetrics)[3:]]


@dataclass(frozen=True)
class _ReplayReceipt(Record):
    """What both receipts share: how they are read, put together and checked."""

    config_type: ClassVar[type[SeedGates]]
    claim: ClassVar[str]

    @classmethod
    def read_field(cls, item: Field[Any], value: Any, place: str) -> Any:
        kinds = {"config": cls.config_type, "metrics": ModelReplayMetrics}
        if item.name in kinds:
            return _read(kinds[item.name], value, f"{item.name}: ")
        if item.name == "candidate_results":
            listed = enumerate(items(value, place))
            return tuple(_read(CandidateReplayMetrics, one, f"{item.name}[{i}]: ") for i, one in listed)
        return super().read_field(item, value, place)

    @classmethod
    def assemble(
        cls, config: SeedGates, results: Sequence[CandidateReplayMetrics], n_queries: int, **more: Any
    ) -> Self:
        """The receipt of these results: the first that passes in list order is selected, else the last."""
        chosen = selected(results)
        return cls(
            schema_version=cls.schema,
            claim_boundary=cls.claim,
            config=config,
            selected_candidate_k=chosen.candidate_k,
            candidate_results=tuple(results),
            metrics=_metrics_of(chosen, n_queries),
            passed=chosen.passed,
            blockers=chosen.blockers,
            **more,
        )

    def body_digest(self) -> str:
        """blake3 of the receipt's canonical JSON, a `body_digest` in its provenance left out."""
        rest = {name: value for name, value in (self.provenance or {}).items() if name != BODY_DIGEST}
        return replace(self, provenance=rest or None).digest()

    def with_body_digest(self) -> Self:
        """The receipt with its body's digest in its provenance: any field changed later shows."""
        return replace(self, provenance={**(self.provenance or {}), BODY_DIGEST: self.body_digest()})

    def verify(self) -> tuple[str, ...]:
        """Recompute gates, selection, ratios and totals from the receipt's own figures, and the digest of its
        body where it states one; returns the names checked.

        Raises ReceiptError naming every field that disagrees.
        """
        if not self.candidate_results:
            raise ReceiptError(f"{self.schema} does not hold: candidate_results is empty")
        found = Comparison(self.schema)
        found.equal("claim_boundary", self.claim_boundary, self.claim)
        found.equal("candidate_ks", self.config.candidate_ks, tuple(r.candidate_k for r in self.candidate_results))
        unmeasured = bool((self.provenance or {}).get("logits_reason"))
        for i, result in enumerate(self.candidate_results):
            _check_result(found, f"candidate_results[{i}]", result, self.config, unmeasured)
        chosen = selected(self.candidate_results)
        found.equal("selected_candidate_k", self.selected_candidate_k, chosen.candidate_k)
        found.equal("passed", self.passed, chosen.passed)
        found.equal("blockers", self.blockers, chosen.blockers)
        found.equal("metrics", self.metrics, _metrics_of(chosen, self.metrics.query_count))
        if BODY_DIGEST in (self.provenance or {}):  # an earlier release wrote none
            found.equal(f"provenance.{BODY_DIGEST}", self.provenance[BODY_DIGEST], self.body_digest())
        return found.finish()


@dataclass(frozen=True)
class ModelReplayReceipt(_ReplayReceipt):
    """Receipt of `run_model_replay`: its exact side is the decoded pool and shell, so it measures selection alone."""

    schema_version: str
    claim_boundary: str
    config: ModelReplayConfig
    selected_candidate_k: int
    candidate_results: tuple[CandidateReplayMetrics, ...]
    metrics: ModelReplayMetrics
    passed: bool
    blockers: tuple[str, ...]
    provenance: Mapping[str, Any] | None = optional()

    schema: ClassVar[str] = MODEL_REPLAY_RECEIPT_SCHEMA
    claim: ClassVar[str] = MODEL_CLAIM
    config_type: ClassVar[type[SeedGates]] = ModelReplayConfig


@dataclass(frozen=True)
class CapturedReplayReceipt(_ReplayReceipt):
    """Receipt of `run_captured_model_replay`: its exact side is what the fixture holds."""

    schema_version: str
    model_id: str
    claim_boundary: str
    config: CapturedReplayConfig
    selected_candidate_k: int
    candidate_results: tuple[CandidateReplayMetrics, ...]
    metrics: ModelReplayMetrics
    passed: bool
    blockers: tuple[str, ...]
    provenance: Mapping[str, Any] | None = optional()

    schema: ClassVar[str] = CAPTURED_MODEL_REPLAY_RECEIPT_SCHEMA
    claim: ClassVar[str] = CAPTURED_CLAIM
    config_type: ClassVar[type[SeedGates]] = CapturedReplayConfig


def selected(results: Sequence[CandidateReplayMetrics]) -> CandidateReplayMetrics:
    """The first that passes in list order, else the last (not the best)."""
    return next((result for result in results if result.passed), results[-1])


def seed_blockers(config: SeedGates, figures: Mapping[str, float | None], only: Sequence[str] = ()) -> tuple[str, ...]:
    """Texts of the gates that `figures` (fields of CandidateReplayMetrics) do not meet, in the seed's order.

    `only` restricts to these gates' names (empty: all).
    """
    gates = [gate for gate in config.gates() if not only or gate.metric in only]
    delta = figures["ppl_proxy_delta"]
    values = dict(figures) | {_ABS_DELTA: None if delta is None else abs(delta)}
    return blocker_texts(config, blockers(gates, values))


def blocker_texts(config: SeedGates, found: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The seed's wording of blockers {gate, value, limit}: "output_mse_mean 0.2860 > 0.2500"."""
    sign = {gate.metric: "<" if gate.direction == "min" else ">" for gate in config.gates()}
    return tuple(
        one["gate"]
        if one["value"] is None
        else f"{one['gate']} {one['value']:.4f} {sign[one['gate']]} {one['limit']:.4f}"
        for one in found
    )


def _check_result(
    found: Comparison, place: str, result: CandidateReplayMetrics, config: SeedGates, unmeasured: bool
) -> None:
    figures = {item.name: getattr(result, item.name) for item in fields(result)}
    exact, compressed = result.ppl_proxy_exact, result.ppl_proxy_compressed
    delta = None if exact is None or compressed is None else compressed - exact
    found.close(f"{place}.ppl_proxy_delta", result.ppl_proxy_delta, delta, 1e-12)
    reduction = result.full_decode_value_count / max(1, result.decoded_values_total)
    found.close(f"{place}.decode_reduction", result.decode_reduction, reduction, 1e-12)
    # without logits the label gates were never judged
    only = [gate.metric for gate in config.gates()[:2]] if unmeasured else []
    found.equal(f"{place}.blockers", result.blockers, seed_blockers(config, figures, only))
    found.equal(f"{place}.passed", result.passed, not result.blockers)


def _metrics_of(chosen: CandidateReplayMetrics, n_queries: int) -> ModelReplayMetrics:
    return ModelReplayMetrics(n_queries, n_queries, n_queries, **{name: getattr(chosen, name) for name in _FIGURES})


def _read(kind: type[Record], value: Any, place: str) -> Any:
    if isinstance(value, kind):
        return value
    with within(place):
        return kind.from_dict(value)
