"""Residual VQ: the contract, what it charges, and what its search promises."""

from functools import partial
from itertools import product

import codec_contract
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.codecs.registry import build_codec
from polykv.codecs.residual_vq import residual_vq_codec, search
from polykv.errors import CodecError, DimensionMismatch


def make_arrays(seed=0, stages=4, words=32, head_dim=16, mean=0.0, gain=False, weights=None):
    """Codebooks of falling size, as training gives them."""
    rng = np.random.default_rng(seed)
    books = rng.normal(size=(stages, words, head_dim)) * 0.7 ** np.arange(stages)[:, None, None]
    books[:, 0] = 0
    if gain:
        books /= head_dim**0.5
    weights = np.ones(head_dim) if weights is None else weights
    return {
        "codebooks": books.astype(np.float32),
        "mean": np.full(head_dim, mean, np.float32),
        "weights": np.asarray(weights, np.float32),
        "has_gain": np.array([gain], np.uint8),
    }


def vectors(seed=1, n=50, head_dim=16):
    return np.random.default_rng(seed).normal(size=(n, head_dim)).astype(np.float32)


@pytest.mark.parametrize("head_dim", [16, 80])
@pytest.mark.parametrize(("gain", "beam"), [(False, 1), (False, 3), (True, 1), (True, 4)])
def test_contract(gain, beam, head_dim, monkeypatch):
    arrays = make_arrays(stages=12, words=64, head_dim=head_dim, gain=gain)
    codec = residual_vq_codec(arrays, beam=beam)
    monkeypatch.setattr(codec_contract, "build_codec", partial(build_codec, artifacts=lambda digest: arrays))
    for check in codec_contract.CHECKS:
        check(codec, codec_contract.Case(codec.config()))


@pytest.mark.parametrize("gain", [False, True])
@pytest.mark.parametrize("mean", [0.0, 2.0])
def test_scores_come_from_the_codes(gain, mean):
    codec = residual_vq_codec(make_arrays(gain=gain, mean=mean), beam=2)
    codes, queries = codec.encode(vectors(n=1100)), vectors(2, n=9)
    np.testing.assert_allclose(codec.scores(queries, codes), queries @ codec.decode(codes).T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("words", "stages", "gain", "wanted"),
    [
        (256, 16, False, 16),
        (256, 3, True, 5),
        (32, 3, False, 2),
        (32, 8, False, 5),
        (64, 5, True, 6),
        (33, 4, False, 3),
    ],
)
def test_bytes_are_counted_whole_by_row(words, stages, gain, wanted):
    arrays = make_arrays(words=words, stages=20, gain=gain)
    codec = residual_vq_codec(arrays, stages)
    assert codec.nbytes(codec.encode(vectors(n=7))) == 7 * wanted
    assert codec.side_nbytes() == stages * words * 16 * 4
    assert residual_vq_codec(make_arrays(words=words, stages=20, mean=1.0), stages).side_nbytes() == (
        stages * words * 16 * 4 + 16 * 4
    )


def weighted_error(codec, rows):
    missed = codec.decode(codec.encode(rows)).astype(np.float64) - rows
    return np.square(missed) @ np.asarray(codec.arrays["weights"], np.float64)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 4), st.booleans())
def test_one_more_stage_never_makes_a_row_worse(seed, beam, weighted):
    weights = np.random.default_rng(seed).uniform(0.1, 3, 16) if weighted else None
    arrays, rows = make_arrays(seed, 5, weights=weights), 3 * vectors(seed + 1, n=20)
    errors = [weighted_error(residual_vq_codec(arrays, stages, beam), rows) for stages in range(1, 6)]
    for before, after in zip(errors, errors[1:], strict=False):
        assert (after <= before * (1 + 1e-5) + 1e-6).all()


@pytest.mark.parametrize("gain", [False, True])
def test_a_wide_beam_finds_the_best_of_all_sums(gain):
    arrays = make_arrays(stages=3, words=6, weights=np.linspace(0.2, 2, 16), gain=gain)
    rows = vectors(n=12)
    root = np.sqrt(arrays["weights"].astype(np.float64))
    books = arrays["codebooks"].astype(np.float64) * root
    target = rows * root
    if gain:
        target = target / np.linalg.norm(target, axis=1, keepdims=True)
    every = np.array(list(product(range(6), repeat=3)))
    sums = books[0][every[:, 0]] + books[1][every[:, 1]] + books[2][every[:, 2]]
    best = np.square(target[:, None] - sums[None]).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(residual_vq_codec(arrays, beam=36).encode(rows)["indices"], every[best])
    greedy, wide = (np.square(target - _sum(books, search(target, books, beam))).sum() for beam in (1, 4))
    assert wide < greedy


def _sum(books, indices):
    return sum(books[stage][indices[:, stage]] for stage in range(len(books)))


def test_weights_decide_which_dimensions_are_kept():
    rows = vectors(n=200)
    weights = np.where(np.arange(16) < 4, 50.0, 1.0)
    plain, weighted = (residual_vq_codec(make_arrays(weights=w)) for w in (None, weights))
    missed = [np.square(c.decode(c.encode(rows)) - rows).mean(axis=0) for c in (plain, weighted)]
    assert missed[1][:4].mean() < 0.6 * missed[0][:4].mean()
    assert missed[1][4:].mean() > missed[0][4:].mean()


def test_a_gain_is_the_least_squares_one():
    codec, rows = residual_vq_codec(make_arrays(gain=True, weights=np.linspace(0.2, 2, 16))), 40 * vectors(n=30)
    codes = codec.encode(rows)
    best = weighted_error(codec, rows)
    for factor in (0.98, 1.02):
        other = type(codes)(len(codes), 16, {**codes.arrays, "gains": (codes["gains"] * factor).astype(np.float16)})
        missed = np.square(codec.decode(other) - rows) @ codec.arrays["weights"].astype(np.float64)
        assert (missed >= best * (1 - 1e-3)).all()
    huge = (1e37 * vectors(n=2)).astype(np.float32)
    assert np.isfinite(codec.decode(codec.encode(huge))).all()


REFUSED = {
    "more stages than codebooks": ({}, {"stages": 5}, "stages 5 > 4"),
    "no stage": ({}, {"stages": 0}, "stages is 0"),
    "no candidate": ({}, {"beam": 0}, "beam is 0"),
    "a first codeword that is not zero": ({"codebooks": np.ones((4, 32, 16), np.float32)}, {}, "codeword 0"),
    "too many codewords": ({"codebooks": np.zeros((1, 257, 16), np.float32)}, {"stages": 1}, "257 codewords"),
    "a weight of zero": ({"weights": np.zeros(16, np.float32)}, {}, "smallest weight is 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_impossible_artifacts_and_arguments_are_refused(case):
    arrays, arguments, words = REFUSED[case]
    with pytest.raises(CodecError, match=words):
        residual_vq_codec(make_arrays() | arrays, **arguments)


def test_arrays_of_another_shape_are_refused():
    with pytest.raises(DimensionMismatch, match="'mean', axis head_dim: expected 16, got 8"):
        residual_vq_codec(make_arrays() | {"mean": np.zeros(8, np.float32)})
