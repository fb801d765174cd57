"""With exact codecs the captured replay is the naive one, written token by token in float32."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.policy import CompressionPolicy
from polykv.replay.captured import run_captured_model_replay
from polykv.replay.fixtures import CapturedReplayFixture, CapturedReplayQuery
from polykv.replay.seed_config import CapturedReplayConfig
from tests.replay.seed_samples import full_attention, naive_metrics, small_fixture

F = np.float32


@st.composite
def fixtures(draw):
    """Ragged queries of whole-number keys, so that scores are exact and ties are many; shells of one row occur.

    Values are positive, so that no output is zero: a zero vector has no cosine.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    head_dim, n_labels = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    shared = draw(st.integers(1, 4))
    lengths = draw(st.lists(st.integers(shared + 1, shared + 5), min_size=1, max_size=3))
    scale = draw(st.sampled_from([None, 1.0, 0.5, 0.125]))
    projection = rng.integers(-2, 3, size=(n_labels, head_dim)).astype(F)
    queries = []
    for length in lengths:
        query = rng.integers(-2, 3, size=head_dim).astype(F) / F(2)
        keys = rng.integers(-1, 2, size=(length, head_dim)).astype(F)
        values = rng.uniform(0.5, 2, size=(length, head_dim)).astype(F)
        output = full_attention(query, keys, values, scale)
        logits = (projection @ output).astype(F)
        queries.append(CapturedReplayQuery(query, keys, values, output, logits, int(rng.integers(n_labels))))
    return CapturedReplayFixture("h", head_dim, shared, 3, projection, tuple(queries), softmax_scale=scale)


@settings(max_examples=60)
@given(fixtures(), st.integers(1, 10), st.integers(0, 2), st.integers(0, 3))
def test_it_agrees_with_the_naive_replay(fixture, candidate_k, sinks, window):
    policy = replace(CompressionPolicy.exact(), sink_tokens=sinks, recent_window=window)
    receipt = run_captured_model_replay(fixture, CapturedReplayConfig((candidate_k,)), policy)
    found, expected = receipt.candidate_results[0], naive_metrics(fixture, candidate_k, sinks, window)
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(value, abs=2e-6, rel=2e-6), name
    assert found.full_decode_value_count == sum(len(query.keys) for query in fixture.queries)


@settings(max_examples=20)
@given(fixtures())
def test_each_budget_is_computed_as_if_alone(fixture):
    """Duplicates, any order, and budgets beyond the rows: list order is kept, no figure depends on the others."""
    asked = (9, 2, 2, 1, 100, 3)
    together = run_captured_model_replay(fixture, CapturedReplayConfig(asked), CompressionPolicy.exact())
    assert [result.candidate_k for result in together.candidate_results] == list(asked)
    for result in together.candidate_results:
        config = CapturedReplayConfig((result.candidate_k,))
        alone = run_captured_model_replay(fixture, config, CompressionPolicy.exact())
        assert alone.candidate_results[0] == result


def test_full_budgets_reach_the_exact_output():
    fixture = small_fixture(head_dim=16, lengths=(12, 30, 7), shared=5)
    result = run_captured_model_replay(fixture, CapturedReplayConfig((30,)), CompressionPolicy.exact())
    figures = result.candidate_results[0]
    assert figures.kl_divergence_mean < 1e-6
    assert figures.output_cosine_mean > 1 - 1e-9
    assert figures.decode_reduction == 1.0
    assert result.passed


def test_a_softmax_scale_is_honoured():
    """The same attention, scaled in the query or in the fixture."""
    plain = small_fixture(head_dim=16, lengths=(20,), shared=5, scale=0.25)
    scaled = replace(
        plain, softmax_scale=None, queries=tuple(replace(q, query=q.query * F(0.25)) for q in plain.queries)
    )
    config = CapturedReplayConfig((3, 20))
    one, two = (run_captured_model_replay(f, config, CompressionPolicy.exact()) for f in (plain, scaled))
    assert one.candidate_results == two.candidate_results
    assert one.metrics.output_mse_mean < 1e-12 or one.candidate_results[1].output_mse_mean < 1e-12
