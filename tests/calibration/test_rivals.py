"""The rivals are as good as theory says at the bits they charge: a weak rival would make any verdict cheap."""

import numpy as np
import pytest
from gonogo_samples import gaussian

from polykv.calibration.rivals import (
    ChannelGroups,
    Fib,
    Int8,
    Nothing,
    Rows,
    TurboScalar,
    Uniform,
    channel_groups,
    lloyd_max_levels,
    rival_curves,
)

# Max (1960): mean squared error of the optimal quantiser of a standard normal.
MAX_1960 = {1: 0.3634, 2: 0.1175, 3: 0.03454, 4: 0.009497}


def relative_error(rival, rows, runs=None):
    runs = np.zeros(len(rows), np.int64) if runs is None else runs
    coded = rival.code(Rows(rows, np.zeros(len(rows), np.int64), rows.mean(axis=0, keepdims=True), runs))
    return np.linalg.norm(coded.decoded - rows) / np.linalg.norm(rows), coded


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_turbo_scalar_reaches_the_lloyd_max_error(bits):
    levels = lloyd_max_levels(bits)
    np.testing.assert_allclose(levels, -levels[::-1], atol=1e-9)
    error, coded = relative_error(TurboScalar(bits, seed=1), gaussian(0))
    # the gain fitted to each vector of 64 numbers makes it a little better than the scalar optimum
    assert 0.92 * MAX_1960[bits] < error**2 < 1.01 * MAX_1960[bits]
    assert coded.bits == 2048 * (64 * bits + 16)
    assert coded.side_nbytes == 0


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_uniform_uses_all_its_levels(bits):
    rival = Uniform(bits)
    scales, levels = rival._best(gaussian(0))
    assert len(np.unique(levels)) == 2**bits
    assert scales.dtype == np.float16
    error, coded = relative_error(rival, gaussian(0))
    assert coded.bits == 2048 * (64 * bits + 16)
    assert error**2 < {1: 0.364, 2: 0.119, 4: 0.0116, 8: 1e-4}[bits]


def test_a_clip_beats_no_clip():
    """With an outlier in every vector, the tuned clip gives it up where that pays."""
    rows = gaussian(0)
    rows[:, 0] = 4.5
    largest = np.abs(rows).max(axis=1, keepdims=True)
    plain = (np.clip(np.floor(rows / largest * 2), -2, 1) + 0.5) * largest / 2
    error, _ = relative_error(Uniform(2), rows)
    assert error < 0.75 * np.linalg.norm(plain - rows) / np.linalg.norm(rows)


def test_channel_groups_code_outlier_channels_cheaply():
    rows = gaussian(0)
    rows[:, 5] *= 40
    rows[:, 6] += 60
    channel, coded = relative_error(ChannelGroups(2, 32), rows)
    assert channel < 0.3 * relative_error(Uniform(2), rows)[0]
    assert coded.bits == 2048 * 64 * 3


def test_channel_groups_stay_within_their_run():
    """A worked case: runs of 3 and 2 rows, groups of 2; short groups repeat their last row, and are charged whole."""
    runs = np.array([4, 4, 4, 9, 9])
    assert channel_groups(runs, 2).tolist() == [[0, 1], [2, 2], [3, 4]]
    rows = np.array([[0.0], [1.0], [10.0], [-5.0], [-7.0]], np.float32)
    coded = relative_error(ChannelGroups(1, 2), rows, runs)[1]
    np.testing.assert_allclose(coded.decoded, rows, atol=0.01)
    assert coded.bits == 5 * 1 + 3 * 32


def test_centring_takes_the_mean_off_for_the_price_of_the_mean():
    rows = gaussian(0) + np.linspace(-6, 6, 64, dtype=np.float32)
    for plain, centred in ((Uniform(2), Uniform(2, True)), (TurboScalar(2), TurboScalar(2, centered=True))):
        error, coded = relative_error(centred, rows)
        assert error < 0.35 * relative_error(plain, rows)[0]
        assert coded.side_nbytes == 64 * 4
    assert relative_error(Fib(32, centered=True), rows)[0] < relative_error(Fib(32), rows)[0]


def test_every_head_has_its_own_mean():
    head = np.array([0, 1, 1, 0])
    rows = np.array([[4.0, 2], [-8, 0], [-8, 0], [4, 2]], np.float32)
    means = np.array([[4.0, 2], [-8, 0]], np.float32)
    for rival in (Nothing(centered=True), Uniform(1, True), TurboScalar(1, centered=True)):
        coded = rival.code(Rows(rows, head, means, np.zeros(4, np.int64)))
        np.testing.assert_allclose(coded.decoded, rows, atol=1e-6)
        assert coded.side_nbytes == 16


def test_int8_and_fib_are_the_projects_codecs():
    error, coded = relative_error(Int8(), gaussian(0))
    assert coded.bits == 2048 * 8 * 66
    assert error == pytest.approx(0.006, abs=0.001)
    error, coded = relative_error(Fib(32), gaussian(0))
    assert coded.bits == 2048 * 8 * 12
    assert error == pytest.approx(0.51, abs=0.01)


@pytest.mark.parametrize("head_dim", [1, 2, 6, 8, 64])
def test_every_curve_starts_at_nothing_and_falls(head_dim):
    rows = gaussian(3, 96, head_dim) + 1
    rows[7] = 0
    curves, absent = rival_curves(head_dim, seed=0)
    assert ("fib" in absent) == (head_dim < 8 or head_dim % 4 != 0)
    assert {"int8", "uniform", "channel", "turbo_scalar", "uniform_centered", "turbo_scalar_centered"} <= set(curves)
    for family, rivals in curves.items():
        assert isinstance(rivals[0], Nothing)
        errors = [relative_error(rival, rows)[0] for rival in rivals]
        assert np.all(np.isfinite(errors)), family
        assert errors[-1] < 0.75 * errors[0], family


def test_huge_and_tiny_vectors_keep_their_relative_error():
    for scale in (1e-9, 1e9):
        rows = gaussian(0, 64) * np.float32(scale)
        for rival in (Uniform(4), TurboScalar(4), ChannelGroups(4), Int8()):
            assert relative_error(rival, rows)[0] < 0.13, (rival, scale)
