"""Sharing bytes out: never beaten by any other sharing, floors kept, and costs that rank as they should."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.errors import DimensionMismatch, InputError
from polykv.search.allocation import allocations
from polykv.search.sensitivity import rank_agreement


def tables(seed, units=4, options=4):
    rng = np.random.default_rng(seed)
    return rng.uniform(0, 1, (units, options)), rng.integers(1, 20, (units, options)).astype(float)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31))
def test_no_other_sharing_of_as_few_bytes_costs_less(seed):
    costs, sizes = tables(seed)
    every = np.array(list(product(range(4), repeat=4)))
    units = np.arange(4)
    all_costs, all_bytes = costs[units, every].sum(axis=1), sizes[units, every].sum(axis=1)
    found = allocations(costs, sizes)
    for one in found:
        assert one.total_cost <= all_costs[all_bytes <= one.total_bytes].min() + 1e-12
        assert one.total_cost == pytest.approx(costs[units, one.options].sum())
    assert found[-1].total_cost == pytest.approx(all_costs.min())
    assert found[0].total_bytes == all_bytes.min()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.floats(0, 12))
def test_bytes_rise_costs_and_prices_fall_and_the_floor_holds(seed, floor):
    costs, sizes = tables(seed)
    sizes[:, 0] = 20  # every unit has an option above any floor here
    found = allocations(costs, sizes, floor)
    for before, after in zip(found, found[1:], strict=False):
        assert after.total_bytes > before.total_bytes
        assert after.total_cost < before.total_cost
        assert after.price <= before.price
    assert all((sizes[np.arange(4), one.options] >= floor).all() for one in found)


def test_a_sensitive_unit_gets_the_bytes():
    sizes = np.tile([8.0, 16.0, 32.0], (3, 1))
    costs = np.array([[1, 0.25, 0.06], [100, 25, 6], [1, 0.25, 0.06]])
    found = {one.total_bytes: one.options.tolist() for one in allocations(costs, sizes)}
    assert found[56] in ([0, 2, 1], [1, 2, 0])
    assert found[96] == [2, 2, 2]
    assert allocations(costs, sizes, floor_bytes=16)[0].options.tolist() == [1, 1, 1]


def test_what_cannot_be_shared_is_refused():
    costs, sizes = tables(0)
    with pytest.raises(InputError, match="unit 0 has no option of 99 bytes or more"):
        allocations(costs, sizes, 99)
    with pytest.raises(DimensionMismatch, match="must both be"):
        allocations(costs, sizes[:, :2])
    for bad in (np.nan, np.inf, -1.0):
        wrong = costs.copy()
        wrong[2, 1] = bad
        with pytest.raises(InputError, match="unit 2, option 1"):
            allocations(wrong, sizes)


def test_rank_agreement_is_of_ranks():
    truth = np.array([0.1, 5, 2, 9, 3])
    assert rank_agreement(np.exp(truth), truth) == pytest.approx(1)
    assert rank_agreement(-truth, truth) == pytest.approx(-1)
    assert rank_agreement([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(0.8)
    for wrong in ([1.0, 1, 1, 1, 1], [1.0, 2, np.nan, 4, 5], [1.0, 2]):
        with pytest.raises(InputError, match="constant|cannot be compared"):
            rank_agreement(wrong, truth)
