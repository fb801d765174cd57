"""The arithmetic of the report: points, fronts, intervals, the leader and its sentence."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student_t

from polykv.report.charts import round_steps
from polykv.report.compare import movements
from polykv.report.comparison import changed_verdicts, comparison_sentence
from polykv.report.curves import worst_cells
from polykv.report.frontier import Point, front, mean_interval, points
from polykv.report.headline import choose_leader, gate_words, verdict_of
from polykv.report.summary import PolicySummary, policy_summaries
from tests.report.run_samples import GATES, KS, error_of, result_rows, selection_rows

CELLS = [(0, 0), (0, 1), (5, 0)]


def point(cost, error):
    return Point("p", 1, False, 1, 1, error, None, None, cost, 100.0, 1.0)


def test_points_are_means_over_cells_of_confirm():
    found = {(p.policy, p.candidate_k): p for p in points(result_rows("r", CELLS))}
    assert len(found) == 3 * len(KS)
    here = found["int8", 16]
    assert here.error == pytest.approx(np.mean([error_of("int8", *cell, 16) for cell in CELLS]))
    assert here.n_cells == 3
    assert here.decode_reduction == 4.0
    assert here.percent_of_float16 == pytest.approx(100 * 132 / 256)
    assert here.low < here.error < here.high


def test_failed_rows_and_other_passages_do_not_break_points():
    rows = result_rows("r", CELLS, fail=[(0, 1, "int8")])
    rows[0]["passage_output_relative_error"] = None
    assert {p.n_cells for p in points(rows) if p.policy == "int8"} == {2}
    odd = [
        row | {"passage_output_relative_error": [0.1]} if row["layer"] == 5 else row for row in result_rows("r", CELLS)
    ]
    assert all(p.low is None for p in points(odd))


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=30))
def test_a_front_is_what_no_point_beats(pairs):
    found = [point(float(cost), float(error)) for cost, error in pairs]
    best = front(found, lambda p: p.bytes_per_token)
    for p in found:
        beaten = any(
            (q.bytes_per_token <= p.bytes_per_token and q.error < p.error)
            or (q.bytes_per_token < p.bytes_per_token and q.error <= p.error)
            for q in found
        )
        assert beaten or any((q.bytes_per_token, q.error) == (p.bytes_per_token, p.error) for q in best)
    assert all(
        a.bytes_per_token < b.bytes_per_token and a.error > b.error for a, b in zip(best, best[1:], strict=False)
    )


def test_the_interval_is_students():
    values = np.array([0.1, 0.3, 0.2, 0.25])
    half = student_t.ppf(0.975, 3) * values.std(ddof=1) / 2
    assert mean_interval(values) == pytest.approx((values.mean() - half, values.mean() + half))
    assert mean_interval(values[:1]) is None


def summary(policy, n_bytes, n_cells=10, **verdicts):
    return PolicySummary(policy, n_cells, verdicts, bytes_per_token=n_bytes, float16_bytes_per_token=256.0)


def test_the_leader_is_smaller_than_float16_and_holds_most():
    found = [summary("exact", 512, **{"pass": 10}), summary("small", 64, **{"pass": 2, "fail": 8}), summary("int8", 132, **{"pass": 9, "fail": 1})]  # fmt: skip
    assert choose_leader(found).policy == "int8"
    assert choose_leader(found[:1]).policy == "exact"
    assert choose_leader([]) is None


SENTENCES = {
    "pass": ({"pass": 10}, "Yes: p keeps the cache of m in 25 % of float16's bytes, and all 10 KV heads stay within"),
    "insensitive": ({"pass": 8, "insensitive": 2}, "all 8 of 10 judged KV heads stay within the quality limits (2 cannot be judged"),
    "inconclusive": ({"pass": 7, "inconclusive": 3}, "Not proven yet: p keeps the cache of m in 25 % of float16's bytes; 7 of 10 KV heads"),
    "some": ({"pass": 7, "inconclusive": 2, "fail": 1}, "7 of 10 KV heads of m stay within the quality limits, 1 leaves them and 2 need more text"),
    "none": ({"fail": 10}, "No: not one of the 10 KV heads of m stays within the quality limits with p"),
}  # fmt: skip


@pytest.mark.parametrize("kind", SENTENCES)
def test_the_verdict_is_one_sentence(kind):
    verdicts, words = SENTENCES[kind]
    said = verdict_of([summary("p", 64, **verdicts)], "m").sentence
    assert words in said
    assert said.count(".") == 1


def test_a_failed_exact_control_makes_a_run_invalid():
    controls = [{"control": "exact", "status": "ok", "as_expected": False}]
    verdict = verdict_of([summary("p", 64, **{"pass": 10})], "m", controls)
    assert verdict.kind == "invalid"
    assert "control failed" in verdict.sentence


def test_nothing_measured_is_no_verdict():
    assert verdict_of([], "m").kind == "inconclusive"


def test_gates_in_words():
    assert (
        gate_words(GATES) == "cosine of the attention output ≥ 0.999 and relative error of the attention output ≤ 0.05"
    )


def test_the_worst_cells_come_first_and_unmeasured_before_them():
    rows = selection_rows(result_rows("r", CELLS, fail=[(5, 0, "rough")]))
    worst = worst_cells(rows, "rough", 2)
    assert [(row["layer"], row["kv_head"]) for row in worst] == [(5, 0), (0, 1)]


def test_two_runs_say_what_moved_and_what_changed():
    old = selection_rows(result_rows("r", CELLS))
    new = [row | {"confirm_output_cosine_mean": 0.5, "verdict": "fail"} if row["layer"] == 5 and row["policy"] == "int8" else row for row in old]  # fmt: skip
    moved = movements(old, new)
    assert [(m.policy, m.layer, m.better) for m in moved] == [("int8", 5, False)]
    assert comparison_sentence(9, moved) == "Of 9 cells × policies 1 worse than the baseline's 95 % interval allows."
    assert comparison_sentence(9, []).startswith("Nothing moved: all 9")
    assert [(a["verdict"], b["verdict"]) for a, b in changed_verdicts(old, new)] == [("pass", "fail")]


def test_summaries_know_their_verdict():
    found = {s.policy: s for s in policy_summaries(selection_rows(result_rows("r", CELLS)))}
    assert (found["int8"].verdict, found["rough"].verdict) == ("pass", "fail")
    assert summary("p", 1, **{"insensitive": 10}).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("low", "high", "steps"),
    [(0.0008, 2, [0.001, 0.01, 0.1, 1]), (0.01, 0.4, [0.01, 0.02, 0.05, 0.1, 0.2]), (28, 60, [30, 40, 50, 60])],
)
def test_axis_steps_are_round_and_at_least_three(low, high, steps):
    assert round_steps(low, high) == pytest.approx(steps)
