"""The codec contract as functions, and the table of codecs that must keep it.

A test file crosses CODEC_CASES with head_dims and calls every `check_*` of CHECKS. A new codec
joins by one line in the table.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from polykv.codecs.base import Codec, Codes
from polykv.codecs.registry import build_codec
from polykv.errors import CodecError, DimensionMismatch, InputError, NonFiniteError

SEED = 11
HEAD_DIMS = (16, 64, 80, 96, 128)


@dataclass(frozen=True)
class Case:
    """One codec mode. `rowwise`: a row's code depends on that row alone; `score_is_decode`: scores
    are inner products with the decoded vectors; `refuses_zero`: a zero vector is a CodecError."""

    spec: Mapping[str, Any]
    rowwise: bool = True
    score_is_decode: bool = True
    refuses_zero: bool = False

    def build(self, head_dim: int) -> Codec:
        return build_codec(self.spec, head_dim, SEED)


def _uniform(bits: int, mode: str, axis: str, scale: str = "float16") -> Case:
    spec = {"id": "uniform", "bits": bits, "mode": mode, "axis": axis, "group_tokens": 8, "scale_dtype": scale}
    return Case(spec, rowwise=axis == "vector")


REFERENCE_FIB = {"id": "fib_k4_n32", "query_mode": "gram", "zero_vectors": "refuse"}
REFERENCE_TURBO = {"qjl": "unit_norm", "radii": "float32", "angle_point": "lower_edge"}

CODEC_CASES: dict[str, Case] = {
    "exact": Case({"id": "exact_f32_fallback"}),
    "int8": _uniform(8, "symmetric", "vector"),
    "int8_f32_scale": _uniform(8, "symmetric", "vector", "float32"),
    "uniform4_asymmetric": _uniform(4, "asymmetric", "vector"),
    "uniform2_asymmetric_channel": _uniform(2, "asymmetric", "channel"),
    "uniform3_symmetric_channel": _uniform(3, "symmetric", "channel", "float32"),
    "fib": Case({"id": "fib_k4_n32"}),
    "fib_n256": Case({"id": "fib_k4_n256", "training_samples": 1024, "restarts": 1, "lloyd_iterations": 4}),
    "fib_reference": Case(REFERENCE_FIB, score_is_decode=False, refuses_zero=True),
    "turbo8": Case({"id": "turbo_8bit"}),
    "turbo4": Case({"id": "turbo_4bit"}),
    "turbo3_residual": Case({"id": "turbo_3bit", "qjl": "residual_norm", "projections": 20}, score_is_decode=False),
    "rotated_scalar4": Case({"id": "rotated_scalar"}),
    "rotated_scalar2": Case({"id": "rotated_scalar", "bits": 2}),
    "turbo8_reference": Case({"id": "turbo_8bit", **REFERENCE_TURBO}, score_is_decode=False),
    "turbo4_reference": Case({"id": "turbo_4bit", **REFERENCE_TURBO}, score_is_decode=False),
}


def sample_vectors(n: int, head_dim: int, seed: int = 3) -> np.ndarray:
    """[n, head_dim] float32 of very unequal rows and channels."""
    rng = np.random.default_rng(seed)
    scale = np.exp(rng.normal(size=(n, 1))) * np.exp(0.5 * rng.normal(size=(1, head_dim)))
    return (rng.normal(size=(n, head_dim)) * scale).astype(np.float32)


def assert_same_codes(got: Codes, expected: Codes, rows: np.ndarray | None = None) -> None:
    assert set(got.arrays) == set(expected.arrays)
    for name, array in expected.arrays.items():
        wanted = array if rows is None else array[rows]
        assert got[name].dtype == wanted.dtype, name
        np.testing.assert_array_equal(got[name], wanted, err_msg=name)


def check_shapes(codec: Codec, case: Case) -> None:
    for n in (1, 2, 37):
        codes = codec.encode(sample_vectors(n, codec.head_dim))
        decoded = codec.decode(codes)
        assert (len(codes), codes.n_vectors, codes.head_dim) == (n, n, codec.head_dim)
        assert decoded.shape == (n, codec.head_dim)
        assert decoded.dtype == np.float32
        assert np.isfinite(decoded).all()
        scores = codec.scores(sample_vectors(5, codec.head_dim, seed=4), codes)
        assert (scores.shape, scores.dtype) == ((5, n), np.float32)
        if case.rowwise:
            assert all(len(array) == n for array in codes.arrays.values())
        assert codec.nbytes(codes) > 0
    assert codec.nbytes(codes) <= 4 * n * codec.head_dim


def check_empty(codec: Codec, case: Case) -> None:
    codes = codec.encode(np.empty((0, codec.head_dim), np.float32))
    assert codec.decode(codes).shape == (0, codec.head_dim)
    assert codec.scores(sample_vectors(3, codec.head_dim), codes).shape == (3, 0)
    assert codec.nbytes(codes) == 0
    full = codec.encode(sample_vectors(4, codec.head_dim))
    assert codec.scores(np.empty((0, codec.head_dim), np.float32), full).shape == (0, 4)
    assert codec.decode(full, rows=[]).shape == (0, codec.head_dim)


def check_rows(codec: Codec, case: Case) -> None:
    codes = codec.encode(sample_vectors(37, codec.head_dim))
    whole = codec.decode(codes)
    for rows in ([5], [36, 0, 5, 5], np.arange(37)[::-1], np.arange(3, 30, 2)):
        np.testing.assert_array_equal(codec.decode(codes, rows), whole[rows])
    with pytest.raises(InputError, match="row 37 .* rows 0 to 36"):
        codec.decode(codes, [0, 37])
    with pytest.raises(InputError, match="row -1 "):
        codec.decode(codes, [-1])
    with pytest.raises(InputError, match="integers"):
        codec.decode(codes, np.array([0.0]))
    with pytest.raises(InputError, match="integers"):
        codec.decode(codes, np.ones(37, dtype=bool))


def check_scores(codec: Codec, case: Case) -> None:
    vectors, queries = sample_vectors(150, codec.head_dim), sample_vectors(21, codec.head_dim, seed=4)
    codes = codec.encode(vectors)
    scores, decoded = codec.scores(queries, codes), codec.decode(codes).astype(np.float64)
    assert np.corrcoef(scores.ravel(), (queries.astype(np.float64) @ vectors.T).ravel())[0, 1] > 0.4
    if case.score_is_decode:
        room = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(decoded, axis=1)[None, :]
        assert (np.abs(scores - queries @ decoded.T) <= 2e-6 * room + 1e-30).all()
    # a query's or key's scores do not depend on what else is asked
    if case.rowwise:
        part = codec.encode(vectors[30:97])
        np.testing.assert_array_equal(codec.scores(queries[4:5], part), scores[4:5, 30:97])


def check_batch_independence(codec: Codec, case: Case) -> None:
    if not case.rowwise:
        return
    vectors = sample_vectors(75, codec.head_dim)
    codes = codec.encode(vectors)
    order = np.random.default_rng(0).permutation(75)
    assert_same_codes(codec.encode(vectors[order]), codes, order)
    assert_same_codes(codec.encode(vectors[60:66]), codes, np.arange(60, 66))


def check_deterministic_and_pure(codec: Codec, case: Case) -> None:
    vectors = sample_vectors(9, codec.head_dim)
    before = vectors.copy()
    vectors.setflags(write=False)
    codes = codec.encode(vectors)
    np.testing.assert_array_equal(vectors, before)
    assert_same_codes(codec.encode(vectors), codes)
    for same in (
        np.asfortranarray(vectors),
        vectors.astype(np.float64),
        vectors.tolist(),
        np.repeat(vectors, 2, 0)[::2],
    ):
        assert_same_codes(codec.encode(same), codes)
    decoded = codec.decode(codes)
    decoded[:] = 7
    assert (codec.decode(codes) != 7).any()


def check_refuses_non_finite(codec: Codec, case: Case) -> None:
    codes = codec.encode(sample_vectors(4, codec.head_dim))
    for bad in (np.nan, np.inf, -np.inf, 1e39):
        vectors = sample_vectors(4, codec.head_dim).astype(np.float64)
        vectors[2, 3] = bad
        with pytest.raises(NonFiniteError, match=r"vectors\[2, 3\]"):
            codec.encode(vectors)
        with pytest.raises(NonFiniteError, match=r"queries\[2, 3\]"):
            codec.scores(vectors, codes)


def check_refuses_other_widths(codec: Codec, case: Case) -> None:
    d = codec.head_dim
    with pytest.raises(DimensionMismatch, match=f"expected {d}, got {d + 2}"):
        codec.encode(np.zeros((3, d + 2), np.float32))
    with pytest.raises(DimensionMismatch, match=f"expected {d}, got 1 axes"):
        codec.encode(np.zeros(d, np.float32))
    codes = codec.encode(sample_vectors(4, d))
    with pytest.raises(DimensionMismatch, match=f"queries: .* expected {d}, got {d - 1}"):
        codec.scores(np.zeros((3, d - 1), np.float32), codes)
    foreign = Codes(codes.n_vectors, d + 8, codes.arrays)
    with pytest.raises(DimensionMismatch, match=f"codes: .* expected {d}, got {d + 8}"):
        codec.decode(foreign)
    with pytest.raises(DimensionMismatch, match="codes"):
        codec.scores(np.zeros((1, d), np.float32), foreign)


def check_zero_vectors(codec: Codec, case: Case) -> None:
    vectors = sample_vectors(8, codec.head_dim)
    vectors[[2, 5]] = 0
    if case.refuses_zero:
        with pytest.raises(CodecError, match=r"vectors\[2\] has norm 0"):
            codec.encode(vectors)
        return
    for batch, zeros in ((vectors, [2, 5]), (np.zeros_like(vectors), slice(None))):
        codes = codec.encode(batch)
        assert np.isfinite(codec.decode(codes)).all()
        if case.rowwise:
            assert (codec.decode(codes)[zeros] == 0).all()
            if codec.config().get("qjl") != "unit_norm":
                assert (codec.scores(sample_vectors(3, codec.head_dim), codes)[:, zeros] == 0).all()
    assert (codec.scores(np.zeros((2, codec.head_dim)), codec.encode(vectors)) == 0).all()


def check_config(codec: Codec, case: Case) -> None:
    config = codec.config()
    assert list(config)[:2] == ["id", "head_dim"]
    again = build_codec(json.loads(json.dumps(config)), codec.head_dim, seed=999)
    assert again == codec
    assert again.digest() == codec.digest()
    assert pickle.loads(pickle.dumps(codec)) == codec
    assert hash(codec) == hash(again)
    vectors = sample_vectors(5, codec.head_dim)
    assert_same_codes(again.encode(vectors), codec.encode(vectors))


CHECKS: tuple[Callable[[Codec, Case], None], ...] = (
    check_shapes,
    check_empty,
    check_rows,
    check_scores,
    check_batch_independence,
    check_deterministic_and_pure,
    check_refuses_non_finite,
    check_refuses_other_widths,
    check_zero_vectors,
    check_config,
)
