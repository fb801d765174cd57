"""Paired intervals, verdicts that are honest at the limit, and how many passages would decide."""

import numpy as np
import pytest

from polykv.certify.statistics import paired_interval, passages_to_decide
from polykv.replay.statistics import Interval


def test_interval_of_known_numbers_contains_students():
    values = np.array([0.01, 0.02, 0.03, 0.02, 0.01, 0.03])
    found = paired_interval(values, np.zeros(6), seed=1)
    reach = 2.570582 * values.std(ddof=1) / np.sqrt(6)
    assert found.mean == pytest.approx(0.02)
    assert found.low <= 0.02 - reach + 1e-9
    assert found.high >= 0.02 + reach - 1e-9
    assert found == paired_interval(values, np.zeros(6), seed=1)


def test_negative_differences_are_kept():
    found = paired_interval(np.array([-0.02, -0.01, -0.03, -0.02]), np.zeros(4), seed=1)
    assert found.low < found.mean < 0


def test_one_passage_has_no_interval():
    found = paired_interval(np.array([0.1]), np.zeros(1), seed=1)
    assert found.mean == 0.1
    assert np.isnan(found.low)
    assert np.isnan(found.high)


def test_few_passages_have_students_interval():
    """Resamples of three nearly equal numbers would put the end anywhere."""
    values = np.array([0.010, 0.010, 0.011])
    found = paired_interval(values, np.zeros(3), seed=1)
    assert found.high - found.mean == pytest.approx(4.302653 * values.std(ddof=1) / np.sqrt(3))


def test_equal_differences_have_an_interval_of_no_width():
    found = paired_interval(np.full(10, 0.1), np.zeros(10), seed=1)
    assert found.high - found.low < 1e-12


def test_five_documents_are_the_units():
    values = np.repeat([0.0, 0.1, 0.2, 0.3, 0.4], 4)
    by_document = paired_interval(values, np.repeat(range(5), 4), seed=1)
    by_passage = paired_interval(values, np.zeros(20), seed=1)
    assert by_document.n_units == 5
    assert by_document.high - by_document.low > by_passage.high - by_passage.low


@pytest.mark.parametrize("law", ["normal", "gamma", "lognormal", "shifted"])
def test_a_policy_at_its_limit_seldom_passes(law):
    """True mean = limit: of 1,000 certifications of 10 passages, at most 4 % have their whole interval below."""
    rng = np.random.default_rng(11)
    draws = {
        "normal": rng.normal(1.0, 0.6, (1000, 10)),
        "gamma": rng.gamma(2.0, 0.5, (1000, 10)),
        "shifted": rng.gamma(2.0, 0.7, (1000, 10)) - 0.4,
        "lognormal": np.exp(rng.normal(-0.125, 0.5, (1000, 10))),
    }[law]
    passed = sum(paired_interval(row, np.zeros(10), seed=3).high < 1.0 for row in draws)
    assert passed / 1000 <= 0.04


def test_passages_to_decide_shrinks_the_reach_to_the_gap():
    # reach 0.2 at 10 passages, gap 0.1: t falls from 2.26 to about 2.03 while √n must grow
    needed = passages_to_decide(Interval(1.0, 0.8, 1.2, 10), 1.1, 10)
    assert 30 <= needed <= 36
    assert passages_to_decide(Interval(1.0, 0.8, 1.2, 5), 1.1, 10) == 26  # 13 documents of two passages
    assert passages_to_decide(Interval(1.0, 0.8, 1.2, 10), 0.9, 10) == needed
    assert passages_to_decide(Interval(1.0, 0.8, 1.2, 10), 1.0, 10) is None
    assert passages_to_decide(Interval(1.0, 0.0, 2.0, 10), 1.0001, 10) is None
    assert passages_to_decide(Interval(1.0, float("nan"), float("nan"), 1), 1.1, 1) == 6
