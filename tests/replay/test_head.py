"""Replaying one head: prefix sums against a token-by-token attention, over random shapes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.attention import visible_mask
from polykv.errors import NonFiniteError
from polykv.ranking import rank_candidates
from polykv.replay.head import HeadInputs, replay_head
from polykv.types import LayerSpec
from tests.replay.cells import make_inputs, slow_head


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    n_tokens=st.integers(1, 20),
    head_dim=st.integers(1, 6),
    value_dim=st.integers(1, 6),
    sliding_window=st.sampled_from([None, 1, 3, 8]),
    softcap=st.sampled_from([None, 2.0]),
    sinks=st.integers(0, 3),
    window=st.integers(0, 4),
    sink_logit=st.sampled_from([None, 0.7]),
)
def test_every_budget_agrees_with_a_token_by_token_attention(
    seed, n_tokens, head_dim, value_dim, sliding_window, softcap, sinks, window, sink_logit
):
    rng = np.random.default_rng(seed)
    spec = LayerSpec(0, 1, 1, head_dim, value_dim, 0.7, sliding_window, softcap, sink_logit is not None)
    inputs = make_inputs(rng, n_tokens, 3, head_dim, value_dim, spec, sinks, window, sink_logit, 0.3)
    budgets = np.array([1, 2, 5, n_tokens])
    figures = replay_head(inputs, spec, budgets)
    visible = visible_mask(inputs.positions, n_tokens, sliding_window)
    for q in range(3):
        everything = set(np.flatnonzero(visible[q]))
        exact = set(np.flatnonzero(inputs.exact_tokens[q]))
        best = sorted(everything - exact, key=lambda t, q=q: (-inputs.codec_scores[q, t], t))
        truth, true_weights = slow_head(
            inputs.queries[q], inputs.positions[q], inputs.keys, inputs.values, spec, everything,
            inputs.codec_scores[q], inputs.values, everything, sink_logit,
        )  # fmt: skip
        np.testing.assert_allclose(figures.exact_output[q], truth, atol=1e-9)
        for column, budget in enumerate(budgets):
            kept = set(best[:budget])
            output, weights = slow_head(
                inputs.queries[q], inputs.positions[q], inputs.keys, inputs.values, spec, kept,
                inputs.codec_scores[q], inputs.decoded_values, exact, sink_logit,
            )  # fmt: skip
            np.testing.assert_allclose(figures.outputs[q, column], output, atol=1e-9)
            mass = sum(true_weights[t] for t in exact | kept) / sum(true_weights.values())
            np.testing.assert_allclose(figures.mass_kept[q, column], mass, atol=1e-9)
            kl = sum(w * np.log(w / true_weights[t]) for t, w in weights.items())
            if sink_logit is not None:
                left, right = 1 - sum(weights.values()), 1 - sum(true_weights.values())
                kl += left * np.log(left / right)
            np.testing.assert_allclose(figures.attention_kl[q, column], kl, atol=1e-7)
        assert figures.n_candidates[q] == len(best)


def test_a_budget_does_not_depend_on_the_others_asked_for():
    rng = np.random.default_rng(1)
    spec = LayerSpec(0, 1, 1, 8, 8, 0.4)
    inputs = make_inputs(rng, 40, 4, 8, 8, spec, 2, 5, None, 0.2)
    together = replay_head(inputs, spec, np.array([0, 1, 3, 7, 20, 40]))
    for column, budget in enumerate([0, 1, 3, 7, 20, 40]):
        alone = replay_head(inputs, spec, np.array([budget]))
        for name in ("outputs", "cosine", "relative_error", "attention_kl", "mass_kept", "topk_recall"):
            got, expected = getattr(alone, name)[:, 0], getattr(together, name)[:, column]
            assert np.array_equal(got, expected, equal_nan=True), (name, budget)


def test_ranking_is_a_total_order_with_the_lower_token_first_on_ties():
    scores = np.array([[0.5, 2.0, -0.0, 0.0, 2.0, -1.0, 9.0]], np.float32)
    candidates = np.array([[True, True, True, True, True, True, False]])
    order, count = rank_candidates(scores, candidates)
    assert order.tolist() == [[1, 4, 0, 3, 2, 5, 6]]
    assert count.tolist() == [6]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_is_refused_with_its_place(bad):
    scores = np.zeros((2, 3), np.float32)
    scores[1, 2] = bad
    with pytest.raises(NonFiniteError, match="query 1, token 2"):
        rank_candidates(scores, np.ones((2, 3), bool))
    order, _ = rank_candidates(scores, np.array([[True] * 3, [True, True, False]]))
    assert order.shape == (2, 3)


def test_a_zero_output_has_no_cosine_and_loses_nothing():
    spec = LayerSpec(0, 1, 1, 4, 4, 1.0)
    rng = np.random.default_rng(2)
    inputs = make_inputs(rng, 6, 2, 4, 4, spec, 0, 0, None, 0.0)
    zero = np.zeros_like(inputs.values)
    figures = replay_head(
        HeadInputs(
            inputs.queries, inputs.positions, inputs.keys, zero, inputs.codec_scores,
            inputs.score_offset, zero, inputs.exact_tokens,
        ),
        spec,
        np.array([6]),
    )  # fmt: skip
    assert np.isnan(figures.cosine).all()
    assert (figures.relative_error == 0).all()
