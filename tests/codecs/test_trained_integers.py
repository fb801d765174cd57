"""Fitted arrays as int8 with a scale: small errors, every way to damage them refused, charged as stored."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_transform_pq import make_arrays

from polykv.calibration.storing import CONTEXT_TOKENS, smallest_dtype, stored_transforms
from polykv.calibration.transform import fit_basis, fit_transform_pq
from polykv.calibration.transform_ecsq import fit_models, fit_transform_ecsq
from polykv.codecs.trained import as_integers, from_integers
from polykv.codecs.transform_ecsq import transform_ecsq_codec
from polykv.codecs.transform_pq import transform_pq_codec
from polykv.errors import CodecError, InputError


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 999), st.tuples(st.integers(0, 9), st.integers(1, 9)), st.sampled_from([0, 1]),
    st.sampled_from([1e-30, 1e-6, 1.0, 1e30]), st.sampled_from([np.int8, np.int16]),
)  # fmt: skip
def test_an_error_is_at_most_half_a_level_of_the_largest_number(seed, shape, axis, size, dtype):
    array = size * np.random.default_rng(seed).standard_t(2, shape)
    stored = as_integers("turn", array, axis, dtype)
    assert sorted(stored) == ["turn", "turn_scale"]
    assert (stored["turn"].dtype, stored["turn_scale"].dtype) == (dtype, np.float32)
    assert stored["turn_scale"].shape == tuple(1 if one == axis else n for one, n in enumerate(shape))
    back = from_integers(stored, "turn")
    assert back.dtype == np.float32
    largest = np.abs(array).max(axis=axis, keepdims=True, initial=0)
    assert (np.abs(back - array) <= 1.01 * largest / (2 * np.iinfo(dtype).max)).all()


def test_zeros_stay_zeros_and_what_float32_does_not_hold_is_refused():
    np.testing.assert_array_equal(from_integers(as_integers("a", np.full((3, 4), 1e-60), 1), "a"), np.zeros((3, 4)))
    with pytest.raises(InputError, match="a has numbers up to 1e\\+40"):
        as_integers("a", np.array([[1.0], [1e40]]), 1)
    np.testing.assert_array_equal(
        from_integers(as_integers("a", np.zeros((3, 4)), 1), "a"), np.zeros((3, 4), np.float32)
    )


def small_arrays():
    """A transform_pq artifact with every array that may be int8 as int8."""
    arrays = make_arrays()
    for name, axis in (("analysis", 1), ("synthesis", 0), ("codewords", 0)):
        arrays |= as_integers(name, arrays[name], axis)
    return arrays


def test_a_codec_decodes_as_from_the_products_and_is_charged_what_is_stored():
    small = small_arrays()
    plain = {name: array for name, array in small.items() if not name.endswith("_scale")}
    plain |= {name: from_integers(small, name) for name in ("analysis", "synthesis", "codewords")}
    codec, other = transform_pq_codec(small), transform_pq_codec(plain)
    x = np.random.default_rng(2).normal(size=(30, 16)).astype(np.float32)
    codes = codec.encode(x)
    np.testing.assert_array_equal(codes["indices"], other.encode(x)["indices"])
    np.testing.assert_array_equal(codec.decode(codes), other.decode(codes))
    assert codec.side_nbytes() == 4 * 16 + 2 * 16 * 6 + 256 * 6 + 3 * 4 * 6
    assert other.side_nbytes() == 4 * (16 + 2 * 16 * 6 + 256 * 6)


@pytest.mark.parametrize(
    ("scale", "error", "words"),
    [
        (None, CodecError, "analysis' is int8 and its analysis_scale is missing"),
        (np.ones((6, 1)), CodecError, "its scale float64 of \\(6, 1\\)"),
        (np.ones(6, np.float32), CodecError, "its scale float32 of \\(6,\\)"),
        (np.ones((5, 1), np.float32), CodecError, "its scale float32 of \\(5, 1\\)"),
        (np.full((6, 1), np.nan, np.float32), CodecError, "analysis' has a scale of nan"),
        (np.full((6, 1), np.inf, np.float32), CodecError, "analysis' has a scale of inf"),
        (np.full((6, 1), 3e38, np.float32), CodecError, "analysis' has a scale of .*at most 2.7e\\+36"),
        (np.zeros((6, 1), np.float32), CodecError, "analysis' has a scale of 0.0, must be above 0"),
        (np.full((6, 1), -1, np.float32), CodecError, "analysis' has a scale of -1.0"),
    ],
)
def test_a_scale_that_is_none_is_refused(scale, error, words):
    arrays = {name: array for name, array in small_arrays().items() if name != "analysis_scale"}
    if scale is not None:
        arrays["analysis_scale"] = scale
    with pytest.raises(error, match=words):
        transform_pq_codec(arrays)


def test_only_arrays_that_may_be_scaled_are():
    """An index that happens to be stored as int8 is an index; wide integers are no numbers a codec was fitted with."""
    small = small_arrays()
    group = transform_pq_codec(small | {"group": small["group"].astype(np.int8)}).arrays["group"]
    np.testing.assert_array_equal(group, small["group"])
    swapped = small | {"analysis": small["analysis"].astype(">i2")}
    np.testing.assert_array_equal(transform_pq_codec(swapped).arrays["analysis"], from_integers(small, "analysis"))
    with pytest.raises(CodecError, match="analysis' is int64, must be floats, int8 or int16"):
        transform_pq_codec(small | {"analysis": small["analysis"].astype(np.int64)})


@pytest.mark.parametrize("size", [1e-90, 1e-20, 1e80])
def test_metrics_of_any_size_give_the_same_codes(size):
    rows = np.random.default_rng(0).normal(size=(600, 8)).astype(np.float32)
    metrics = [np.eye(8), np.eye(8) * size]
    coded = [transform_pq_codec(fit_transform_pq(fit_basis(rows, m), rows, 3)) for m in metrics]
    np.testing.assert_allclose(coded[0].decode(coded[0].encode(rows)), coded[1].decode(coded[1].encode(rows)), atol=0.1)
    bases = [fit_basis(rows, m) for m in metrics]
    symbols = [
        transform_ecsq_codec(fit_transform_ecsq(b, rows, 0.3 * np.sqrt(b.costs[0]))).symbols(rows) for b in bases
    ]
    assert np.mean(np.abs(symbols[0]) == np.abs(symbols[1])) > 0.97


def test_what_is_stored_is_what_is_fitted():
    """Of 16 numbers 5 vary, far from the mean: fewer coordinates than numbers, models of the symbols that come."""
    rng = np.random.default_rng(3)
    rows = (rng.normal(size=(3000, 5)) @ rng.normal(size=(5, 16)) + 50).astype(np.float32)
    basis = fit_basis(rows, np.eye(16))
    arrays = fit_transform_ecsq(basis, rows, 0.2 * np.sqrt(basis.costs[0]))
    n = arrays["analysis"].shape[0]
    assert n <= 5
    assert (arrays["analysis"].dtype, arrays["synthesis"].dtype) == (np.int8, np.int8)
    assert (arrays["analysis_scale"].shape, arrays["synthesis_scale"].shape) == ((n, 1), (1, n))
    models = fit_models(transform_ecsq_codec(arrays).symbols(rows))
    assert all(np.array_equal(arrays[name], models[name]) for name in models)


def test_a_stored_analysis_is_undone_by_its_synthesis():
    """Also when fewer coordinates are kept than there are, and then within the coordinates' own directions."""
    rng = np.random.default_rng(0)
    turn = rng.normal(size=(8, 8))
    back = np.linalg.inv(turn)
    for kept in (8, 5, 0):
        stored, synthesis = stored_transforms(turn[:kept], back[:, :kept])
        np.testing.assert_allclose(from_integers(stored, "analysis") @ synthesis, np.eye(kept), atol=1e-9)
        np.testing.assert_allclose(turn[kept:] @ synthesis, 0, atol=1e-9)


@pytest.mark.parametrize("n_numbers", [4096, 20480])
def test_a_second_byte_has_to_pay_for_itself(n_numbers):
    """By the bytes a vector of 64 numbers is worth, at 6 dB a bit, over the context that is named."""
    ratio = 4 ** (8 * n_numbers / 64 / CONTEXT_TOKENS)
    for off, dtype in ((0.999, np.int8), (1.001, np.int16)):
        assert smallest_dtype({np.int8: off * ratio * 3.0, np.int16: 3.0}.__getitem__, n_numbers, 64) is dtype
    assert smallest_dtype(lambda dtype: 0.0, n_numbers, 64) is np.int8


def fitted(n_bytes=None, step=None):
    """(codec, cost of its errors, numbers in its transforms and codewords) fitted to white rows of 16."""
    rows = np.random.default_rng(0).normal(size=(3000, 16)).astype(np.float32)
    basis = fit_basis(rows, np.eye(16))
    if step is None:
        codec = transform_pq_codec(fit_transform_pq(basis, rows, n_bytes))
        return codec, basis.cost(codec.decode(codec.encode(rows)), rows), (16 + 16 + 256) * 16
    codec = transform_ecsq_codec(fit_transform_ecsq(basis, rows, step))
    decoded = codec.symbols(rows) * codec.step @ codec.arrays["synthesis"].T + codec.arrays["mean"]
    return codec, basis.cost(decoded, rows), 2 * 16 * codec.n_coordinates


@pytest.mark.parametrize("n_bytes", [2, 4, 8])
def test_coarse_codecs_keep_a_byte_for_a_number(n_bytes):
    codec, _, n_numbers = fitted(n_bytes)
    assert codec.side_nbytes() == 4 * 16 + n_numbers + 3 * 4 * 16


@pytest.mark.parametrize(("step", "each"), [(1.0, 1), (0.5, 1), (0.02, 2), (0.002, 2)])
def test_a_fine_step_keeps_two_bytes_and_has_the_error_of_its_step(step, each):
    codec, cost, n_numbers = fitted(step=step)
    n = codec.n_coordinates
    assert codec.side_nbytes() == 4 * 16 + (1 + each) * n_numbers // 2 + 2 * 4 * n + 4 + 6 * n
    if step < 0.1:
        assert cost == pytest.approx(16 * step**2 / 12, rel=0.03)


def test_one_coordinate_a_byte_is_kept_finely():
    """256 levels of their own: rounded to 255 even ones they would code as a uniform quantiser does."""
    codec, _, n_numbers = fitted(n_bytes=16)
    assert codec.side_nbytes() == 4 * 16 + 2 * n_numbers - 16 * 16 + 3 * 4 * 16
