"""The transform: independent coordinates in the metric, bits by reverse water-filling, codewords that pay."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.calibration.sample import sample_of_cells
from polykv.calibration.transform import (
    METRIC_FLOOR,
    fit_basis,
    fit_transform_pq,
    groupings,
    key_metric,
    value_metric,
    water_level,
)
from polykv.codecs.transform_pq import transform_pq_codec
from polykv.errors import DimensionMismatch, InputError
from polykv.rotation import Rotation
from tests.replay.cells import make_cell


def rows_of(seed=0, n=3000, d=12):
    """Correlated rows around a mean."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + 3.0).astype(np.float32)


def metric_of(seed=1, d=12):
    root = np.random.default_rng(seed).normal(size=(d, d))
    return root @ root.T


def test_coordinates_are_white_and_come_back():
    rows, metric = rows_of(), metric_of()
    basis = fit_basis(rows, metric)
    z = basis.coordinates(rows)
    np.testing.assert_allclose(np.cov(z.T, bias=True), np.eye(12), atol=1e-6)
    np.testing.assert_allclose(z @ basis.synthesis.T + basis.mean, rows, atol=1e-4)
    assert (np.diff(basis.costs) <= 0).all()


def test_costs_are_what_dropping_a_coordinate_costs_in_the_metric():
    rows, metric = rows_of(), metric_of()
    basis = fit_basis(rows, metric)
    floored = metric + METRIC_FLOOR * np.trace(metric) / 12 * np.eye(12)
    for place in (0, 5, 11):
        lost = np.outer(basis.coordinates(rows)[:, place], basis.synthesis[:, place])
        assert np.einsum("nd,de,ne->n", lost, floored, lost).mean() == pytest.approx(basis.costs[place], rel=1e-6)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20), st.floats(0.5, 200))
def test_the_water_level_gives_out_all_bits(costs, total):
    costs = np.array(costs)
    level = water_level(costs, total)
    assert np.maximum(0, 0.5 * np.log2(costs / level)).sum() == pytest.approx(total, rel=1e-6)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=24), st.integers(1, 12))
def test_groupings_cover_leading_coordinates_and_cost_less_the_more_there_are(costs, most):
    costs = np.sort(np.array(costs))[::-1]
    found = groupings(costs, most)
    assert len(found) == min(most, len(costs))
    for count, grouping in enumerate(found, start=1):
        assert grouping.edges[0] == 0
        assert len(grouping.edges) == count + 1
        assert (np.diff(grouping.edges) > 0).all()
        assert grouping.edges[-1] <= len(costs)
    assert all(
        more.cost <= fewer.cost * (1 + 1e-9) or len(fewer.edges) > len(costs) // 2 for fewer, more in pairwise(found)
    )


def test_a_grouping_is_the_cheapest_of_all():
    costs = np.array([9.0, 4.0, 1.0, 0.5, 0.1, 0.01])
    cost_of = {}
    for edges in combinations(range(1, 7), 2):
        cost_of[(0, *edges)] = sum(groupings(costs[low:high], 1)[0].cost if groupings(costs[low:high], 1)[0].edges[-1] == high - low else np.inf for low, high in pairwise((0, *edges))) + costs[edges[-1] :].sum()  # fmt: skip
    assert groupings(costs, 2)[1].cost == pytest.approx(min(cost_of.values()))


def test_more_bytes_are_expected_to_cost_less_and_do():
    rows, metric = rows_of(d=16), metric_of(d=16)
    basis = fit_basis(rows, metric)
    real = []
    for n_bytes in (2, 5, 9):
        codec = transform_pq_codec(fit_transform_pq(basis, rows, n_bytes))
        assert codec.n_groups == n_bytes
        left = basis.coordinates(codec.decode(codec.encode(rows))) - basis.coordinates(rows)
        real.append((np.square(left) @ basis.costs).mean())
        assert 0.4 < real[-1] / basis.expected_cost(n_bytes) < 2.5
    assert real[0] > 2 * real[1] > 4 * real[2]


@pytest.mark.parametrize("n_bytes", [2, 4, 8])
def test_decoded_coordinates_vary_as_much_as_what_was_coded(n_bytes):
    rows = rows_of()
    basis = fit_basis(rows, np.eye(12))
    codec = transform_pq_codec(fit_transform_pq(basis, rows, n_bytes))
    z, decoded = (basis.coordinates(x) for x in (rows, codec.decode(codec.encode(rows))))
    slopes, energies = (z * decoded).mean(axis=0), (decoded * decoded).mean(axis=0)
    kept = slopes > 0.6  # below that the gain is bounded
    assert kept.sum() >= n_bytes
    np.testing.assert_allclose(energies[kept], 1, atol=0.03)
    assert (slopes < 1).all()
    assert slopes[kept].min() < 0.97  # a least squares code would vary by its slope


def test_the_metric_moves_bits_to_what_matters():
    rows = np.random.default_rng(0).normal(size=(2000, 8)).astype(np.float32)
    weights = np.array([100.0, 100.0, 1, 1, 1, 1, 1, 1])
    errors = []
    for metric in (np.diag(weights), np.eye(8)):
        codec = transform_pq_codec(fit_transform_pq(fit_basis(rows, metric), rows, 3))
        errors.append((np.square(codec.decode(codec.encode(rows)) - rows) @ weights).mean())
    assert errors[0] < 0.5 * errors[1]


def test_the_same_rows_give_the_same_bytes_and_another_seed_others():
    rows = rows_of()
    basis = fit_basis(rows, np.eye(12))
    first, again, other = (fit_transform_pq(basis, rows, 4, seed) for seed in (0, 0, 1))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["codewords"], other["codewords"])


def test_a_rotation_that_does_not_turn_leaves_the_metric_as_it_is():
    sample = sample_of_cells([make_cell()], "key", 2, 4)
    still = Rotation(np.zeros(sample.rows.shape[1] // 2))
    np.testing.assert_allclose(key_metric(sample, still), key_metric(sample), rtol=1e-4, atol=1e-9)


def test_the_value_metric_is_the_same_in_every_direction():
    metric = value_metric(sample_of_cells([make_cell()], "value", 2, 4))
    np.testing.assert_array_equal(metric, metric[0, 0] * np.eye(len(metric)))
    assert metric[0, 0] > 0


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: fit_basis(rows_of(), np.eye(5)), DimensionMismatch, "12 wide"),
        (lambda: fit_basis(rows_of(n=1), np.eye(12)), InputError, "at least 2"),
        (lambda: fit_transform_pq(fit_basis(rows_of(n=100), np.eye(12)), rows_of(n=100), 4), InputError, "100 calibration"),
        (lambda: fit_transform_pq(fit_basis(rows_of(), np.eye(12)), rows_of(), 0), InputError, "n_bytes is 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_fitted_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()
