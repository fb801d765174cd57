"""Plans judged one after the other on the same passages: what a search asks a model again and again.

judge = Judge(loaded, passages, config)         # the baseline of a passage is computed once
judged = judge.judge(plans)                     # a forward pass a passage
judged.kl.mean(), judged.bytes_per_token

No controls and no verdict: those are `certify_policies`' business, and a search ends with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from polykv.capture.forward import probe_layers
from polykv.capture.models import LoadedModel
from polykv.capture.plan import check_model, check_token_ids
from polykv.certify.cells import CellPlan
from polykv.certify.config import CertifyConfig
from polykv.certify.inject import baseline_logits, policy_logits
from polykv.certify.metrics import compare_logits
from polykv.types import Cell, LayerSpec

_PROBE_TOKENS = 4


@dataclass(frozen=True, eq=False)
class Judged:
    """log_ratio, kl [passage] float64 in nats (means over the scored tokens); bytes_per_token: codes of
    the planned cells, K and V; decoded, visible: values over all scored queries of those cells."""

    log_ratio: np.ndarray
    kl: np.ndarray
    bytes_per_token: float
    decoded: int
    visible: int

    @property
    def ppl_increase(self) -> float:
        """Perplexity ratio − 1."""
        return float(np.expm1(self.log_ratio.mean()))


class Judge:
    """A model with its baseline on `passages`, [token] int64 each of config.n_tokens tokens.

    tick() is called after every forward pass. Baselines are kept as float32 logits of the scored
    tokens: 50 MB a passage at 256 tokens and 49,152 token ids.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        passages: Sequence[np.ndarray],
        config: CertifyConfig,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        check_model(loaded, config.n_tokens)
        check_token_ids(loaded, passages)
        self._model, self._passages, self._tick = loaded.model, tuple(passages), tick
        self._shared = config.shared
        self._queries = np.arange(config.first_scored - 1, config.n_tokens - 1)
        self._baselines: dict[int, np.ndarray] = {}
        self.n_passages, self.n_tokens = len(self._passages), config.n_tokens
        specs, _ = probe_layers(loaded.model, passages[0][:_PROBE_TOKENS])
        self.specs: Mapping[int, LayerSpec] = specs

    def judge(self, plans: Mapping[Cell, CellPlan], n_passages: int | None = None) -> Judged:
        """`plans` on the first n_passages (None: all); layers without a plan stay as they are."""
        ratios, kls, n_bytes, decoded, visible = [], [], 0, 0, 0
        asked = self._passages[:n_passages]
        with threadpool_limits(limits=1, user_api="blas"):
            for i, token_ids in enumerate(asked):
                logits, uses = policy_logits(self._model, token_ids, self._queries, plans, self._shared)
                self._tick()
                figures = compare_logits(self._baseline(i), logits, token_ids[self._queries + 1])
                ratios.append(figures.log_ratio.mean())
                kls.append(figures.kl.mean())
                n_bytes += sum(use.code_bytes for use in uses)
                decoded += sum(int(use.decoded[self._queries].sum()) for use in uses)
                visible += sum(int(use.visible[self._queries].sum()) for use in uses)
        per_token = n_bytes / (len(asked) * self.n_tokens)
        return Judged(np.array(ratios), np.array(kls), per_token, decoded, visible)

    def passes_of(self, n_passages: int | None = None) -> int:
        """Forward passes that judging the first n_passages (None: all) would take now, missing baselines included."""
        asked = range(self.n_passages)[:n_passages]
        return len(asked) + sum(i not in self._baselines for i in asked)

    def _baseline(self, i: int) -> np.ndarray:
        if i not in self._baselines:
            self._baselines[i] = baseline_logits(self._model, self._passages[i], self._queries)
            self._tick()
        return self._baselines[i]
