"""The sparse dictionary codec: what it charges, what it rounds, and that scores are those of its codes."""

import pickle
from functools import partial

import codec_contract
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.codecs.registry import build_codec
from polykv.codecs.sparse import COEFFICIENT_BITS, SparseCodec, sparse_codec
from polykv.errors import CodecError, DimensionMismatch, NonFiniteError
from polykv.npz import npz_arrays, npz_bytes
from polykv.receipts import digest_bytes

FORMATS = tuple(COEFFICIENT_BITS)


def make_arrays(seed=0, n_atoms=40, head_dim=16, mean=0.0):
    rng = np.random.default_rng(seed)
    atoms = rng.normal(size=(n_atoms, head_dim))
    atoms /= np.linalg.norm(atoms, axis=1, keepdims=True)
    return {"atoms": atoms.astype(np.float32), "mean": np.full(head_dim, mean, np.float32)}


def vectors(seed=1, n=50, head_dim=16):
    return np.random.default_rng(seed).normal(size=(n, head_dim)).astype(np.float32)


@pytest.mark.parametrize("head_dim", [16, 80])
@pytest.mark.parametrize("coefficients", FORMATS)
def test_contract(coefficients, head_dim, monkeypatch):
    """The contract of all codecs; `build_codec` finds the artifact by itself here."""
    arrays = make_arrays(n_atoms=200, head_dim=head_dim)
    codec = sparse_codec(arrays, 12, coefficients)
    monkeypatch.setattr(codec_contract, "build_codec", partial(build_codec, artifacts=lambda digest: arrays))
    for check in codec_contract.CHECKS:
        check(codec, codec_contract.Case(codec.config()))


@pytest.mark.parametrize("coefficients", FORMATS)
@pytest.mark.parametrize("mean", [0.0, 2.0])
def test_scores_are_those_of_the_decoded_vectors(coefficients, mean):
    codec = sparse_codec(make_arrays(mean=mean), 3, coefficients)
    rows, queries = vectors(), vectors(2, n=9)
    codes = codec.encode(rows)
    decoded = codec.decode(codes)
    assert decoded.dtype == np.float32
    np.testing.assert_allclose(codec.scores(queries, codes), queries @ decoded.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(codec.decode(codes, [7, 0, 7]), decoded[[7, 0, 7]])


def test_coefficients_are_really_rounded():
    """Finer formats come nearer to the unrounded pursuit; int8 codes are integers within ±127."""
    rows, errors = vectors(), {}
    for name in FORMATS:
        codec = sparse_codec(make_arrays(), 4, name)
        codes = codec.encode(rows)
        errors[name] = np.square(codec.decode(codes) - rows).sum()
        levels = codes["coefficients"]
        assert levels.dtype == (np.float16 if name == "float16" else np.int8)
        if name != "float16":
            assert np.abs(levels.astype(int)).max() == 2 ** (COEFFICIENT_BITS[name] - 1) - 1
    assert errors["float16"] < errors["int8"] < errors["int4"]


@pytest.mark.parametrize(
    ("n_atoms", "sparsity", "coefficients", "bits"),
    [(256, 4, "float16", 96), (256, 4, "int8", 80), (256, 4, "int4", 64), (40, 4, "int8", 72), (1, 1, "int8", 24)],
)
def test_every_stored_bit_is_charged(n_atoms, sparsity, coefficients, bits):
    codec = sparse_codec(make_arrays(n_atoms=n_atoms), sparsity, coefficients)
    assert codec.nbytes(codec.encode(vectors(n=80))) == 80 * bits // 8
    assert codec.side_nbytes() == n_atoms * 16 * 4
    assert sparse_codec(make_arrays(n_atoms=n_atoms, mean=1.0), sparsity).side_nbytes() == n_atoms * 64 + 64


def test_the_configuration_and_the_artifact_give_the_codec_back():
    arrays = make_arrays(mean=0.5)
    data = npz_bytes({**arrays, "learned": np.frombuffer(b"{}", np.uint8)})
    digest = digest_bytes(data)
    codec = build_codec({"id": "sparse", "artifact": digest, "sparsity": 2}, 16, artifacts=lambda d: npz_arrays(data))
    assert codec.config() == {
        "id": "sparse", "head_dim": 16, "artifact": digest, "sparsity": 2, "coefficients": "int8"
    }  # fmt: skip
    again = build_codec(codec.config(), 16, artifacts=lambda d: arrays)
    assert again == codec
    assert again.digest() == codec.digest()
    rows = vectors()
    np.testing.assert_array_equal(again.decode(again.encode(rows)), codec.decode(codec.encode(rows)))
    assert pickle.loads(pickle.dumps(codec)).scores(rows, codec.encode(rows)).shape == (50, 50)


def test_codes_do_not_depend_on_the_batch():
    codec, rows = sparse_codec(make_arrays()), vectors(n=1100)
    whole, part = codec.encode(rows), codec.encode(rows[1000:1010])
    for name, array in part.arrays.items():
        np.testing.assert_array_equal(array, whole[name][1000:1010], err_msg=name)


@pytest.mark.parametrize("coefficients", FORMATS)
def test_zero_vectors_and_no_vectors(coefficients):
    codec = sparse_codec(make_arrays(), 3, coefficients)
    codes = codec.encode(np.zeros((3, 16), np.float32))
    assert not codec.decode(codes).any()
    assert not codec.scores(vectors(n=2), codes).any()
    empty = codec.encode(np.zeros((0, 16), np.float32))
    assert codec.decode(empty).shape == (0, 16)
    assert codec.scores(vectors(n=2), empty).shape == (2, 0)
    assert codec.nbytes(empty) == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(-12, 30), st.sampled_from(FORMATS))
def test_error_scales_with_the_vectors(seed, exponent, coefficients):
    """Powers of ten from 1e-12 to 1e30: norms beyond float16 are kept in float32, and charged."""
    codec, rows = sparse_codec(make_arrays(), 16, coefficients), vectors(seed, n=5)
    scaled = rows * np.float32(10.0**exponent)
    error = np.linalg.norm(codec.decode(codec.encode(scaled)) / np.float32(10.0**exponent) - rows) / np.linalg.norm(
        rows
    )
    assert error < {"float16": 0.05, "int8": 0.06, "int4": 0.6}[coefficients]


def test_head_dim_one():
    codec = sparse_codec({"atoms": np.array([[1.0], [-1.0]], np.float32), "mean": np.zeros(1, np.float32)}, 2)
    np.testing.assert_allclose(codec.decode(codec.encode(np.array([[3.0], [-2.0]]))), [[3.0], [-2.0]], rtol=1e-3)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"coefficients": "int3"}, CodecError, "coefficients is 'int3'; known: float16, int8, int4"),
        ({"sparsity": 41}, CodecError, "sparsity 41 > 40, the number of atoms"),
        ({"sparsity": 0}, CodecError, "sparsity is 0, must be an integer of at least 1"),
        ({"head_dim": 8}, DimensionMismatch, "axis head_dim: expected 8, got 16"),
        ({"artifact": "abc"}, CodecError, "must be a blake3 digest"),
        ({"arrays": {"atoms": make_arrays()["atoms"]}}, CodecError, "array 'mean' is missing"),
        (
            {"arrays": {**make_arrays(), "atoms": 2 * make_arrays()["atoms"]}},
            CodecError,
            "atom 0 has norm 2, must be 1",
        ),
    ],
)
def test_refusals(change, error, text):
    arguments = {"head_dim": 16, "artifact": "0" * 64, "arrays": make_arrays()}
    with pytest.raises(error, match=text):
        SparseCodec(**{**arguments, **change})


def test_bad_numbers_are_refused_with_their_place():
    codec, rows = sparse_codec(make_arrays()), vectors()
    rows[3, 2] = np.nan
    with pytest.raises(NonFiniteError, match=r"vectors\[3, 2\] is nan"):
        codec.encode(rows)
    with pytest.raises(DimensionMismatch, match="expected 16, got 5"):
        codec.encode(np.zeros((2, 5)))
