"""Refusals in the seed's order and words, its rule of choice, its polite answers, its arithmetic."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest

from polykv.errors import CodecError, InputError, PolicyError
from polykv.policy import CompressionPolicy
from polykv.replay.captured import run_captured_model_replay
from polykv.replay.fixtures import ModelReplayQuery
from polykv.replay.model_shaped import run_model_replay
from polykv.replay.seed_config import CapturedReplayConfig, ModelReplayConfig
from polykv.replay.seed_float32 import (
    argmax_last,
    attend_f32,
    cosine_f64,
    dot_f32,
    mse_f64,
    output_projection,
    project_f32,
    softmax_f32,
)
from polykv.replay.softmax_scale import SoftmaxScaleWarning, shown_scale
from tests.replay.seed_samples import golden_pool_and_shell, small_fixture

F = np.float32
CONFIG = CapturedReplayConfig((2, 4))


def with_query(**changes):
    fixture = small_fixture()
    return replace(fixture, queries=(fixture.queries[0], replace(fixture.queries[1], **changes)))


def ragged(rows):
    return [list(row) for row in rows[:-1]] + [list(rows[-1][:-1])]


def cells_policy():
    return replace(CompressionPolicy.exact(), cells={"0/0": {"sink_tokens": 1}})


# In the seed's order: each fixture here also breaks a rule further down, which must not be the one reported.
REFUSED = {
    "no budgets": (lambda: (replace(small_fixture(), queries=()), CapturedReplayConfig(())), "candidate_ks must not be empty"),
    "no queries": (lambda: (replace(small_fixture(), queries=(), head_dim=0), CONFIG), "captured fixture must contain at least one query"),
    "no head_dim": (lambda: (replace(small_fixture(), head_dim=0, output_projection=[]), CONFIG), "head_dim must be greater than zero"),
    "no projection": (lambda: (replace(with_query(query=[1.0]), output_projection=[]), CONFIG), "output_projection must not be empty"),
    "projection row": (
        lambda: (replace(with_query(query=[1.0]), output_projection=ragged(np.ones((3, 8)))), CONFIG),
        r"output_projection\[2\]: dimension mismatch: expected 8, got 7",
    ),
    "query": (lambda: (with_query(query=np.ones(9), keys=[]), CONFIG), r"queries\[1\].query: dimension mismatch: expected 8, got 9"),
    "exact output": (
        lambda: (with_query(exact_attention_output=np.ones(7), keys=[]), CONFIG),
        r"queries\[1\].exact_attention_output: dimension mismatch: expected 8, got 7",
    ),
    "keys and values": (
        lambda: (with_query(keys=np.ones((2, 8)), exact_logits=[1.0]), CONFIG),
        r"captured keys/values must be non-empty and same length: queries\[1\] has 2 keys and 9 values",
    ),
    "nothing seen": (lambda: (with_query(keys=[], values=[], exact_logits=[1.0]), CONFIG), "captured keys/values must be non-empty"),
    "no shell": (
        lambda: (replace(with_query(exact_logits=[1.0]), shared_tokens=6), CONFIG),
        r"shared_tokens must split captured rows into non-empty pool and shell tiers: it is 6, and queries\[0\] has 6 rows",
    ),
    "no pool": (lambda: (replace(with_query(exact_logits=[1.0]), shared_tokens=0), CONFIG), "it is 0, and"),
    "logits": (lambda: (with_query(exact_logits=np.ones(4), label_token=9), CONFIG), r"queries\[1\].exact_logits: dimension mismatch: expected 5, got 4"),
    "label": (
        lambda: (with_query(label_token=5, values=ragged(np.ones((9, 8)))), CONFIG),
        r"label_token 5 >= logits len 5 \(queries\[1\]\)",
    ),
    "key row": (lambda: (with_query(keys=ragged(np.ones((9, 8)))), CONFIG), r"queries\[1\].keys\[8\]: dimension mismatch: expected 8, got 7"),
    "value width": (lambda: (with_query(values=np.ones((9, 7))), CONFIG), r"queries\[1\].values\[0\]: dimension mismatch: expected 8, got 7"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_captured_fixture_is_refused_in_the_seeds_order(name):
    make, text = REFUSED[name]
    fixture, config = make()
    with pytest.raises(InputError, match=text):
        run_captured_model_replay(fixture, config)


def test_what_a_codec_cannot_take_is_refused_by_name_before_any_work():
    with pytest.raises(CodecError, match="^fib: head_dim is 6, must be a multiple of 4"):
        run_captured_model_replay(small_fixture(head_dim=6), CONFIG)
    fixture = with_query(keys=np.zeros((9, 8)), exact_attention_output=np.ones(8))
    with pytest.raises(CodecError, match=r"queries\[1\]: fib: vectors\[0\] has norm 0"):
        run_captured_model_replay(fixture, CONFIG)
    with pytest.raises(PolicyError, match="does not say which cell"):
        run_captured_model_replay(small_fixture(), CONFIG, cells_policy())


MODEL_REFUSED = {
    "no budgets": ([], {"candidate_ks": ()}, "candidate_ks must not be empty"),
    "no queries": ([], {"vocab_size": 0}, "queries must not be empty"),
    "no labels": ([(8, 0)], {"vocab_size": 0}, "vocab_size must be greater than zero"),
    "too many labels": ([(8, 0)], {"vocab_size": 2**40}, "must be at most"),
    "query": ([(16, 0), (15, 99)], {"layer": 9}, r"queries\[1\].query: dimension mismatch: expected 16, got 15"),
    "label": ([(16, 64)], {"layer": 9}, "label_token 64 >= vocab_size 64"),
    "layer": ([(16, 0)], {"layer": 2, "head": 9}, r"layer 2 out of range \(have 2\)"),
    "head": ([(16, 0)], {"head": 2}, r"head_idx 2 out of range \(have 2\)"),
}


@pytest.mark.parametrize("name", MODEL_REFUSED)
def test_a_model_shaped_replay_refuses_in_the_seeds_order(name):
    queries, changes, text = MODEL_REFUSED[name]
    pool, shell, _, _ = golden_pool_and_shell(CompressionPolicy.exact())
    config = replace(ModelReplayConfig(candidate_ks=(1,)), **changes)
    with pytest.raises(InputError, match=text):
        run_model_replay(pool, shell, [ModelReplayQuery(np.ones(n), label) for n, label in queries], config)


def test_an_empty_shell_has_nothing_to_attend():
    pool, _, _, _ = golden_pool_and_shell(CompressionPolicy.exact())
    shell, _ = pool.materialize_shell("idle", [], 1)
    with pytest.raises(InputError, match=r"queries\[0\]: no shell layer 0"):
        run_model_replay(pool, shell, [ModelReplayQuery(np.ones(16), 0)], ModelReplayConfig(candidate_ks=(1,)))


def test_the_first_that_passes_is_chosen_else_the_last():
    fixture, exact = small_fixture(head_dim=16, lengths=(24, 24), shared=8), CompressionPolicy.exact()
    passing = run_captured_model_replay(fixture, CapturedReplayConfig((1, 24, 23), min_output_cosine=0.999), exact)
    assert (passing.selected_candidate_k, passing.passed, passing.blockers) == (24, True, ())
    config = CapturedReplayConfig((24, 2, 1), min_output_cosine=0.5, max_kl_divergence=-1.0)
    failing = run_captured_model_replay(fixture, config, exact)
    # the last in the list, though the first is the best
    assert (failing.selected_candidate_k, failing.passed) == (1, False)
    assert failing.blockers == failing.candidate_results[-1].blockers
    assert failing.blockers[-1].startswith("kl_divergence_mean") or "kl_divergence_mean" in str(failing.blockers)
    assert failing.metrics.query_count == 2


def test_gates_are_inclusive():
    fixture = small_fixture()
    free = run_captured_model_replay(fixture, CapturedReplayConfig((3,)), CompressionPolicy.exact())
    figures = free.candidate_results[0]
    at_the_limit = CapturedReplayConfig(
        (3,), figures.output_cosine_mean, figures.output_mse_mean, figures.kl_divergence_mean,
        abs(figures.ppl_proxy_delta), figures.top1_agreement,
    )  # fmt: skip
    assert run_captured_model_replay(fixture, at_the_limit, CompressionPolicy.exact()).passed


def test_candidate_k_zero_is_the_references_alone():
    fixture = small_fixture(head_dim=8, lengths=(8, 8), shared=4)
    config = CapturedReplayConfig((0, 0))
    result = run_captured_model_replay(fixture, config).candidate_results[0]
    assert (result.output_cosine_mean, result.decoded_values_total, result.decode_reduction) == (0.0, 0, 16.0)
    # the seed's empty sum is −0.0
    assert math.copysign(1, result.output_mse_mean) == -1
    assert "output_cosine_mean 0.0000 < 0.7500" in result.blockers
    for name in ("two_tier", "int8", "exact"):
        with pytest.raises(InputError, match="candidate_k 0 is not possible"):
            run_captured_model_replay(fixture, config, CompressionPolicy.named(name))


def test_a_renamed_reference_is_still_the_reference():
    policy = replace(CompressionPolicy.reference(), name="mine", seed=1)
    assert run_captured_model_replay(small_fixture(), CapturedReplayConfig((0,)), policy).candidate_results


def test_only_the_reference_is_polite_about_a_zero_output():
    fixture = with_query(exact_attention_output=np.zeros(8), values=np.random.default_rng(0).normal(size=(9, 8)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SoftmaxScaleWarning)
        polite = run_captured_model_replay(fixture, CapturedReplayConfig((4,)))
        strict = run_captured_model_replay(fixture, CapturedReplayConfig((4,)), CompressionPolicy.exact())
    assert polite.metrics.output_cosine_mean is not None
    assert strict.metrics.output_cosine_mean is None
    assert not strict.passed
    assert strict.blockers[0] == "non_finite: output_cosine_mean"
    assert strict.from_dict(strict.to_dict()) == strict


def test_huge_exact_logits_do_not_hide():
    """Logits near float32's end: the compressed side overflows, which blocks, and never becomes a uniform softmax."""
    fixture = with_query()
    fixture = replace(fixture, output_projection=np.full((5, 8), 3e38, F))
    receipt = run_captured_model_replay(fixture, CapturedReplayConfig((9,)), CompressionPolicy.exact())
    assert "non_finite: kl_divergence_mean" in receipt.blockers
    assert receipt.metrics.ppl_proxy_compressed is None


@pytest.mark.parametrize("scale", [0.125, 0.3535533905932738, 0.8])
def test_an_exact_output_of_another_scale_is_noticed(scale):
    fixture = replace(small_fixture(head_dim=8, lengths=(20, 25), shared=5, scale=scale), softmax_scale=None)
    assert shown_scale(fixture) == pytest.approx(scale, rel=1e-3)
    with pytest.warns(SoftmaxScaleWarning, match=f"no softmax_scale.*made with about {str(scale)[:4]}"):
        run_captured_model_replay(fixture, CONFIG, CompressionPolicy.exact())


def test_a_fitting_or_inexplicable_output_is_not_warned_about():
    assert shown_scale(small_fixture(lengths=(20,), shared=5)) is None
    assert shown_scale(small_fixture(lengths=(20,), shared=5, scale=0.125)) is None
    assert shown_scale(with_query(exact_attention_output=np.full(8, 9.0))) is None


class TestArithmetic:
    def test_sums_run_left_to_right_in_float32(self):
        terms = np.array([[1e8, 1.0, -1e8, 1.0]], F)
        assert dot_f32(terms, np.ones(4, F))[0] == 1.0

    def test_softmax(self):
        rows = np.array([[0, 0], [1, 3]], F)
        weights = softmax_f32(rows, polite=False)
        np.testing.assert_allclose(weights, [[0.5, 0.5], [1 / (1 + math.e**2), 1 / (1 + math.e**-2)]], rtol=1e-6)
        assert weights.dtype == F

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_a_softmax_that_has_no_answer(self, bad):
        row = np.array([[1.0, bad, 2.0]], F)
        np.testing.assert_array_equal(softmax_f32(row, polite=True), np.full((1, 3), F(1) / F(3)))
        assert np.isnan(softmax_f32(row, polite=False)).all()

    def test_attention_is_the_weighted_mean(self):
        out = attend_f32(np.zeros(2, F), np.array([[1, 2], [3, 6]], F), polite=False)
        np.testing.assert_allclose(out, [2, 4])

    def test_argmax_takes_the_last_and_knows_both_zeros(self):
        rows = np.array([[1, 3, 3, 2], [-0.0, 0.0, -0.0, -1.0], [0.0, -0.0, -0.0, -0.0], [5, 5, 5, 5]], F)
        assert argmax_last(rows).tolist() == [2, 1, 0, 3]

    def test_no_direction_and_nothing(self):
        zero, one = np.zeros(2, F), np.ones(2, F)
        assert cosine_f64(zero, one, polite=True) == 0.0
        assert np.isnan(cosine_f64(zero, one, polite=False))
        assert cosine_f64(one, None, polite=True) == 0.0
        assert np.isnan(cosine_f64(one, None, polite=False))
        assert np.isnan(mse_f64(one, None, polite=False))
        assert mse_f64(one, zero, polite=False) == 1.0
        assert np.signbit(project_f32(None, np.ones((3, 2), F))).all()

    def test_the_projection_follows_its_formula(self):
        found = output_projection(3, 2, 5)
        x = 0.013 * 3 + 0.017 * 2 + 0.0001 * 5
        assert found[2, 1] == pytest.approx(0.25 * math.sin(x) + 0.10 * math.cos(x), abs=1e-7)
        assert found.shape == (3, 2)
