"""One query head over one passage: attention at every budget, from one ranking.

The exact side is attention over the stored K and V. The compressed side attends the exact
tokens (sinks and recent window) with their exact K and V, and the best candidate_k
candidates with the codec's scores and decoded values. Candidates are ranked once; every
budget is a prefix of that ranking, read off running sums, so a budget's figures do not
depend on which others were asked for. All arithmetic is float64.

Where a policy's `unselected_values` is "mean" (`fills_unselected`) the softmax runs over all that a query sees, and the weight of the
candidates that were not selected goes to the mean of all its candidates' decoded values. Budget 0
is the control of what the exact tokens give alone: it drops the candidates, filled or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from polykv.attention import attention_logits, visible_mask
from polykv.ranking import rank_candidates
from polykv.types import LayerSpec


@dataclass(frozen=True, eq=False)
class HeadInputs:
    """What one query head attends to, with and without compression.

    queries [query, head_dim]; positions [query]; keys [token, head_dim] and values
    [token, value_dim] exact; codec_scores [query, token] float32, the estimates of q·k that
    rank; score_offset [query] float64, added to them (q·mean where keys were centred);
    decoded_values [token, value_dim]; exact_tokens [query, token] bool, attended exactly;
    fills_unselected: whether the policy's unselected_values is "mean".
    """

    queries: np.ndarray
    positions: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    codec_scores: np.ndarray
    score_offset: np.ndarray
    decoded_values: np.ndarray
    exact_tokens: np.ndarray
    sink_logit: float | None = None
    fills_unselected: bool = False


@dataclass(frozen=True, eq=False)
class HeadFigures:
    """Figures of one query head: [query, budget] unless said otherwise, float64.

    `exact_output` [query, value_dim], `outputs` [query, budget, value_dim]; the codec_* figures
    and score_correlation are [query] (full budget); counts are [query] int64. The selection_*
    figures are those of an exact codec at the same budget, filled likewise; mass_kept is the exact
    weight of the tokens attended by themselves, filled or not.
    """

    exact_output: np.ndarray
    outputs: np.ndarray
    cosine: np.ndarray
    relative_error: np.ndarray
    mse: np.ndarray
    attention_kl: np.ndarray
    mass_kept: np.ndarray
    topk_recall: np.ndarray
    selection_cosine: np.ndarray
    selection_relative_error: np.ndarray
    codec_cosine: np.ndarray
    codec_relative_error: np.ndarray
    score_correlation: np.ndarray
    n_candidates: np.ndarray
    n_exact: np.ndarray
    n_visible: np.ndarray


def exact_token_mask(
    positions: np.ndarray, n_tokens: int, sliding_window: int | None, sink_tokens: int, recent_window: int
) -> np.ndarray:
    """[query, token] bool: the first `sink_tokens` and the `recent_window` newest the query can see."""
    token = np.arange(n_tokens)[None, :]
    age = np.asarray(positions)[:, None] - token
    kept = (token < sink_tokens) | ((age >= 0) & (age < recent_window))
    return kept & visible_mask(positions, n_tokens, sliding_window)


def replay_head(inputs: HeadInputs, spec: LayerSpec, budgets: np.ndarray) -> HeadFigures:
    """Figures at every budget ([budget] int, 0 = exact tokens only)."""
    visible = visible_mask(inputs.positions, len(inputs.keys), spec.sliding_window)
    exact = inputs.exact_tokens & visible
    candidates = visible & ~exact
    values = np.asarray(inputs.values, np.float64)
    raw = np.asarray(inputs.queries, np.float64) @ np.asarray(inputs.keys, np.float64).T
    coded = inputs.codec_scores.astype(np.float64) + inputs.score_offset[:, None]
    true_logits = attention_logits(raw, spec)
    used_logits = np.where(exact, true_logits, attention_logits(coded, spec))

    order, n_candidates = rank_candidates(inputs.codec_scores, candidates)
    true = _Weights(true_logits, visible, inputs.sink_logit)
    used = _Weights(used_logits, visible, inputs.sink_logit)
    full_output = (true.weights @ values) / true.total[:, None]
    fill = inputs.fills_unselected
    decoded = np.asarray(inputs.decoded_values, np.float64)
    choice = _Choice(exact, candidates, order, budgets)
    outputs, used_sums = _prefix_attention(used, choice, values, decoded, fill, used_logits - true_logits)
    selected, true_sums = _prefix_attention(true, choice, values, values, fill)
    coded_full = _codec_at_full(used, exact, candidates, values, inputs.decoded_values)
    error = np.linalg.norm(outputs - full_output[:, None], axis=2)
    norm = np.linalg.norm(full_output, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return HeadFigures(
            exact_output=full_output,
            outputs=outputs,
            cosine=cosine(outputs, full_output[:, None]),
            relative_error=ratio(error, norm[:, None]),
            mse=np.mean((outputs - full_output[:, None]) ** 2, axis=2),
            attention_kl=_attention_kl(used, used_sums, true),
            mass_kept=true_sums.token_weight / true.weights.sum(axis=1)[:, None],
            topk_recall=_topk_recall(raw, candidates, order, n_candidates, budgets),
            selection_cosine=cosine(selected, full_output[:, None]),
            selection_relative_error=ratio(np.linalg.norm(selected - full_output[:, None], axis=2), norm[:, None]),
            codec_cosine=cosine(coded_full, full_output),
            codec_relative_error=ratio(np.linalg.norm(coded_full - full_output, axis=1), norm),
            score_correlation=_correlation(coded, raw, candidates),
            n_candidates=n_candidates,
            n_exact=exact.sum(axis=1),
            n_visible=visible.sum(axis=1),
        )


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cosine along the last axis, float64; NaN where either vector is zero (it has no direction)."""
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(norms > 0, np.sum(a * b, axis=-1) / norms, np.nan)


def ratio(error: np.ndarray, norm: np.ndarray) -> np.ndarray:
    """error / norm; 0 where both vanish (nothing was lost), NaN where only the norm does."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(norm > 0, error / norm, np.where(error == 0, 0.0, np.nan))


class _Weights:
    """Unnormalised softmax weights [query, token] of `logits` over `mask`, their total with the sink's, and the log-sum-exp."""

    def __init__(self, logits: np.ndarray, mask: np.ndarray, sink_logit: float | None) -> None:
        masked = np.where(mask, logits, -np.inf)
        self.logits = logits
        self.top = masked.max(axis=1)
        self.sink = np.zeros(len(logits))
        if sink_logit is not None:
            self.top = np.maximum(self.top, sink_logit)
            self.sink = np.exp(sink_logit - self.top)
        self.weights = np.exp(masked - self.top[:, None])
        self.total = self.weights.sum(axis=1) + self.sink
        self.log_total = self.top + np.log(self.total)


@dataclass(frozen=True, eq=False)
class _Choice:
    """Who is attended at a budget: the exact tokens and the first `budget` candidates of `order`.

    exact and candidates [query, token] bool, order [query, token] (candidates first), budgets [budget].
    """

    exact: np.ndarray
    candidates: np.ndarray
    order: np.ndarray
    budgets: np.ndarray

    @cached_property
    def step(self) -> np.ndarray:
        """[budget]: the budgets, none longer than the most candidates of a query."""
        return np.minimum(self.budgets, int(self.candidates.sum(axis=1).max(initial=0)))

    def unselected(self, weights: np.ndarray) -> np.ndarray:
        """[query, budget]: the weight of the candidates after the first `budget`; 0 at budget 0, which drops them.

        Summed from the last of all candidates, so that it is 0 where none is left, and the same
        whatever other budgets there are.
        """
        ranked = np.take_along_axis(np.where(self.candidates, weights, 0.0), self.order, axis=1)
        after = _running(ranked[:, ::-1])[:, ::-1]
        return np.where(self.budgets > 0, after[:, self.step], 0.0)

    def candidate_means(self, values: np.ndarray) -> np.ndarray:
        """[query, value_dim]: the mean of `values` [token, value_dim] over a query's candidates; 0 where it has none."""
        return (self.candidates @ values) / np.maximum(self.candidates.sum(axis=1), 1)[:, None]


@dataclass(frozen=True, eq=False)
class _PrefixSums:
    """Sums at the budgets, [query, budget]: weight of the tokens attended by themselves, of the mean, and Σ weight × logit error."""

    token_weight: np.ndarray
    mean_weight: np.ndarray
    weighted_shift: np.ndarray


def _prefix_attention(
    softmax: _Weights,
    choice: _Choice,
    exact_values: np.ndarray,
    candidate_values: np.ndarray,
    fill: bool,
    shift: np.ndarray | None = None,
) -> tuple[np.ndarray, _PrefixSums]:
    """Attention over the exact tokens and the first `budget` candidates, and with `fill` over the candidates' mean.

    Returns outputs [query, budget, value_dim] and the sums. Sums run candidate by candidate, so a
    prefix's value does not depend on what comes after it.
    """
    step = choice.step
    head = choice.order[:, : step.max(initial=0)]
    weights = np.take_along_axis(np.where(choice.candidates, softmax.weights, 0.0), head, axis=1)
    base_weight = np.where(choice.exact, softmax.weights, 0.0)
    token_weight = base_weight.sum(axis=1)[:, None] + _running(weights)[:, step]
    output = (base_weight @ exact_values)[:, None] + _running(weights[:, :, None] * candidate_values[head])[:, step]
    mean_weight = choice.unselected(softmax.weights) if fill else np.zeros_like(token_weight)
    if fill:
        share = mean_weight[:, :, None]
        np.add(output, share * choice.candidate_means(candidate_values)[:, None], out=output, where=share > 0)
    total = token_weight + mean_weight + softmax.sink[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        output = np.where(total[:, :, None] > 0, output / total[:, :, None], np.nan)
    shifted = np.zeros_like(token_weight)
    if shift is not None:
        shifted = _running(weights * np.take_along_axis(shift, head, axis=1))[:, step]
        if fill:
            shifted = np.where(mean_weight > 0, _filled_shift(softmax, choice, shift, mean_weight), shifted)
    return output, _PrefixSums(token_weight, mean_weight, shifted)


def _filled_shift(softmax: _Weights, choice: _Choice, shift: np.ndarray, mean_weight: np.ndarray) -> np.ndarray:
    """[query, budget]: Σ g (ln g + top − t) over the candidates, whose weight g holds an equal share of `mean_weight`.

    A candidate's own weight is exp(u − top) where it is selected and 0 elsewhere; with u − t its
    `shift`, t is the exact logit. Without a share ln g + top is u, and the sum is Σ exp(u − top)(u − t).
    """
    ranked = np.take_along_axis(np.where(choice.candidates, softmax.weights, 0.0), choice.order, axis=1)
    n_candidates = choice.candidates.sum(axis=1)
    is_candidate = np.arange(ranked.shape[1]) < n_candidates[:, None]
    true_logit = np.take_along_axis(softmax.logits - shift, choice.order, axis=1) - softmax.top[:, None]
    found = np.empty_like(mean_weight)
    for column, budget in enumerate(choice.budgets):
        share = (mean_weight[:, column] / np.maximum(n_candidates, 1))[:, None]
        weight = np.where(is_candidate, np.where(np.arange(ranked.shape[1]) < budget, ranked, 0.0) + share, 0.0)
        log_weight = np.log(weight, out=np.zeros_like(weight), where=weight > 0)
        found[:, column] = np.sum(weight * np.where(is_candidate, log_weight - true_logit, 0.0), axis=1)
    return found


def _running(terms: np.ndarray) -> np.ndarray:
    """Running sums along axis 1 with a leading zero: entry n is the sum of the first n terms."""
    sums = np.zeros((terms.shape[0], terms.shape[1] + 1, *terms.shape[2:]))
    np.cumsum(terms, axis=1, out=sums[:, 1:])
    return sums


def _codec_at_full(
    softmax: _Weights, exact: np.ndarray, candidates: np.ndarray, values: np.ndarray, decoded: np.ndarray
) -> np.ndarray:
    """[query, value_dim]: the compressed attention with every candidate decoded."""
    kept = np.where(exact, softmax.weights, 0.0) @ values
    coded = np.where(candidates, softmax.weights, 0.0) @ np.asarray(decoded, np.float64)
    return (kept + coded) / softmax.total[:, None]


def _attention_kl(used: _Weights, sums: _PrefixSums, true: _Weights) -> np.ndarray:
    """KL(compressed ‖ exact) of the attention weights in nats, [query, budget].

    With p = exp(u)/Z over the kept tokens and e = exp(t)/E over all: KL = Σ p (u − t) − ln Z +
    ln E. The other direction is infinite as soon as one token is dropped. Where unselected weight
    goes to the candidates' mean, every candidate has an equal share of it, on top of its own weight
    if it is selected: that is the distribution over tokens that gives the output. Rounding may
    bring a perfect match to −1e-16, which is 0.
    """
    total = sums.token_weight + sums.mean_weight + used.sink[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        kl = sums.weighted_shift / total - np.log(total) - used.top[:, None] + true.log_total[:, None]
    return np.where(total > 0, np.maximum(kl, 0.0), np.nan)


def _topk_recall(
    raw: np.ndarray, candidates: np.ndarray, order: np.ndarray, n_candidates: np.ndarray, budgets: np.ndarray
) -> np.ndarray:
    """[query, budget]: share of the exact best `budget` candidates among those kept; 1 with none to choose."""
    best, _ = rank_candidates(raw.astype(np.float32), candidates)
    n_queries, n_tokens = best.shape
    rank = np.empty_like(best)
    np.put_along_axis(rank, best, np.broadcast_to(np.arange(n_tokens), best.shape), axis=1)
    # The r-th kept token is among the exact best k, and kept, exactly when both places are below k.
    needed = np.maximum(np.take_along_axis(rank, order, axis=1), np.arange(n_tokens))
    counts = np.bincount((needed + np.arange(n_queries)[:, None] * n_tokens).ravel(), minlength=needed.size)
    hits = _running(counts.reshape(n_queries, n_tokens).astype(np.float64))
    size = np.minimum(budgets[None, :], n_candidates[:, None])
    return np.where(size > 0, np.take_along_axis(hits, size, axis=1) / np.maximum(size, 1), 1.0)


def _correlation(coded: np.ndarray, raw: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """[query] Pearson correlation over the candidates; NaN with fewer than two or no spread."""
    count = np.maximum(candidates.sum(axis=1), 1)[:, None]
    x = np.where(candidates, coded, 0.0)
    y = np.where(candidates, raw, 0.0)
    x = np.where(candidates, x - x.sum(axis=1, keepdims=True) / count, 0.0)
    y = np.where(candidates, y - y.sum(axis=1, keepdims=True) / count, 0.0)
    return cosine(x, y)
