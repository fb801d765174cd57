"""The certification itself: baseline and policies over the same passages, controls first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from polykv.capture.forward import probe_layers
from polykv.capture.models import LoadedModel
from polykv.capture.plan import check_model, check_token_ids
from polykv.certify.attention import CellUse
from polykv.certify.cells import Artifacts, CellPlan, plan_cells
from polykv.certify.checks import Controls, check_causal, check_engaged, check_exact, check_zeroed, exchanged
from polykv.certify.config import CertifyConfig
from polykv.certify.inject import baseline_logits, policy_logits, zeroed_logits
from polykv.certify.metrics import TokenFigures, compare_logits
from polykv.certify.passages import EvaluationText
from polykv.errors import InputError
from polykv.policy import CompressionPolicy
from polykv.types import Cell, LayerSpec

# Enough to reach every layer once, and to see its rules.
_PROBE_TOKENS = 4
_CONTROL_PASSES = 3

Progress = Callable[[int, int, int], None]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A policy to certify, the mean keys it subtracts (None: keys stay as they are; `means_source`
    says where they come from, or why there are none) and the loader of its trained codecs."""

    policy: CompressionPolicy
    means: Mapping[Cell, np.ndarray] | None = None
    means_source: str = "not centred"
    artifacts: Artifacts | None = None


@dataclass(eq=False)
class PolicyFigures:
    """What one policy did: token figures of each passage, and what its cells used in all of them.

    code_bytes [passage → cell → bytes] is summed over passages; decoded, exact and visible count
    values of the scored queries only.
    """

    candidate: Candidate
    plans: Mapping[Cell, CellPlan]
    passages: list[TokenFigures] = field(default_factory=list)
    code_bytes: dict[Cell, int] = field(default_factory=dict)
    decoded: int = 0
    exact: int = 0
    visible: int = 0

    def add(self, figures: TokenFigures, uses: Sequence[CellUse], queries: np.ndarray) -> None:
        """Take in one passage; `queries` [query] are the positions that were scored."""
        self.passages.append(figures)
        for use in uses:
            self.code_bytes[use.cell] = self.code_bytes.get(use.cell, 0) + use.code_bytes
            self.decoded += int(use.decoded[queries].sum())
            self.exact += int(use.exact[queries].sum())
            self.visible += int(use.visible[queries].sum())


@dataclass(frozen=True, eq=False)
class Certification:
    """All that was measured: `policies` in the order asked, `controls` on the first passage."""

    config: CertifyConfig
    specs: Mapping[int, LayerSpec]
    text: EvaluationText
    policies: tuple[PolicyFigures, ...]
    controls: Controls


def certify_policies(
    loaded: LoadedModel,
    text: EvaluationText,
    candidates: Sequence[Candidate],
    config: CertifyConfig,
    progress: Progress | None = None,
) -> Certification:
    """Certify `candidates` on `text`; everything that can be refused is refused before the first pass.

    `progress(done, failed, total)` counts forward passes. Raises CertifyError when a control
    fails, PolicyError or CodecError for a policy this model cannot take.
    """
    names = [candidate.policy.name for candidate in candidates]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise InputError(f"two policies are named {twice!r}; a table needs one name a policy")
    lengths = {len(ids) for ids in text.token_ids}
    if lengths != {config.n_tokens}:
        raise InputError(f"passages have {sorted(lengths)} tokens, all must have {config.n_tokens}")
    check_model(loaded, config.n_tokens)
    check_token_ids(loaded, text.token_ids)
    specs, _ = probe_layers(loaded.model, text.token_ids[0][:_PROBE_TOKENS])
    found = tuple(PolicyFigures(c, plan_cells(c.policy, specs, c.means, c.artifacts)) for c in candidates)
    total = len(text.token_ids) * (1 + len(found)) + _CONTROL_PASSES + len(found)
    runner = _Runner(loaded.model, config, specs, _counter(progress, total))
    # numpy's BLAS on one thread: reproducible sums, and no fight with the model's own threads
    with threadpool_limits(limits=1, user_api="blas"):
        controls = _certify_all(runner, text.token_ids, found, loaded.n_token_ids)
    return Certification(config, specs, text, found, controls)


def _certify_all(
    runner: _Runner, passages: Sequence[np.ndarray], found: Sequence[PolicyFigures], n_token_ids: int
) -> Controls:
    baseline = runner.baseline(passages[0])
    first = _shared_controls(runner, passages[0], baseline, n_token_ids)
    for i, token_ids in enumerate(passages):
        baseline = runner.baseline(token_ids) if i else baseline
        for figures in found:
            _measure(runner, token_ids, baseline, figures, None if i else first)
    return first.controls


class _Runner:
    """Forward passes over one model; each one ticks."""

    def __init__(
        self, model: Any, config: CertifyConfig, specs: Mapping[int, LayerSpec], tick: Callable[[], None]
    ) -> None:
        self.model = model
        self.shared = config.shared
        self.specs = specs
        self.queries = np.arange(config.first_scored - 1, config.n_tokens - 1)
        self.first_exchanged = (config.first_scored + config.n_tokens) // 2
        self.tick = tick

    @property
    def before_exchange(self) -> int:
        """How many of the scored queries stand before the first exchanged token."""
        return int((self.queries < self.first_exchanged).sum())

    def baseline(self, token_ids: np.ndarray) -> np.ndarray:
        return self._ticked(baseline_logits(self.model, token_ids, self.queries))

    def zeroed(self, token_ids: np.ndarray) -> np.ndarray:
        return self._ticked(zeroed_logits(self.model, token_ids, self.queries))

    def policy(self, token_ids: np.ndarray, plans: Mapping[Cell, CellPlan]) -> tuple[np.ndarray, list[CellUse]]:
        return self._ticked(policy_logits(self.model, token_ids, self.queries, plans, self.shared))

    def compare(self, baseline: np.ndarray, other: np.ndarray, token_ids: np.ndarray) -> TokenFigures:
        return compare_logits(baseline, other, token_ids[self.queries[: len(baseline)] + 1])

    def moved(self, logits: np.ndarray, after: np.ndarray, token_ids: np.ndarray) -> float:
        """Mean KL over the queries before the exchanged tokens."""
        n = self.before_exchange
        return float(self.compare(logits[:n], after[:n], token_ids).kl.mean())

    def _ticked(self, result: Any) -> Any:
        self.tick()
        return result


@dataclass(frozen=True, eq=False)
class _First:
    """What the first passage is for: the controls, and its tokens with the last ones exchanged."""

    controls: Controls
    exchanged: np.ndarray


def _shared_controls(runner: _Runner, token_ids: np.ndarray, baseline: np.ndarray, n_token_ids: int) -> _First:
    logits, _ = runner.policy(token_ids, plan_cells(CompressionPolicy.exact(), runner.specs))
    exact_kl = float(runner.compare(baseline, logits, token_ids).kl.mean())
    check_exact(exact_kl)
    zeroed_kl = float(runner.compare(baseline, runner.zeroed(token_ids), token_ids).kl.mean())
    check_zeroed(zeroed_kl)
    other = exchanged(token_ids, runner.first_exchanged, n_token_ids)
    causal_kl = runner.moved(baseline, runner.baseline(other), token_ids)
    check_causal(causal_kl, "the model itself")
    return _First(Controls(exact_kl, zeroed_kl, causal_kl), other)


def _measure(
    runner: _Runner, token_ids: np.ndarray, baseline: np.ndarray, figures: PolicyFigures, first: _First | None
) -> None:
    """One policy over one passage; `first` holds the controls to check on the first one."""
    logits, uses = runner.policy(token_ids, figures.plans)
    compared = runner.compare(baseline, logits, token_ids)
    figures.add(compared, uses, runner.queries)
    if first is None:
        return
    name = figures.candidate.policy.name
    lossless = all(plan.is_lossless(len(token_ids)) for plan in figures.plans.values())
    engaged = float(compared.kl.mean())
    check_engaged(engaged, first.controls.exact_kl, lossless, f"policy {name!r}")
    after, _ = runner.policy(first.exchanged, figures.plans)
    causal = runner.moved(logits, after, token_ids)
    check_causal(causal, f"policy {name!r}")
    first.controls.engaged_kl[name], first.controls.causal_kl[name] = engaged, causal


def _counter(progress: Progress | None, total: int) -> Callable[[], None]:
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, 0, total)

    return tick
