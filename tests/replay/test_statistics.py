"""Intervals over passages: what a cell at the limit may get away with."""

import numpy as np
import pytest

from polykv.replay.config import DEFAULT_GATES, Gate
from polykv.replay.gates import cell_verdict
from polykv.replay.statistics import cluster_means, error_interval, metric_interval

CELLS = 2_000
DISTRIBUTIONS = {
    "normal": (lambda rng, size: rng.normal(1.0, 0.2, size), 1.0),
    "log-normal, sigma 0.3": (lambda rng, size: rng.lognormal(0, 0.3, size), np.exp(0.3**2 / 2)),
    "log-normal, sigma 0.5": (lambda rng, size: rng.lognormal(0, 0.5, size), np.exp(0.5**2 / 2)),
    "gamma, shape 4": (lambda rng, size: rng.gamma(4.0, 1.0, size), 4.0),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_cell_at_the_limit_rarely_passes(name):
    """At most 4 % of synthetic cells whose true error is the limit itself may pass (12 passages)."""
    draw, true_mean = DISTRIBUTIONS[name]
    rng = np.random.default_rng(7)
    gate = Gate("output_relative_error_mean", "max", 0.05)
    documents = np.zeros(12, int)
    passed = 0
    for errors in draw(rng, (CELLS, 12)) * (0.05 / true_mean):
        interval = metric_interval(np.abs(errors), documents, perfect=0.0)
        passed += cell_verdict([gate], {gate.metric: interval}, 12)[0] == "pass"
    assert passed / CELLS <= 0.04


def test_a_cell_clearly_better_than_the_limit_passes():
    rng = np.random.default_rng(8)
    gate = Gate("output_relative_error_mean", "max", 0.05)
    verdicts = []
    for errors in rng.lognormal(0, 0.3, (200, 12)) * 0.03:
        interval = metric_interval(errors, np.zeros(12, int), perfect=0.0)
        verdicts.append(cell_verdict([gate], {gate.metric: interval}, 12)[0])
    assert verdicts.count("pass") > 190
    assert "fail" not in verdicts


def test_a_cosine_is_judged_by_its_distance_to_one():
    values = np.array([0.9995, 0.9990, 0.9992, 0.9997, 0.9993, 0.9991])
    cosine = metric_interval(values, np.zeros(6, int), perfect=1.0)
    error = metric_interval(1 - values, np.zeros(6, int), perfect=0.0)
    np.testing.assert_allclose([cosine.low, cosine.high], [1 - error.high, 1 - error.low])
    assert cosine.low < cosine.mean < cosine.high <= 1.0


def test_five_documents_are_units_and_four_are_not():
    values = np.array([1.0, 3.0, 5.0, 5.0, 5.0, 5.0, 9.0])
    assert cluster_means(values, np.array([0, 0, 1, 1, 2, 3, 4])).tolist() == [2.0, 5.0, 5.0, 5.0, 9.0]
    assert cluster_means(values, np.array([0, 0, 1, 1, 2, 3, 3])).tolist() == values.tolist()


def test_repeated_passages_of_one_document_do_not_narrow_the_interval():
    rng = np.random.default_rng(3)
    documents = np.repeat(np.arange(6), 10)
    once = rng.uniform(0.01, 0.05, 6)
    many = metric_interval(np.repeat(once, 10), documents, perfect=0.0)
    few = metric_interval(once, np.arange(6), perfect=0.0)
    np.testing.assert_allclose([many.low, many.high], [few.low, few.high])


@pytest.mark.parametrize("errors", [[], [0.1], [0.1, np.nan]])
def test_without_two_finite_units_there_is_no_interval(errors):
    interval = error_interval(np.array(errors, float))
    assert np.isnan(interval.low)
    assert np.isnan(interval.high)


@pytest.mark.parametrize("n_passages", [1, 2, 5])
def test_fewer_than_six_passages_decide_nothing(n_passages):
    perfect = {g.metric: metric_interval(np.full(n_passages, p), np.zeros(n_passages), p) for g, p in zip(DEFAULT_GATES, (1.0, 0.0), strict=True)}  # fmt: skip
    verdict, reason = cell_verdict(DEFAULT_GATES, perfect, n_passages)
    assert verdict == "inconclusive"
    assert f"{n_passages} of at least 6" in reason
