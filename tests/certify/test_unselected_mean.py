"""unselected_values "mean" in a policy's attention: against a token-by-token float64 attention."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.certify.attention import attend_layer
from polykv.replay.passage import encode_tiers
from polykv.types import Cell
from tests.certify.certify_samples import FIB, KIVI, inputs, means, plans, policy, spec

EXACT = {"id": "exact_f32_fallback"}
RULES = {
    "plain": {},
    "window": {"sliding_window": 11},
    "softcap": {"logit_softcap": 2.0},
    "mqa": {"n_kv_heads": 1},
    "sinks": {"has_sink_logits": True},
}


def filling(key=FIB, value=FIB, **changes):
    return policy(
        key,
        value,
        **{"sink_tokens": 2, "recent_window": 5, "candidate_k": 4, "unselected_values": "mean", **changes},
    )


def slow_attention(given, plan, head, shared):
    """[query, value_dim] float64, one query and one token at a time: what the policy's field says, in a loop."""
    rules, own, kv = given.spec, plan.policy, head // given.spec.group_size
    keys, values = given.keys[kv].astype(np.float64), given.values[kv].astype(np.float64)
    encoded = encode_tiers(given.keys[kv], given.values[kv], plan.codecs, shared, plan.key_mean)
    scores, decoded = encoded.scores(given.queries[head]), encoded.values().astype(np.float64)
    out = np.empty((len(keys), values.shape[1]))
    for p, query in enumerate(given.queries[head].astype(np.float64)):
        first = 0 if rules.sliding_window is None else max(0, p - rules.sliding_window + 1)
        seen = range(first, p + 1)
        exact = [t for t in seen if t < own.sink_tokens or p - t < own.recent_window]
        others = [t for t in seen if t not in exact]
        chosen = sorted(others, key=lambda t, p=p: (-scores[p, t], t))[: plan.candidate_k]
        offset = 0.0 if plan.key_mean is None else query @ plan.key_mean
        raw = {t: query @ keys[t] if t in exact else scores[p, t] + offset for t in seen}
        logits = {t: x * rules.softmax_scale for t, x in raw.items()}
        if rules.logit_softcap:
            logits = {t: rules.logit_softcap * np.tanh(x / rules.logit_softcap) for t, x in logits.items()}
        sink = [] if given.sink_logits is None else [float(given.sink_logits[head])]
        top = max([*logits.values(), *sink])
        total = sum(np.exp(x - top) for x in [*logits.values(), *sink])
        weight = {t: np.exp(x - top) / total for t, x in logits.items()}
        out[p] = sum((weight[t] * values[t] for t in exact), np.zeros(values.shape[1]))
        out[p] += sum((weight[t] * decoded[t] for t in chosen), np.zeros(values.shape[1]))
        left = [t for t in others if t not in chosen]
        if left:
            out[p] += sum(weight[t] for t in left) * np.mean([decoded[t] for t in others], axis=0)
    return out


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("exact_tokens", [(2, 5), (0, 0), (0, 5), (60, 0)])
def test_it_is_the_mean_of_the_querys_own_candidates(name, centred, exact_tokens):
    rules = spec(**RULES[name])
    given = inputs(rules, sinks=rules.has_sink_logits)
    sinks, window = exact_tokens
    chosen = filling(
        sink_tokens=sinks, recent_window=window, center_keys="calibrate_mean" if centred else "off"
    )  # fmt: skip
    made = plans(chosen, rules, means(rules) if centred else None)
    out, _ = attend_layer(given, made, 20)
    for head in range(rules.n_q_heads):
        expected = slow_attention(given, made[Cell(0, head // rules.group_size)], head, 20)
        np.testing.assert_allclose(out[:, head], expected, atol=3e-6)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_tokens=st.integers(1, 30),
    sinks=st.integers(0, 4),
    window=st.integers(0, 6),
    sliding=st.sampled_from([None, 1, 4, 9]),
    k=st.integers(1, 12),
)
def test_random_shapes_agree_with_the_slow_attention(seed, n_tokens, sinks, window, sliding, k):
    rules = spec(sliding_window=sliding)
    sample = inputs(rules, n_tokens, seed)
    made = plans(filling(EXACT, FIB, sink_tokens=sinks, recent_window=window, candidate_k=k), rules)
    out, _ = attend_layer(sample, made, n_tokens // 2)
    for head in (0, 3):
        expected = slow_attention(sample, made[Cell(0, head // 2)], head, n_tokens // 2)
        np.testing.assert_allclose(out[:, head], expected, atol=3e-6)


@pytest.mark.parametrize("name", RULES)
def test_with_every_candidate_selected_nothing_changes_by_a_bit(name):
    rules = spec(**RULES[name])
    given = inputs(rules, 300, sinks=rules.has_sink_logits)
    for k in ("full", None, 300):
        dropping, meant = (
            attend_layer(given, plans(filling(candidate_k=k, unselected_values=how), rules), 150)
            for how in ("drop", "mean")
        )
        assert dropping[0].tobytes() == meant[0].tobytes()
    few = [
        attend_layer(given, plans(filling(candidate_k=3, unselected_values=how), rules), 150)[0][:10]
        for how in ("drop", "mean")
    ]
    # sinks, window and three candidates are all that the first ten queries see
    assert few[0].tobytes() == few[1].tobytes()


def test_it_decodes_as_many_values_and_keeps_as_many_bytes():
    rules = spec()
    given = inputs(rules)
    dropping, meant = (
        attend_layer(given, plans(filling(unselected_values=how), rules), 20) for how in ("drop", "mean")
    )
    assert not np.allclose(dropping[0], meant[0], atol=1e-3)
    for a, b in zip(dropping[1], meant[1], strict=True):
        assert a.code_bytes == b.code_bytes
        np.testing.assert_array_equal([a.decoded, a.exact, a.visible], [b.decoded, b.exact, b.visible])


@pytest.mark.parametrize("codec", [FIB, KIVI], ids=lambda c: c["id"])
@pytest.mark.parametrize("sliding", [None, 13])
def test_no_output_depends_on_a_later_token(codec, sliding):
    rules = spec(sliding_window=sliding)
    made = plans(filling(codec, codec, recent_window=8), rules)
    before = inputs(rules)
    changed = {name: getattr(before, name).copy() for name in ("queries", "keys", "values")}
    for stream in changed.values():
        stream[:, 30:] *= -3
    first, second = (attend_layer(one, made, 20)[0] for one in (before, dataclasses.replace(before, **changed)))
    np.testing.assert_array_equal(first[:30], second[:30])
    assert not np.allclose(first[30:], second[30:])


@pytest.mark.parametrize("sliding", [None, 13])
def test_steps_over_a_growing_cache_are_the_rows_of_one_forward(sliding):
    rules = spec(sliding_window=sliding)
    given = inputs(rules, 300)
    made = plans(filling(KIVI, KIVI, recent_window=8, candidate_k=6), rules)
    whole, _ = attend_layer(given, made, 20)
    for end in (1, 9, 17, 40, 129, 300):
        step = dataclasses.replace(
            given, queries=given.queries[:, end - 1 : end], keys=given.keys[:, :end], values=given.values[:, :end]
        )
        np.testing.assert_allclose(attend_layer(step, made, 20)[0][0], whole[end - 1], atol=1e-5)


@pytest.mark.parametrize("sliding", [None, 13])
def test_a_huge_sink_leaves_no_trace_in_the_mean(sliding):
    """Sinks are exact: however large their values are, a query that gives them no weight is the same by every bit."""
    rules = spec(sliding_window=sliding)
    given = inputs(rules)
    queries, keys, huge = np.abs(given.queries), given.keys.copy(), given.values.copy()
    keys[:, :2] = -1e4  # no weight for any query that sees another token
    huge[:, :2] = 1e30
    made = plans(filling(EXACT, EXACT), rules)
    small, large = (
        attend_layer(dataclasses.replace(given, queries=queries, keys=keys, values=values), made, 20)[0]
        for values in (given.values, huge)
    )
    assert small[2:].tobytes() == large[2:].tobytes()
    assert not np.array_equal(small[:2], large[:2])
