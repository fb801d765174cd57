"""Codes, scores and decoded vectors of the running reference, at head_dim 16 and 64.

Integers and float16 norms must be identical, floats within 1e-6 of the largest, rotations within
1e-13. A missing golden file is a failure.
"""

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from polykv.codecs.chacha import add_seed
from polykv.codecs.codebook import gram_matrix, initial_codewords, train_codebook
from polykv.codecs.fib import FibCodec
from polykv.codecs.rotation import dense_rotation, gaussian_projection, hadamard_signs
from polykv.codecs.turbo import TurboCodec

GOLDEN = Path(__file__).parents[1] / "golden"
SETUPS = [(16, 7), (64, 42)]
TRAINING = (4, 32, 2048, 4, 8)

pytestmark = pytest.mark.parametrize(("head_dim", "seed"), SETUPS)


@lru_cache(maxsize=4)
def golden(head_dim, seed):
    stem = f"codec_d{head_dim}_seed{seed}"
    inputs = json.loads((GOLDEN / f"{stem}.in.json").read_text())
    outputs = json.loads((GOLDEN / f"{stem}.out.json").read_text())
    vectors, queries = (np.array(inputs[name], np.float32) for name in ("vectors", "queries"))
    return vectors, queries, outputs


def assert_close(got, expected):
    expected = np.array(expected, np.float64).reshape(np.shape(got))
    assert np.abs(got - expected).max() <= 1e-6 * np.abs(expected).max()


def test_rotations_signs_and_projections(head_dim, seed):
    _, _, out = golden(head_dim, seed)
    wanted = np.array(out["fib_k4_n32"]["rotation_row_major"]).reshape(head_dim, head_dim)
    assert np.abs(dense_rotation(head_dim, seed) - wanted).max() <= 1e-13
    turbo = out["turbo"]["8bit"]
    np.testing.assert_array_equal(hadamard_signs(head_dim, seed), turbo["hadamard_signs"])
    projection = gaussian_projection(32, head_dim, add_seed(seed, 0xCAFEBABE00000001 + 0xDEADBEEF12345678))
    np.testing.assert_array_equal(projection.ravel(), np.array(turbo["qjl_projection_row_major"], np.float32))


def test_codebook(head_dim, seed):
    _, _, out = golden(head_dim, seed)
    fib = out["fib_k4_n32"]
    assert_close(initial_codewords(head_dim, 4, 32), fib["initial_codebook"])
    trained, report = train_codebook(head_dim, seed, *TRAINING), fib["lloyd"]
    assert trained.error == pytest.approx(report["best_mse"], rel=1e-12)
    assert trained.initial_error == pytest.approx(report["init_mse"], rel=1e-12)
    assert trained.best_restart == report["best_restart"]
    assert trained.repaired_cells == report["empty_cells_repaired"]
    words = FibCodec(head_dim, seed).codewords()
    np.testing.assert_array_equal(words.ravel(), np.array(fib["codewords"], np.float32))
    assert_close(gram_matrix(head_dim, seed, *TRAINING), fib["gram"])


def test_fib(head_dim, seed):
    vectors, queries, out = golden(head_dim, seed)
    fib = out["fib_k4_n32"]
    codec = FibCodec(head_dim, seed, query_mode="gram", zero_vectors="refuse")
    codes = codec.encode(vectors)
    np.testing.assert_array_equal(codes["indices"], fib["indices"])
    assert [norm.astype("<f2").tobytes().hex() for norm in codes["norms"]] == fib["norm_f16_hex"]
    assert_close(codec.decode(codes), fib["decoded"])
    assert_close(codec.decode(codes), fib["decoded_fast"])
    assert_close(codec.scores(queries, codes), fib["scores_q_by_k"])
    # the mended codec stores the same codes; only its scores keep the query exact
    mended = FibCodec(head_dim, seed)
    np.testing.assert_array_equal(mended.encode(vectors)["indices"], fib["indices"])
    assert np.abs(mended.scores(queries, codes) - fib["scores_q_by_k"]).max() > 0.1


@pytest.mark.parametrize("bits", [8, 4])
def test_turbo(head_dim, seed, bits):
    vectors, queries, out = golden(head_dim, seed)
    turbo = out["turbo"][f"{bits}bit"]
    edge = {"bits": bits, "angle_point": "lower_edge"}
    codec = TurboCodec(head_dim, seed, qjl="unit_norm", radii="float32", **edge)
    codes = codec.encode(vectors)
    np.testing.assert_array_equal(codes["angles"], turbo["angle_indices"])
    np.testing.assert_array_equal(codes["signs"], turbo["qjl_signs"])
    np.testing.assert_array_equal(codes["radii"], np.array(turbo["radii"], np.float32))
    assert_close(codec.decode(codes), turbo["decoded"])
    assert_close(codec.scores(queries, codes), turbo["scores_q_by_k"])
    polar = TurboCodec(head_dim, seed, radii="float32", **edge)
    assert_close(polar.scores(queries, polar.encode(vectors)), turbo["scores_polar_only_q_by_k"])
    lossy = TurboCodec(head_dim, seed, radii="log_u8", **edge)
    assert_close(lossy.decode(lossy.encode(vectors)), turbo["decoded_lossy"])
