"""A policy's attention against two other implementations: exact attention, and the cell replay."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.attention import attend
from polykv.certify.attention import attend_layer
from polykv.certify.cells import centred_cells, plan_cells
from polykv.errors import CodecError, NonFiniteError, PolicyError
from polykv.policy import CompressionPolicy
from polykv.ranking import best_candidates, rank_candidates
from polykv.replay.head import HeadInputs, exact_token_mask, replay_head
from polykv.replay.passage import encode_tiers
from polykv.types import Cell
from tests.certify.certify_samples import FIB, KIVI, inputs, means, plans, policy, spec

RULES = {
    "plain": {},
    "window": {"sliding_window": 7},
    "softcap": {"logit_softcap": 2.0},
    "mqa": {"n_kv_heads": 1},
    "sinks": {"has_sink_logits": True},
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("n_tokens", [48, 300])
def test_exact_policy_is_exact_attention(name, n_tokens):
    rules = spec(**RULES[name])
    given = inputs(rules, n_tokens, sinks=rules.has_sink_logits)
    out, _ = attend_layer(given, plans(CompressionPolicy.exact(), rules), n_tokens // 2)
    for head in range(rules.n_q_heads):
        kv = head // rules.group_size
        sink = float(given.sink_logits[head]) if rules.has_sink_logits else None
        expected = attend(given.queries[head], given.keys[kv], given.values[kv], np.arange(n_tokens), rules, sink)
        np.testing.assert_allclose(out[:, head], expected, atol=2e-6)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("candidate_k", "unselected"), [(None, "drop"), (3, "drop"), (3, "mean"), ("full", "mean")])
@pytest.mark.parametrize("centred", [False, True])
def test_lossy_policy_agrees_with_the_cell_replay(name, candidate_k, unselected, centred):
    rules = spec(**RULES[name])
    given = inputs(rules, sinks=rules.has_sink_logits)
    mean = means(rules) if centred else None
    chosen = policy(
        sink_tokens=2, recent_window=5, candidate_k=candidate_k, center_keys="calibrate_mean" if centred else "off",
        unselected_values=unselected,
    )  # fmt: skip
    budget = 48 if candidate_k in (None, "full") else candidate_k
    made = plans(chosen, rules, mean)
    out, uses = attend_layer(given, made, 20)
    for head in range(rules.n_q_heads):
        expected = _replayed(given, made[Cell(0, head // rules.group_size)], head, budget)
        # the first query sees only itself; the replay has no candidates there either
        np.testing.assert_allclose(out[:, head], expected.outputs[:, 0], atol=3e-6)
    for kv, use in enumerate(uses):
        heads = range(kv * rules.group_size, (kv + 1) * rules.group_size)
        replays = [_replayed(given, made[Cell(0, kv)], head, budget) for head in heads]
        assert use.visible.tolist() == sum(r.n_visible for r in replays).tolist()
        assert use.exact.tolist() == sum(r.n_exact for r in replays).tolist()
        assert use.decoded.tolist() == sum(np.minimum(r.n_candidates, budget) for r in replays).tolist()


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    "codec", [FIB, KIVI, {"id": "turbo_8bit", "bits": 8, "radii": "log_u8"}], ids=lambda c: c["id"]
)
@pytest.mark.parametrize(("n_new", "shared"), [(1, 20), (5, 46), (1, 0), (48, 60)])
@pytest.mark.parametrize("unselected", ["drop", "mean"])
def test_the_newest_queries_alone_get_what_they_get_among_all(name, codec, n_new, shared, unselected):
    """A decoding step over the cache so far is the last rows of the whole forward; counts alike."""
    rules = spec(**RULES[name])
    given = inputs(rules, sinks=rules.has_sink_logits)
    chosen = policy(
        codec, codec, sink_tokens=2, recent_window=8, candidate_k=6, center_keys="calibrate_mean",
        unselected_values=unselected,
    )  # fmt: skip
    made = plans(chosen, rules, means(rules))
    whole, all_uses = attend_layer(given, made, shared)
    step, uses = attend_layer(dataclasses.replace(given, queries=given.queries[:, -n_new:]), made, shared)
    np.testing.assert_allclose(step, whole[-n_new:], atol=1e-5)
    for use, total in zip(uses, all_uses, strict=True):
        assert use.code_bytes == total.code_bytes
        for count in ("decoded", "exact", "visible"):
            np.testing.assert_array_equal(getattr(use, count), getattr(total, count)[-n_new:])


@pytest.mark.parametrize("codec", [FIB, KIVI], ids=lambda c: c["id"])
def test_a_query_sees_the_same_before_later_tokens_come(codec):
    """Each step over a growing cache is the same row of the forward over all of it."""
    rules = spec()
    given = inputs(rules)
    made = plans(policy(codec, codec, sink_tokens=2, recent_window=8, candidate_k=6), rules)
    whole, _ = attend_layer(given, made, 20)
    for end in range(1, 49):
        part = dataclasses.replace(
            given, queries=given.queries[:, end - 1 : end], keys=given.keys[:, :end], values=given.values[:, :end]
        )
        np.testing.assert_allclose(attend_layer(part, made, 20)[0][0], whole[end - 1], atol=1e-5)


def _replayed(given, plan, head, budget):
    rules = given.spec
    kv = head // rules.group_size
    encoded = encode_tiers(given.keys[kv], given.values[kv], plan.codecs, 20, plan.key_mean)
    n_tokens = len(given.keys[kv])
    queries, positions = given.queries[head], np.arange(n_tokens)
    offset = np.zeros(n_tokens) if plan.key_mean is None else queries.astype(float) @ plan.key_mean
    exact = exact_token_mask(
        positions, n_tokens, rules.sliding_window, plan.policy.sink_tokens, plan.policy.recent_window
    )
    sink = float(given.sink_logits[head]) if rules.has_sink_logits else None
    made = HeadInputs(
        queries,
        positions,
        given.keys[kv],
        given.values[kv],
        encoded.scores(queries),
        offset,
        encoded.values(),
        exact,
        sink,
        plan.policy.unselected_values == "mean",
    )
    return replay_head(made, rules, np.array([budget]))


@pytest.mark.parametrize("codec", [FIB, KIVI, {"id": "turbo_8bit"}], ids=lambda c: c["id"])
def test_no_output_depends_on_a_later_token(codec):
    rules = spec()
    chosen = policy(codec, codec, recent_window=8, candidate_k=6)
    before = inputs(rules)
    changed = {name: getattr(before, name).copy() for name in ("queries", "keys", "values")}
    for stream in changed.values():
        stream[:, 30:] *= -3
    after = dataclasses.replace(before, **changed)
    made = plans(chosen, rules)
    first, second = (attend_layer(given, made, 20)[0] for given in (before, after))
    np.testing.assert_array_equal(first[:30], second[:30])
    assert not np.allclose(first[30:], second[30:])


def test_pool_and_shell_take_their_own_codecs():
    rules = spec()
    given = inputs(rules)
    exact = {"id": "exact_f32_fallback"}
    pool_only = dataclasses.replace(policy(), shell={"key": exact, "value": exact})
    out, uses = attend_layer(given, plans(pool_only, rules), 20)
    true, _ = attend_layer(given, plans(CompressionPolicy.exact(), rules), 20)
    everywhere, more = attend_layer(given, plans(policy(), rules), 20)
    assert np.abs(out - true).max() > 1e-2
    np.testing.assert_array_equal(out[:20], everywhere[:20])
    assert np.abs(out[20:] - everywhere[20:]).max() > 1e-2
    assert uses[0].code_bytes > more[0].code_bytes


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.booleans())
def test_best_candidates_are_the_prefix_of_the_ranking(seed, budget, ties):
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((5, 9)).astype(np.float32)
    if ties:
        scores = np.round(scores)  # zeros of both signs among them
    candidates = rng.random((5, 9)) < 0.7
    order, count = rank_candidates(scores, candidates)
    expected = np.zeros_like(candidates)
    for query in range(5):
        expected[query, order[query, : min(budget, count[query])]] = True
    np.testing.assert_array_equal(best_candidates(scores, candidates, budget), expected)


def test_a_score_that_is_no_number_is_refused():
    scores = np.array([[1.0, np.nan]], np.float32)
    with pytest.raises(NonFiniteError, match="query 0, token 1"):
        best_candidates(scores, np.ones((1, 2), bool), 1)
    assert best_candidates(scores, np.array([[True, False]]), 1).tolist() == [[True, False]]


def test_a_group_longer_than_the_window_is_refused_with_both_numbers():
    with pytest.raises(PolicyError, match=r"codes 8 tokens together.*the 7 newest.*at least 8"):
        plans(policy(KIVI, KIVI, recent_window=7), spec())
    plans(policy(KIVI, KIVI, recent_window=8), spec())


def test_what_the_model_cannot_take_is_refused_by_name():
    with pytest.raises(PolicyError, match=r"'9/0'.*1 layers, 2 cells"):
        plans(policy(cells={"9/0": {"candidate_k": 3}}), spec())
    with pytest.raises(PolicyError, match=r"centres the keys of cell 0/1"):
        plans(policy(center_keys="calibrate_mean"), spec(), {Cell(0, 0): np.zeros(16, np.float32)})
    with pytest.raises(CodecError, match="head_dim is 6"):
        plans(policy(), spec(head_dim=6))


def test_overrides_of_one_cell_stay_there():
    rules = spec()
    chosen = policy(
        center_keys="calibrate_mean",
        cells={"0/1": {"candidate_k": 3, "center_keys": "off", "sink_tokens": 1}},
        sink_tokens=4,
    )
    made = plan_cells(chosen, {0: rules}, means(rules))
    assert made[Cell(0, 0)].candidate_k is None
    assert made[Cell(0, 1)].candidate_k == 3
    assert made[Cell(0, 1)].key_mean is None
    assert centred_cells(chosen, {0: rules}) == {Cell(0, 0): 4}


@pytest.mark.parametrize(
    ("changes", "lossless"),
    [({}, True), ({"candidate_k": "full"}, True), ({"candidate_k": 48}, True), ({"candidate_k": 47}, False)],
)
def test_lossless_is_exact_codecs_and_every_candidate(changes, lossless):
    exact = {"id": "exact_f32_fallback"}
    made = plans(policy(exact, exact, **changes), spec())
    assert all(plan.is_lossless(48) is lossless for plan in made.values())
    assert not plans(policy(exact, FIB), spec(value_dim=16))[Cell(0, 0)].is_lossless(48)
