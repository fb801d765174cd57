"""Rows of the certify table: slices, verdicts, bytes."""

import numpy as np
import pytest

from polykv.certify.checks import check_causal, check_engaged, check_exact, check_zeroed, exchanged
from polykv.certify.config import Budget, CertifyConfig
from polykv.certify.cost import model_bytes
from polykv.certify.rows import certify_rows
from polykv.errors import CertifyError, InputError
from polykv.schemas import CERTIFY
from polykv.storage.tables import to_arrow
from polykv.types import Cell
from tests.certify.certify_samples import certification, plans, policy, spec

TEN = 0.01 * np.linspace(0.9, 1.1, 10)


def _by_kind(rows, kind):
    return [row for row in rows if row["slice_kind"] == kind]


def test_rows_fill_the_declared_table():
    rows = certify_rows(certification(TEN, owner=[0] * 5 + [1] * 5))
    table = to_arrow(CERTIFY, [{"run_id": "r", **row} for row in rows])
    assert table.num_rows == 1 + 2 + 2 + 10
    assert [row["document"] for row in _by_kind(rows, "document")] == ["d0.txt", "d1.txt"]


def test_whole_row_says_what_was_lost():
    row = _by_kind(certify_rows(certification(TEN)), "all")[0]
    assert row["ppl_baseline"] == pytest.approx(np.exp(3.0))
    assert row["ppl_increase"] == pytest.approx(np.expm1(0.01))
    assert row["ppl_policy"] == pytest.approx(np.exp(3.01))
    assert row["kl_mean"] == pytest.approx(1e-3)
    assert row["decode_reduction"] == 4.0
    assert row["bytes_per_token"] == 2 * 26  # two cells, measured over all ten passages
    assert (row["first_token"], row["end_token"], row["n_tokens_scored"]) == (16, 32, 160)
    assert row["passage_log_ratio"] == pytest.approx(TEN.tolist())


def test_buckets_hold_their_own_tokens():
    first, second = _by_kind(certify_rows(certification(TEN)), "bucket")
    assert (first["first_token"], first["end_token"], second["first_token"], second["end_token"]) == (16, 24, 24, 32)
    assert first["ppl_increase"] < second["ppl_increase"]
    assert (first["log_ratio_mean"] + second["log_ratio_mean"]) / 2 == pytest.approx(0.01)


def test_slices_without_a_figure_say_null():
    passage = _by_kind(certify_rows(certification(TEN)), "passage")[3]
    assert passage["ppl_increase"] == pytest.approx(np.expm1(TEN[3]))
    assert passage["ppl_increase_low"] is None
    assert passage["verdict"] is None
    assert passage["bytes_per_token"] is None


@pytest.mark.parametrize(
    ("limit", "verdict"), [(0.02, "pass"), (0.005, "fail"), (0.0101, "inconclusive"), (float("inf"), None)]
)
def test_verdict_against_a_perplexity_budget(limit, verdict):
    if verdict is None:
        with pytest.raises(InputError, match="max_ppl_increase is inf"):
            Budget(limit)
        return
    config = CertifyConfig(n_passages=10, n_tokens=32, bucket_tokens=8, budget=Budget(limit))
    row = _by_kind(certify_rows(certification(TEN, config=config)), "all")[0]
    assert row["verdict"] == verdict
    assert (row["passages_to_decide"] is not None) == (verdict == "inconclusive")
    assert [b["gate"] for b in row["blockers"]] == (["ppl_increase"] if verdict == "fail" else [])


def test_both_limits_must_hold():
    config = CertifyConfig(n_passages=10, n_tokens=32, bucket_tokens=8, budget=Budget(0.02, 5e-4))
    row = _by_kind(certify_rows(certification(TEN, config=config)), "all")[0]
    assert row["verdict"] == "fail"
    assert row["blockers"] == [{"gate": "kl", "value": pytest.approx(1e-3), "limit": 5e-4}]


def test_few_passages_decide_nothing():
    row = _by_kind(certify_rows(certification(TEN[:5])), "all")[0]
    assert (row["verdict"], row["passages_to_decide"] >= 6) == ("inconclusive", True)
    assert row["verdict_reason"].startswith("too_few_passages: 5")


def test_bytes_charge_what_is_kept_once_and_cut_at_sliding_windows():
    rules = spec(sliding_window=1024)
    made = plans(policy(sink_tokens=4, recent_window=32, center_keys="calibrate_mean"), rules, {
        Cell(0, head): np.zeros(16, np.float32) for head in range(2)
    })  # fmt: skip
    codec_bytes = dict.fromkeys(made, 10.0)
    found = model_bytes(made, {0: rules}, codec_bytes)
    fixed = 2 * (36 * 24 * 2 + 16 * 4)
    assert found["bytes_per_token"] == 20
    assert found["float16_bytes_per_token"] == 2 * 24 * 2
    assert found["fixed_bytes"] == fixed
    assert found["bytes_per_token_at_4k"] == pytest.approx(20 * 1024 / 4096 + fixed / 4096)
    assert found["ratio_to_float16_at_4k"] == pytest.approx(96 * 1024 / (20 * 1024 + fixed))
    assert found["ratio_to_float16"] == pytest.approx(96 / 20)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: check_exact(1e-6), "exact policy changed the model"),
        (lambda: check_exact(float("nan")), "exact policy changed the model"),
        (lambda: check_zeroed(0.49), "hardly changed"),
        (lambda: check_zeroed(float("nan")), "hardly changed"),
        (lambda: check_causal(1e-3, "policy 'x'"), "policy 'x' sees the future"),
        (lambda: check_engaged(0.0, 0.0, False, "policy 'x'"), "never engaged"),
        (lambda: check_engaged(1e-12, 1e-12, False, "policy 'x'"), "never engaged"),
        (lambda: check_engaged(1e-3, 1e-12, True, "policy 'x'"), "loses nothing"),
    ],
)
def test_a_failed_control_ends_the_run(call, words):
    with pytest.raises(CertifyError, match=words):
        call()


def test_controls_that_hold_say_nothing():
    check_exact(1e-12)
    check_zeroed(7.0)
    check_causal(0.0, "policy")
    check_engaged(1e-7, 1e-12, False, "policy")
    check_engaged(1e-12, 1e-12, True, "policy")


def test_exchanged_tokens_all_differ_and_stay_in_the_vocabulary():
    ids = np.array([4, 5, 9, 9])
    assert exchanged(ids, 2, 10).tolist() == [4, 5, 0, 0]
    assert ids.tolist() == [4, 5, 9, 9]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_tokens": 4}, "n_tokens is 4"),
        ({"shared_tokens": 512}, "shared_tokens is 512, must be 1 to 511"),
        ({"score_from": 0}, "score_from is 0"),
        ({"n_passages": True}, "n_passages is True"),
        ({"bucket_tokens": 0}, "bucket_tokens is 0"),
    ],
)
def test_config_refuses_with_both_numbers(changes, words):
    with pytest.raises(InputError, match=words):
        CertifyConfig(**changes)


def test_a_budget_needs_a_limit():
    with pytest.raises(InputError, match="without a limit"):
        Budget(None, None)
