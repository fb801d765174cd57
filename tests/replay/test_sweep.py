"""Sweeping one cell: budgets, tiers, windows, labels, controls, and the choice made of it."""

import numpy as np
import pytest

from polykv.errors import CodecError, InputError, NonFiniteError
from polykv.policy import NAMED_POLICIES, Policy
from polykv.replay.config import Gate, SweepConfig
from polykv.replay.controls import CONTROLS, control_rows, judged
from polykv.replay.means import key_mean
from polykv.replay.selection import selection_rows
from polykv.replay.sweep import NOT_CENTRED, sweep_cell
from polykv.schemas import CONTROLS as CONTROLS_TABLE
from polykv.schemas import RESULTS, SELECTION
from tests.replay.cells import make_cell

KS = SweepConfig((4, 12, 24))


def candidates(rows):
    return {row["candidate_k"]: row for row in rows if row["row_kind"] == "candidate"}


@pytest.mark.parametrize("name", NAMED_POLICIES)
@pytest.mark.parametrize(
    "shape", [{}, {"logits": True}, {"sinks": True}, {"sliding_window": 5}, {"logit_softcap": 3.0}]
)
def test_rows_fill_every_declared_column(name, shape):
    rows = sweep_cell(make_cell(**shape), Policy.named(name), KS)
    assert [(row["row_kind"], row["candidate_k"]) for row in rows] == [
        ("candidate", 4), ("candidate", 12), ("candidate", 24), ("window_only", 0),
    ]  # fmt: skip
    for row in rows:
        assert set(row) == set(RESULTS.column_names) - {"run_id", "row_digest"}
        floats = [v for v in row.values() if isinstance(v, float)]
        assert np.isfinite(floats).all()


@pytest.mark.parametrize("name", NAMED_POLICIES)
def test_a_budget_has_the_same_row_alone_and_in_company(name):
    cell, policy = make_cell(logits=True, sliding_window=9), Policy.named(name)
    mean = key_mean(make_cell(seed=5, split="calibrate"), 4)
    together = sweep_cell(cell, policy, KS, mean)
    for k in KS.candidate_ks:
        alone = sweep_cell(cell, policy, SweepConfig((k,)), mean)
        assert candidates(alone)[k] == candidates(together)[k]
        assert alone[-1] == together[-1]


@pytest.mark.parametrize(
    "shape", [{}, {"sinks": True}, {"sliding_window": 5}, {"logit_softcap": 3.0}, {"value_dim": 4}]
)
def test_the_exact_policy_at_full_changes_nothing(shape):
    row = candidates(sweep_cell(make_cell(logits=True, **shape), Policy.exact(), KS))[24]
    assert row["is_full"]
    assert row["saturated_fraction"] == 1.0
    assert row["output_cosine_mean"] > 1 - 1e-12
    assert row["attention_kl_mean"] < 1e-12
    assert row["seed_kl_divergence_mean"] < 1e-12
    assert row["seed_ppl_proxy_delta"] == pytest.approx(0, abs=1e-5)
    assert row["capture_fidelity"] < 1e-6
    assert row["verdict"] == "pass"


def test_codec_and_selection_error_stand_apart():
    exact = candidates(sweep_cell(make_cell(), Policy.exact(), KS))
    int8 = candidates(sweep_cell(make_cell(), Policy.int8(), KS))
    assert exact[4]["codec_relative_error_mean"] < 1e-6
    assert exact[4]["selection_relative_error_mean"] == pytest.approx(exact[4]["output_relative_error_mean"], rel=1e-5)
    assert 1e-4 < int8[4]["codec_relative_error_mean"] < 0.05
    assert int8[4]["selection_relative_error_mean"] > 5 * int8[4]["codec_relative_error_mean"]
    assert int8[24]["selection_relative_error_mean"] < 1e-12


def test_window_and_sinks_are_counted_apart_and_never_decoded():
    policy = Policy("w", sink_tokens=2, recent_window=3)
    row = candidates(sweep_cell(make_cell(n_passages=6, group=1, n_queries=2), policy, SweepConfig((4,))))[4]
    cell = make_cell(n_passages=6, group=1, n_queries=2)
    visible = (cell.query_position + 1).sum()
    assert row["full_decode_value_count"] == visible
    assert row["exact_values_total"] == 12 * 5
    assert row["decoded_values_total"] == 12 * 4
    assert row["decode_reduction"] == visible / 48


def test_a_query_inside_sinks_and_window_has_nothing_to_choose():
    cell = make_cell(n_tokens=12, n_queries=2)
    row = candidates(sweep_cell(cell, Policy("w", sink_tokens=4, recent_window=32), SweepConfig((4,))))[4]
    assert row["is_full"]
    assert row["decoded_values_total"] == 0
    assert row["output_cosine_mean"] > 1 - 1e-12
    assert row["score_correlation_mean"] is None


def test_centring_changes_codes_and_not_the_exact_policy():
    cell = make_cell(n_tokens=64)
    mean = key_mean(make_cell(seed=5, split="calibrate"), 0)
    exact = Policy("exact_centred", center_keys="calibrate_mean")
    full = SweepConfig((64,))
    assert candidates(sweep_cell(cell, exact, full, mean))[64]["output_cosine_mean"] > 1 - 1e-9
    two_tier = Policy.two_tier()
    with_mean, without = sweep_cell(cell, two_tier, KS, mean), sweep_cell(cell, two_tier, KS)
    assert with_mean[0]["codec_relative_error_mean"] != without[0]["codec_relative_error_mean"]
    assert with_mean[0]["reason"] is None
    assert without[0]["reason"] == NOT_CENTRED


def test_the_mean_key_leaves_out_sinks_and_padding():
    data = make_cell(lengths=[24, 10, 7], n_passages=3)
    expected = np.mean([data.keys[p, t] for p, n in enumerate(data.lengths) for t in range(4, n)], axis=0)
    np.testing.assert_allclose(key_mean(data, 4), expected, rtol=1e-5)
    with pytest.raises(InputError, match="no token beyond its 24 sinks"):
        key_mean(data, 24)


def test_padding_is_never_read():
    short = make_cell(lengths=[24, 20, 16, 24, 12, 24])
    rows = sweep_cell(short, Policy.int8(), KS)
    assert rows[2]["n_passages"] == 6
    assert rows[2]["output_cosine_mean"] > 0.999


@pytest.mark.parametrize("name", ["keys", "values", "queries", "outputs"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_number_that_is_not_finite_is_refused_with_its_place(name, bad):
    cell = make_cell()
    getattr(cell, name)[(2, *[1] * (getattr(cell, name).ndim - 1))] = bad
    with pytest.raises(NonFiniteError, match=rf"layer 3, KV head 0, passage 2: {name}"):
        sweep_cell(cell, Policy.int8(), KS)


@pytest.mark.parametrize("shared", [24, 30])
def test_a_tier_that_would_be_empty_is_refused(shared):
    with pytest.raises(InputError, match=f"shared_tokens {shared} must split 24 tokens"):
        sweep_cell(make_cell(), Policy.int8(), SweepConfig((4,), shared_tokens=shared))


@pytest.mark.parametrize(("head_dim", "policy"), [(6, "two_tier"), (5, "reference"), (1, "two_tier")])
def test_a_head_dim_that_a_codec_cannot_take_is_refused_by_name(head_dim, policy):
    with pytest.raises(CodecError, match=f"{head_dim}"):
        sweep_cell(make_cell(head_dim=head_dim), Policy.named(policy), KS)


@pytest.mark.parametrize("head_dim", [1, 5, 6, 80, 96])
def test_any_head_dim_suits_the_exact_and_int8_policies(head_dim):
    cell = make_cell(head_dim=head_dim, value_dim=head_dim)
    assert candidates(sweep_cell(cell, Policy.int8(), KS))[24]["output_cosine_mean"] > 0.99


def test_an_all_zero_head_is_a_null_that_blocks_and_loses_nothing():
    cell = make_cell()
    cell.values[:] = 0.0
    cell.outputs[:] = 0.0
    row = sweep_cell(cell, Policy.int8(), KS)[2]
    assert row["output_cosine_mean"] is None
    assert row["output_relative_error_mean"] == 0.0
    assert row["verdict"] == "fail"
    assert row["blockers"] == [{"gate": "non_finite: output_cosine_mean", "value": None, "limit": 0.999}]


def test_controls_come_out_as_they_must():
    rows = control_rows(make_cell(group=3), KS)
    assert [row["control"] for row in rows] == list(CONTROLS)
    assert all(row["as_expected"] for row in rows)
    for row in rows:
        assert set(row) == set(CONTROLS_TABLE.column_names) - {"run_id", "row_digest"}


def test_a_head_that_ignores_its_keys_is_insensitive_and_never_passes():
    cell = make_cell()
    cell.keys[:] = 0.0
    controls = control_rows(cell, KS)
    by_name = {row["control"]: row["as_expected"] for row in controls}
    assert by_name == {"exact": True, "zero_keys": False, "shuffled_keys": False, "zero_values": True}
    rows = judged(sweep_cell(cell, Policy.exact(), KS), controls)
    assert {row["verdict"] for row in rows if row["is_full"]} == {"insensitive"}
    assert "pass" not in {row["verdict"] for row in rows}


def zero_cell(**shape):
    cell = make_cell(**shape)
    cell.values[:] = 0.0
    cell.outputs[:] = 0.0
    return cell


def test_a_head_whose_output_is_zero_is_insensitive_and_says_so():
    controls = control_rows(zero_cell(), KS)
    assert {row["control"]: (row["as_expected"], row["reason"]) for row in controls} == {
        "exact": (True, "zero_output"),
        "zero_keys": (False, "zero_output"),
        "shuffled_keys": (False, "zero_output"),
        "zero_values": (False, "zero_output"),
    }
    assert {row["output_cosine_mean"] for row in controls} == {None}
    rows = judged(sweep_cell(zero_cell(), Policy.int8(), KS), controls)
    assert {(row["verdict"], row["verdict_reason"]) for row in rows} == {("insensitive", "zero_output")}


def test_the_decision_on_a_zero_head_is_insensitive_and_no_candidate_k():
    cells = [zero_cell(seed=1, split="select"), zero_cell(seed=2)]
    rows = [row for cell in cells for row in sweep_cell(cell, Policy.int8(), KS)]
    controls = [row for cell in cells for row in control_rows(cell, KS)]
    (decision,) = selection_rows(rows, controls)
    assert (decision["verdict"], decision["verdict_reason"]) == ("insensitive", "zero_output")
    assert decision["candidate_k"] is None


def test_one_zero_passage_is_no_zero_head():
    cell = make_cell()
    cell.values[2] = 0.0
    cell.outputs[2] = 0.0
    controls = control_rows(cell, KS)
    assert {row["reason"] for row in controls} == {None}
    assert controls[0]["as_expected"] is False  # undefined, not passed over


def test_a_failed_exact_control_makes_the_cell_invalid():
    controls = control_rows(make_cell(), KS)
    controls[0] = controls[0] | {"as_expected": False}
    rows = judged(sweep_cell(make_cell(), Policy.exact(), KS), controls)
    assert {row["verdict"] for row in rows} == {"invalid"}


def swept(policy, gates=None, n_select=6, n_confirm=6, **shape):
    config = SweepConfig((4, 12, 24)) if gates is None else SweepConfig((4, 12, 24), gates=gates)
    select = make_cell(seed=1, split="select", n_passages=n_select, **shape)
    confirm = make_cell(seed=2, split="confirm", n_passages=n_confirm, **shape)
    rows = sweep_cell(select, policy, config) + sweep_cell(confirm, policy, config)
    return rows, control_rows(select, config) + control_rows(confirm, config)


def test_the_smallest_budget_that_passes_on_select_is_judged_on_confirm():
    rows, controls = swept(Policy.exact(), gates=(Gate("output_cosine_mean", "min", 0.8),))
    (chosen,) = selection_rows(rows, controls)
    assert set(chosen) == set(SELECTION.column_names) - {"run_id"}
    passing = [r["candidate_k"] for r in rows if r["split"] == "select" and r["verdict"] == "pass"]
    assert chosen["candidate_k"] == min(passing) < 24
    confirm = next(r for r in rows if r["split"] == "confirm" and r["candidate_k"] == min(passing))
    assert chosen["verdict"] == confirm["verdict"]
    assert chosen["confirm_output_cosine_mean"] == confirm["output_cosine_mean"]


def test_when_none_passes_the_choice_is_null_and_the_largest_is_shown():
    rows, controls = swept(Policy.int8(), gates=(Gate("output_cosine_mean", "min", 1.0),))
    (chosen,) = selection_rows(rows, controls)
    assert chosen["candidate_k"] is None
    assert chosen["shown_candidate_k"] == 24
    assert chosen["verdict"] == "fail"
    assert chosen["blockers"][0]["gate"] == "output_cosine_mean"


@pytest.mark.parametrize(
    ("select", "confirm", "expected"),
    [("inconclusive", "pass", "inconclusive"), ("inconclusive", "inconclusive", "inconclusive"),
     ("inconclusive", "fail", "fail"), ("fail", "pass", "fail"), ("fail", "fail", "fail")],
)  # fmt: skip
def test_when_none_passes_only_a_largest_budget_that_fails_is_a_fail(select, confirm, expected):
    rows, controls = swept(Policy.exact())
    verdicts = {"select": select, "confirm": confirm}
    rows = [row | {"verdict": verdicts[row["split"]]} for row in rows]
    (chosen,) = selection_rows(rows, controls)
    assert (chosen["candidate_k"], chosen["shown_candidate_k"]) == (None, 24)
    assert (chosen["verdict"], chosen["verdict_reason"]) == (expected, "no_candidate_k_passes_on_select")


@pytest.mark.parametrize(("n_select", "n_confirm"), [(5, 6), (6, 5)])
def test_too_few_passages_are_inconclusive(n_select, n_confirm):
    rows, controls = swept(Policy.exact(), n_select=n_select, n_confirm=n_confirm)
    (chosen,) = selection_rows(rows, controls)
    assert chosen["verdict"] == "inconclusive"
    assert "5 of at least 6" in chosen["verdict_reason"]


def test_a_failed_job_is_a_failed_selection_with_its_reason():
    rows, controls = swept(Policy.exact())
    failed = [dict.fromkeys(row) | {k: row[k] for k in ("layer", "kv_head", "policy", "policy_digest", "split", "row_kind", "candidate_k")} | {"status": "failed", "reason": "boom"} for row in rows if row["split"] == "confirm"]  # fmt: skip
    (chosen,) = selection_rows([r for r in rows if r["split"] == "select"] + failed, controls)
    assert (chosen["verdict"], chosen["verdict_reason"]) == ("failed", "boom")
