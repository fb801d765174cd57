"""Intervals that hold what they promise, and rate curves that can really be had."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.calibration.resampling import bootstrap_sums, interval, time_sharing


def test_bootstrap_draws_whole_units_deterministically():
    values = np.arange(12.0).reshape(6, 2)
    sums = bootstrap_sums(values, 500, seed=3)
    assert np.array_equal(sums, bootstrap_sums(values, 500, seed=3))
    assert not np.array_equal(sums, bootstrap_sums(values, 500, seed=4))
    # column 1 is column 0 plus 1: whatever was drawn, six units were
    np.testing.assert_allclose(sums[:, 1] - sums[:, 0], 6)
    assert sums[:, 0].mean() == pytest.approx(values[:, 0].sum(), rel=0.02)


def test_chunks_do_not_change_the_draw_of_large_samples(monkeypatch):
    monkeypatch.setattr("polykv.calibration.resampling.CHUNK_COUNTS", 50)
    sums = bootstrap_sums(np.ones((10, 1)), 23, seed=0)
    assert sums.ravel().tolist() == [10.0] * 23


@pytest.mark.parametrize("n_units", [6, 10, 24])
def test_intervals_cover_as_often_as_they_say(n_units):
    """Skewed units (exponential), a ratio of sums: 95 % intervals cover in at least 89 % of 400 samples.

    The unwidened percentile interval covers 80 to 91 %.
    """
    rng = np.random.default_rng(0)
    covered = 0
    for seed in range(400):
        wrong, energy = rng.exponential(1.0, n_units), rng.exponential(2.0, n_units) + 3
        sums = bootstrap_sums(np.column_stack([wrong, energy]), 300, seed)
        low, high = interval(sums[:, 0] / sums[:, 1], n_units)
        covered += low <= 1.0 / 5.0 <= high
    assert covered >= 0.89 * 400


def test_the_interval_of_a_mean_is_about_the_t_interval():
    values = np.random.default_rng(5).normal(size=(8, 1))
    low, high = interval(bootstrap_sums(values, 20_000, 0)[:, 0] / 8, 8)
    half = 2.365 * values.std(ddof=1) / np.sqrt(8)
    assert (high - low) / 2 == pytest.approx(half, rel=0.12)


def test_time_sharing_worked_example():
    bits, squared = np.array([0.0, 80.0, 144.0]), np.array([1.0, 0.36, 0.12])
    assert time_sharing(bits, squared, 112).tolist() == [0, 0.5, 0.5]
    assert time_sharing(bits, squared, 0).tolist() == [1, 0, 0]
    assert time_sharing(bits, squared, 1e9).tolist() == [0, 0, 1]
    # a point above the hull is passed over, a dearer and worse one never used
    assert time_sharing(np.array([0.0, 50.0, 100.0]), np.array([1.0, 0.9, 0.2]), 50).tolist() == [0.5, 0, 0.5]
    assert time_sharing(np.array([0.0, 50.0, 100.0]), np.array([1.0, 0.1, 0.2]), 70).tolist() == [0, 1, 0]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(1, 500), st.floats(0, 2)), min_size=1, max_size=8, unique_by=lambda p: p[0]),
    st.floats(0, 600),
)
def test_time_sharing_can_be_paid_for(points, at):
    bits = np.array([0.0, *(p[0] for p in points)])
    squared = np.array([1.0, *(p[1] for p in points)])
    weights = time_sharing(bits, squared, at)
    assert weights.sum() == pytest.approx(1)
    assert np.all(weights >= 0)
    assert weights @ bits <= at * (1 + 1e-9)
    affordable = squared[bits <= at].min()
    assert weights @ squared <= affordable * (1 + 1e-9)
