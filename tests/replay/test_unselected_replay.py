"""unselected_values "mean" in the replay: against a token-by-token attention, and against what it must leave alone."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.attention import visible_mask
from polykv.policy import CompressionPolicy
from polykv.replay.config import SweepConfig
from polykv.replay.head import replay_head
from polykv.replay.sweep import sweep_cell
from polykv.types import LayerSpec
from tests.replay.cells import make_cell, make_inputs, slow_head

BUDGETS = np.array([0, 1, 3, 7, 20, 40])
INT4 = {"id": "uniform", "bits": 4, "mode": "symmetric", "axis": "vector"}


def sample(seed, n_tokens, spec, sinks, window, sink_logit=None, noise=0.3, n_queries=4, **changes):
    rng = np.random.default_rng(seed)
    made = make_inputs(rng, n_tokens, n_queries, spec.head_dim, spec.value_dim, spec, sinks, window, sink_logit, noise)
    return dataclasses.replace(made, **{"fills_unselected": True, **changes})


def dropping(inputs):
    return dataclasses.replace(inputs, fills_unselected=False)


def rules(head_dim=8, value_dim=8, **changes):
    return LayerSpec(0, 1, 1, head_dim, value_dim, 0.7, **changes)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    n_tokens=st.integers(1, 20),
    value_dim=st.integers(1, 6),
    sliding_window=st.sampled_from([None, 1, 3, 8]),
    softcap=st.sampled_from([None, 2.0]),
    sinks=st.integers(0, 3),
    window=st.integers(0, 4),
    sink_logit=st.sampled_from([None, 0.7]),
)
def test_every_budget_agrees_with_a_token_by_token_attention(
    seed, n_tokens, value_dim, sliding_window, softcap, sinks, window, sink_logit
):
    spec = LayerSpec(0, 1, 1, 4, value_dim, 0.7, sliding_window, softcap, sink_logit is not None)
    inputs = sample(seed, n_tokens, spec, sinks, window, sink_logit)
    budgets = np.array([1, 2, 5, n_tokens])
    figures = replay_head(inputs, spec, budgets)
    visible = visible_mask(inputs.positions, n_tokens, sliding_window)
    for q in range(4):
        seen, exact = set(np.flatnonzero(visible[q])), set(np.flatnonzero(inputs.exact_tokens[q]))
        best = sorted(seen - exact, key=lambda t, q=q: (-inputs.codec_scores[q, t], t))
        arguments = (
            inputs.queries[q],
            inputs.positions[q],
            inputs.keys,
            inputs.values,
            spec,
            seen,
            inputs.codec_scores[q],
        )
        _, used = slow_head(*arguments, inputs.decoded_values, exact, sink_logit)
        truth, true = slow_head(*arguments, inputs.values, seen, sink_logit)
        for column, budget in enumerate(budgets):
            chosen, left = best[:budget], best[budget:]
            got = figures.outputs[q, column]
            np.testing.assert_allclose(got, filled(used, exact, chosen, left, inputs.values, inputs.decoded_values), atol=1e-9)  # fmt: skip
            perfect = filled(true, exact, chosen, left, inputs.values, inputs.values)
            missed = np.linalg.norm(perfect - truth) / np.linalg.norm(truth)
            np.testing.assert_allclose(figures.selection_relative_error[q, column], missed, atol=1e-9)
            p = {t: (w if t not in left else 0.0) for t, w in used.items()}
            share = sum(used[t] for t in left) / max(1, len(best))
            p = {t: w + (share if t in best else 0.0) for t, w in p.items()}
            kl = sum(w * np.log(w / true[t]) for t, w in p.items())
            if sink_logit is not None:
                sinks_used, sinks_true = 1 - sum(p.values()), 1 - sum(true.values())
                kl += sinks_used * np.log(sinks_used / sinks_true)
            np.testing.assert_allclose(figures.attention_kl[q, column], kl, atol=1e-7)


def filled(weights, exact, chosen, left, values, decoded):
    """The output of one query with unselected weight on the mean of its candidates' decoded values."""
    out = np.zeros(values.shape[1])
    for t in exact:
        out += weights[t] * values[t].astype(np.float64)
    for t in chosen:
        out += weights[t] * decoded[t].astype(np.float64)
    if left:
        out += sum(weights[t] for t in left) * np.mean(
            [decoded[t].astype(np.float64) for t in [*chosen, *left]], axis=0
        )
    return out


@pytest.mark.parametrize("sink_logit", [None, 0.7])
@pytest.mark.parametrize("window", [None, 9])
def test_what_drops_nothing_is_the_same_by_every_bit(sink_logit, window):
    """Budget 0 is the control of the exact tokens alone, and a full budget leaves nothing to fill in."""
    spec = rules(sliding_window=window, has_sink_logits=sink_logit is not None)
    inputs = sample(1, 40, spec, 2, 5, sink_logit)
    mean, drop = (replay_head(each, spec, np.array([0, 3, 40])) for each in (inputs, dropping(inputs)))
    for field in dataclasses.fields(mean):
        a, b = getattr(mean, field.name), getattr(drop, field.name)
        if field.name in ("cosine", "outputs", "relative_error", "mse", "attention_kl") or "selection" in field.name:
            assert a[:, [0, 2]].tobytes() == b[:, [0, 2]].tobytes(), field.name
            assert not np.array_equal(a[:, 1], b[:, 1]), field.name
        else:
            assert a.tobytes() == b.tobytes(), field.name


def test_a_budget_does_not_depend_on_the_others_asked_for():
    spec = rules()
    inputs = sample(1, 40, spec, 2, 5)
    together = replay_head(inputs, spec, BUDGETS)
    for column, budget in enumerate(BUDGETS):
        alone = replay_head(inputs, spec, np.array([budget]))
        for name in ("outputs", "cosine", "attention_kl", "mass_kept", "selection_cosine", "selection_relative_error"):
            assert getattr(alone, name)[:, 0].tobytes() == getattr(together, name)[:, column].tobytes(), (name, budget)


@pytest.mark.parametrize("window", [None, 9])
def test_a_query_does_not_see_values_of_later_tokens_or_of_exact_ones(window):
    spec = rules(sliding_window=window)
    inputs = sample(3, 40, spec, 2, 5)
    first, last = inputs.positions[0], inputs.positions[-1]
    before = replay_head(inputs, spec, BUDGETS)
    later = np.arange(40)[:, None] > first
    after = replay_head(dataclasses.replace(inputs, decoded_values=np.where(later, 1e3, inputs.decoded_values)), spec, BUDGETS)  # fmt: skip
    assert before.outputs[0].tobytes() == after.outputs[0].tobytes()
    assert not np.array_equal(before.outputs[-1], after.outputs[-1])
    exact = inputs.exact_tokens[-1][:, None]
    assert exact.sum() == 7 - 2 * (window is not None)
    spoiled = dataclasses.replace(inputs, decoded_values=np.where(exact, 1e3, inputs.decoded_values))
    assert before.outputs[-1].tobytes() == replay_head(spoiled, spec, BUDGETS).outputs[-1].tobytes(), last


def test_no_candidates_is_no_mean():
    spec = rules()
    inputs = sample(4, 6, spec, 6, 0)
    mean, drop = (replay_head(each, spec, np.array([1])) for each in (inputs, dropping(inputs)))
    assert mean.outputs.tobytes() == drop.outputs.tobytes()
    assert mean.attention_kl.tobytes() == drop.attention_kl.tobytes()
    assert np.isfinite(mean.outputs).all()


def test_weight_that_underflows_is_nothing_lost():
    spec = rules()
    inputs = sample(5, 40, spec, 2, 5)
    scores = np.where(np.arange(40) % 2 == 0, np.float32(-4000), inputs.codec_scores)
    figures = replay_head(dataclasses.replace(inputs, codec_scores=scores), spec, BUDGETS)
    assert np.isfinite(figures.attention_kl).all()
    assert np.isfinite(figures.outputs).all()


@pytest.mark.parametrize("group", [1, 3])
def test_a_sweep_fills_in_its_rows_and_charges_the_mean(group):
    data = make_cell(group=group, n_tokens=60, value_dim=6, logits=True)
    tier = {"key": INT4, "value": INT4}
    config = SweepConfig(candidate_ks=(4, 60))
    drop = CompressionPolicy("p", sink_tokens=2, recent_window=4, pool=tier, shell=tier)
    found = [
        {(r["row_kind"], r["candidate_k"]): r for r in sweep_cell(data, dataclasses.replace(drop, unselected_values=how), config)}
        for how in ("drop", "mean")
    ]  # fmt: skip
    dropped, meant = (rows["candidate", 4] for rows in found)
    assert meant["output_relative_error_mean"] < dropped["output_relative_error_mean"]
    assert meant["selection_relative_error_mean"] < dropped["selection_relative_error_mean"]
    assert meant["seed_kl_divergence_mean"] != dropped["seed_kl_divergence_mean"]
    for name in ("attention_mass_kept_mean", "topk_recall_mean", "codec_cosine_mean", "decoded_values_total", "bytes_per_token"):  # fmt: skip
        assert meant[name] == dropped[name], name
    for key in (("candidate", 60), ("window_only", 0)):
        a, b = (rows[key] for rows in found)
        differs = {name for name in a if a[name] != b[name]}
        assert differs == {"policy_digest", "bytes_per_token_at_4k", "bytes_per_token_at_32k"}
        assert b["bytes_per_token_at_4k"] - a["bytes_per_token_at_4k"] == pytest.approx(4 * 6 / 4096, abs=1e-12)


def test_one_cell_can_be_filled_alone():
    data = make_cell()
    tier = {"key": INT4, "value": INT4}
    config = SweepConfig(candidate_ks=(2,))
    alone = CompressionPolicy("p", pool=tier, shell=tier, cells={"3/0": {"unselected_values": "mean"}})
    whole = CompressionPolicy("p", pool=tier, shell=tier, unselected_values="mean")
    other = CompressionPolicy("p", pool=tier, shell=tier, cells={"3/1": {"unselected_values": "mean"}})
    errors = [sweep_cell(data, each, config)[0]["output_relative_error_mean"] for each in (alone, whole, other)]
    assert errors[0] == errors[1] != errors[2]
