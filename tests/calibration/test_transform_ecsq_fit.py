"""Fitting transform_ecsq: the bits and the cost that were expected are those that come, what does not vary is dropped."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.calibration.transform import Basis, fit_basis
from polykv.calibration.transform_ecsq import (
    expected_bits,
    expected_cost,
    fit_models,
    fit_transform_ecsq,
    step_for_bits,
)
from polykv.codecs.entropy import MOST_SYMBOL, N_WIDTHS, block_models, stream_bits, table_widths
from polykv.codecs.transform_ecsq import transform_ecsq_codec
from polykv.errors import InputError


def rows_of(seed=0, n=4000, d=16):
    """Correlated Gaussian rows around a mean; another seed, other rows of the same distribution."""
    mix = np.random.default_rng(99).normal(size=(d, d))
    return (np.random.default_rng(seed).normal(size=(n, d)) @ mix + 3.0).astype(np.float32)


def metric_of(d=16):
    root = np.random.default_rng(1).normal(size=(d, d))
    return root @ root.T


def basis_of_costs(costs):
    d = len(costs)
    return Basis(np.zeros(d), np.eye(d), np.eye(d), np.array(costs, float), ())


@pytest.mark.parametrize("bits", [8, 30, 70])
def test_new_rows_take_the_bits_and_the_cost_that_were_expected(bits):
    basis = fit_basis(rows_of(), metric_of())
    step = step_for_bits(basis, bits)
    assert expected_bits(basis, step).sum() == pytest.approx(bits, rel=1e-6)
    codec = transform_ecsq_codec(fit_transform_ecsq(basis, rows_of(), step))
    rows = rows_of(seed=5)
    codes = codec.encode(rows)
    left = basis.coordinates(codec.decode(codes)) - basis.coordinates(rows)
    assert (np.square(left) @ basis.costs).mean() == pytest.approx(expected_cost(basis, step), rel=0.08)
    entropy = 8 * codec.entropy_bytes(rows) / len(rows)
    assert entropy == pytest.approx(bits, rel=0.04)
    blocks = 63  # a word to round up to and an offset for each
    assert 8 * codec.nbytes(codes) / len(rows) == pytest.approx(entropy + blocks * 48 / len(rows), abs=0.4)


@settings(deadline=None, max_examples=25)
@given(st.floats(0.02, 8.0))
def test_entropy_and_error_of_a_rounded_gaussian(ratio):
    """Against sums over a fine grid of the density."""
    z = np.linspace(-9, 9, 180001)
    mass = np.exp(-0.5 * z**2)
    mass /= mass.sum()
    symbol = np.rint(z / ratio).astype(int)
    share = np.bincount(symbol - symbol.min(), mass)
    share = share[share > 0]
    basis = basis_of_costs([4.0])
    assert expected_bits(basis, 2 * ratio)[0] == pytest.approx(-(share * np.log2(share)).sum(), abs=1e-3)
    assert expected_cost(basis, 2 * ratio) == pytest.approx(4 * (mass * (z - ratio * symbol) ** 2).sum(), rel=2e-3)


def test_the_fine_limit_meets_the_sum():
    basis = basis_of_costs([1.0])
    below, above = (expected_bits(basis, 0.05 * side)[0] for side in (1 - 1e-12, 1 + 1e-12))
    assert below == pytest.approx(above, abs=1e-6)
    below, above = (expected_cost(basis, 0.05 * side) for side in (1 - 1e-12, 1 + 1e-12))
    assert below == pytest.approx(above, rel=1e-6)


def test_the_size_of_vectors_is_kept():
    """A level is the middle of its step: decoded vectors are not drawn towards the mean, as least squares has it."""
    rows = rows_of()
    basis = fit_basis(rows, metric_of())
    codec = transform_ecsq_codec(fit_transform_ecsq(basis, rows, 1.5 * np.sqrt(basis.costs[0])))
    first, decoded = (basis.coordinates(x)[:, 0] for x in (rows, codec.decode(codec.encode(rows))))
    slope = (first @ decoded) / (first @ first)
    assert slope == pytest.approx(1, abs=0.06)


def test_coordinates_that_do_not_vary_or_do_not_matter_are_dropped():
    rows = rows_of(d=8)
    rows[:, 3] = 7.0
    rows[:, 5] = rows[:, 4]
    basis = fit_basis(rows, np.eye(8))
    codec = transform_ecsq_codec(fit_transform_ecsq(basis, rows, 0.05))
    assert codec.n_coordinates == 6
    decoded = codec.decode(codec.encode(rows))
    np.testing.assert_allclose(decoded[:, 3], 7.0, atol=0.05)
    np.testing.assert_allclose(decoded[:, 5], decoded[:, 4], atol=0.05)
    coarse = transform_ecsq_codec(fit_transform_ecsq(basis, rows, 8 * np.sqrt(basis.costs[1])))
    assert coarse.n_coordinates < 3


def test_rows_that_are_all_the_same_are_the_mean_and_take_no_bits():
    rows = np.full((300, 8), 2.5, np.float32)
    basis = fit_basis(rows, np.eye(8))
    codec = transform_ecsq_codec(fit_transform_ecsq(basis, rows, 1.0))
    assert codec.n_coordinates == 0
    np.testing.assert_array_equal(codec.decode(codec.encode(rows)), rows)
    assert expected_bits(basis, 1.0).sum() == 0
    assert expected_cost(basis, 1.0) == 0
    with pytest.raises(InputError, match="no coordinate varies"):
        step_for_bits(basis, 10)


@pytest.mark.parametrize("size", [1e-4, 1e4])
def test_the_size_of_the_vectors_does_not_matter(size):
    plain, sized = rows_of(), (rows_of() * size).astype(np.float32)
    symbols = []
    for rows, metric in ((plain, metric_of()), (sized, metric_of() / size**2)):
        basis = fit_basis(rows, metric)
        codec = transform_ecsq_codec(fit_transform_ecsq(basis, rows, step_for_bits(basis, 50)))
        symbols.append(codec.symbols(rows))
    assert np.mean(np.abs(symbols[0]) == np.abs(symbols[1])) > 0.98


def test_widths_and_shares_are_those_of_the_symbols():
    """Of white noise no neighbour tells; of a slow column those next to a symbol say more than those two away."""
    rng = np.random.default_rng(0)
    white = rng.normal(size=(6400, 2)) * [0.4, 20]
    slow = np.zeros((6400, 1))
    for t in range(1, 6400):
        slow[t] = 0.9 * slow[t - 1] + 4 * rng.normal()
    fitted = fit_models(np.rint(np.concatenate([white, slow], axis=1)).astype(np.int64))
    shares, sizes = fitted["shares"], table_widths()[fitted["widths"]]
    assert (shares[0] == 0).all()
    assert shares[:, :2].max() <= 3
    # between two neighbours of correlation r the middle is r / (1 + r²) of their sum
    assert shares[2, 2] == pytest.approx(64 * 0.9 / (1 + 0.81), abs=1)
    assert shares[1, 2] == pytest.approx(64 * 0.81 / (1 + 0.81**2), abs=1)
    np.testing.assert_allclose(sizes[:, 1], 20, rtol=0.15)
    innovation = 4 / np.sqrt(1 + 0.81)
    assert sizes[2, 2] == pytest.approx(innovation, rel=0.15)
    assert sizes[0, 2] > 1.5 * sizes[1, 2] > 1.5 * sizes[2, 2]


@pytest.mark.parametrize("size", [0.2, 0.6, 3, 60, 200])
def test_no_other_width_takes_fewer_bits(size):
    rng = np.random.default_rng(0)
    slow = np.zeros((1920, 2))
    for t in range(1, len(slow)):
        slow[t] = 0.8 * slow[t - 1] + size * rng.normal(size=2)
    symbols = np.rint(slow).astype(np.int64)
    fitted = fit_models(symbols)

    def bits(widths):
        models = block_models(widths, fitted["shares"])
        return sum(stream_bits(symbols[i : i + 64], models) for i in range(0, len(symbols), 64))

    own = bits(fitted["widths"])
    for i in range(3):
        others = []
        for width in {int(w) + by for w in fitted["widths"][i] for by in range(-5, 6)} & set(range(N_WIDTHS)):
            widths = fitted["widths"].copy()
            widths[i] = width
            others.append(bits(widths))
        assert (own <= 1.002 * np.min(others, axis=0)).all(), (i, own, np.min(others, axis=0))


def test_neighbours_of_the_other_sign_have_no_share():
    symbols = np.where(np.arange(640) % 2 == 0, 10, -10)[:, None]
    assert fit_models(symbols)["shares"][:, 0].tolist() == [0, 32, 0]


def test_shares_of_the_largest_symbols_are_those_of_small_ones():
    rng = np.random.default_rng(0)
    white = rng.integers(-MOST_SYMBOL, MOST_SYMBOL, (640, 3))
    large = np.concatenate([white, np.full((640, 1), MOST_SYMBOL), (white[:, :1] + 3 * MOST_SYMBOL) // 4], axis=1)
    shares = fit_models(large)["shares"]
    assert (np.abs(shares.astype(int) - fit_models(large >> 16)["shares"]) <= 1).all()
    assert shares[1, 3] == 32


def test_one_symbol_far_out_does_not_widen_a_column():
    narrow = np.rint(np.random.default_rng(0).normal(size=(2000, 4)) * 0.5).astype(np.int64)
    one_far = narrow.copy()
    one_far[8, 2] = 100_000
    assert np.abs(fit_models(one_far)["widths"].astype(int) - fit_models(narrow)["widths"]).max() <= 1


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_rows_can_be_fitted(n):
    rows = rows_of(n=n + 40)[:n]
    basis = fit_basis(rows_of(), metric_of())
    codec = transform_ecsq_codec(fit_transform_ecsq(basis, rows, step_for_bits(basis, 40)))
    codec.decode(codec.encode(rows_of(seed=3, n=70)))


def test_of_many_rows_whole_blocks_are_counted():
    """Every second symbol up, the next down: neighbours tell all, unless rows are taken out between them."""
    rows = np.zeros((200_000, 2), np.float32)
    rows[::2] = 1.0
    fitted = fit_transform_ecsq(fit_basis(rows, np.eye(2)), rows, 0.25)
    assert (fitted["widths"][1] == 0).all()
    assert (fitted["shares"][1] == 32).all()


def test_of_many_rows_the_last_count_too():
    rows = np.zeros((200_000, 2), np.float32)
    rows[150_000:] = np.random.default_rng(0).normal(size=(50_000, 2))
    assert fit_transform_ecsq(fit_basis(rows, np.eye(2)), rows, 0.25)["widths"].shape == (3, 2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda basis: fit_transform_ecsq(basis, rows_of()[:0], 1.0), "no calibration vectors"),
        (lambda basis: fit_transform_ecsq(basis, rows_of(), 0.0), "step is 0.0"),
        (lambda basis: fit_transform_ecsq(basis, rows_of(), 1e-12), "raise step"),
        (lambda basis: expected_bits(basis, float("nan")), "step is nan"),
        (lambda basis: expected_cost(basis, -1.0), "step is -1.0"),
        (lambda basis: step_for_bits(basis, 0), "bits is 0"),
    ],
)
def test_what_cannot_be_fitted_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call(fit_basis(rows_of(), metric_of()))
