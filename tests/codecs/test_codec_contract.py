"""Every codec of the table keeps the contract at every head_dim, and refuses the others by name."""

import numpy as np
import pytest
from codec_contract import CHECKS, CODEC_CASES, HEAD_DIMS, SEED, sample_vectors

from polykv.codecs.fib import FibCodec
from polykv.codecs.registry import CODEC_IDS, CODECS, build_codec
from polykv.codecs.trained import TrainedCodec
from polykv.codecs.turbo import TurboCodec
from polykv.codecs.uniform import UniformCodec, int8
from polykv.errors import CodecError, NonFiniteError, PolykvError


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("name", CODEC_CASES)
def test_contract(name, head_dim):
    case = CODEC_CASES[name]
    codec = case.build(head_dim)
    for check in CHECKS:
        check(codec, case)


@pytest.mark.parametrize("name", CODEC_CASES)
@pytest.mark.parametrize("head_dim", [6, 5, 1])
def test_odd_head_dims_are_served_or_refused_by_name(name, head_dim):
    case = CODEC_CASES[name]
    served = {"exact": True, "unifo": True, "fib_k": False, "turbo": head_dim == 6, "rotat": True}[case.spec["id"][:5]]
    if served:
        codec = case.build(head_dim)
        vectors = sample_vectors(4, head_dim)
        assert codec.decode(codec.encode(vectors)).shape == vectors.shape
        return
    with pytest.raises(CodecError, match=rf"{case.spec['id'].split('_')[0]}: head_dim is {head_dim}, must be"):
        case.build(head_dim)


@pytest.mark.parametrize("codec_id", CODEC_IDS)
@pytest.mark.parametrize("head_dim", [0, -4, 8.0, True, "8"])
def test_impossible_head_dims_are_refused(codec_id, head_dim):
    spec = {"id": codec_id, **({"artifact": "ab" * 32} if issubclass(CODECS[codec_id], TrainedCodec) else {})}
    with pytest.raises(CodecError, match="head_dim is"):
        build_codec(spec, head_dim, artifacts=lambda digest: {"atoms": np.eye(8), "mean": np.zeros(8)})


def test_bytes_per_vector_are_counted_to_the_bit():
    vectors = sample_vectors(64, 64)
    wanted = {
        "exact": 256,
        "int8": 64 + 2,
        "int8_f32_scale": 64 + 4,
        "uniform4_asymmetric": 32 + 2 + 2,
        "uniform2_asymmetric_channel": 16 + 64 * 4 / 8,
        "uniform3_symmetric_channel": 24 + 64 * 4 / 8,
        "fib": 10 + 2,
        "fib_n256": 16 + 2,
        "fib_reference": 10 + 2,
        "turbo8": 32 + 8 + 28,
        "turbo4": 32 + 8 + 12,
        "turbo3_residual": 32 + 8 + 8 + 3 + 2,
        "rotated_scalar4": 32 + 2,
        "rotated_scalar2": 16 + 2,
        "turbo8_reference": 128 + 28 + 4,
        "turbo4_reference": 128 + 12 + 4,
    }
    assert wanted.keys() == CODEC_CASES.keys()
    for name, case in CODEC_CASES.items():
        codec = case.build(64)
        assert codec.nbytes(codec.encode(vectors)) == 64 * wanted[name], name
        assert codec.side_nbytes() == 0


def test_partial_bytes_and_groups_are_counted_whole():
    # 6 numbers of 3 bits take 3 bytes; 11 rows in groups of 4 are 3 groups of 6 channels
    codec = UniformCodec(6, bits=3, mode="asymmetric", axis="channel", group_tokens=4)
    codes = codec.encode(sample_vectors(11, 6))
    assert codes["scale"].shape == codes["low"].shape == (3, 6)
    assert codec.nbytes(codes) == 11 * 3 + 3 * 6 * 4


def test_int8_is_eight_bits_symmetric_per_vector():
    codec = int8(64)
    assert codec.config() == {
        "id": "uniform",
        "head_dim": 64,
        "bits": 8,
        "mode": "symmetric",
        "axis": "vector",
        "group_tokens": 32,
        "scale_dtype": "float16",
    }


def test_all_levels_are_used():
    ramp = np.linspace(-1, 1, 256, dtype=np.float32)[None, :]
    for bits in range(2, 9):
        levels = UniformCodec(256, bits=bits, mode="asymmetric").encode(ramp)["levels"]
        assert len(np.unique(levels)) == 2**bits
        levels = UniformCodec(256, bits=bits).encode(ramp)["levels"]
        assert len(np.unique(levels)) == 2**bits - 1


def test_error_on_gaussian_vectors_is_what_theory_says():
    vectors = np.random.default_rng(0).normal(size=(2000, 64)).astype(np.float32)

    def relative_mse(codec):
        missed = codec.decode(codec.encode(vectors)) - vectors
        return float(np.square(missed).sum() / np.square(vectors).sum())

    def angle_error(width):
        return 2 * (1 - np.sin(width) / width)

    full, half = 2 * np.pi / 128, np.pi / 128
    edge = TurboCodec(64, SEED, radii="float32", angle_point="lower_edge")
    centre = TurboCodec(64, SEED, radii="float32")
    assert relative_mse(edge) == pytest.approx(angle_error(full), rel=0.02)
    assert relative_mse(centre) == pytest.approx(angle_error(half), rel=0.02)
    # log-u8 radii cost little beside the angles
    assert relative_mse(TurboCodec(64, SEED)) < 1.1 * relative_mse(centre)
    fib = FibCodec(64, SEED)
    decoded = fib.decode(fib.encode(vectors))
    assert np.mean(np.linalg.norm(decoded, axis=1) / np.linalg.norm(vectors, axis=1)) == pytest.approx(0.87, abs=0.02)
    assert relative_mse(fib) == pytest.approx(0.25, abs=0.03)


def test_exact_queries_score_better_than_quantised_ones():
    rng = np.random.default_rng(1)
    keys, queries = (rng.normal(size=(n, 64)).astype(np.float32) for n in (3000, 40))
    truth = (queries @ keys.T).ravel()
    asymmetric = FibCodec(64, SEED)
    codes = asymmetric.encode(keys)
    gram = FibCodec(64, SEED, query_mode="gram")
    assert np.corrcoef(asymmetric.scores(queries, codes).ravel(), truth)[0, 1] == pytest.approx(0.86, abs=0.01)
    assert np.corrcoef(gram.scores(queries, codes).ravel(), truth)[0, 1] == pytest.approx(0.74, abs=0.01)


def test_residual_sketch_with_its_norm_is_unbiased_and_without_it_is_noise():
    rng = np.random.default_rng(2)
    keys, query = rng.normal(size=(4000, 64)).astype(np.float32), rng.normal(size=(1, 64)).astype(np.float32)
    truth = keys @ query[0]
    error = {}
    for qjl in ("off", "residual_norm", "unit_norm"):
        codec = TurboCodec(64, SEED, qjl=qjl)
        error[qjl] = codec.scores(query, codec.encode(keys))[0] - truth
    spread = {name: e.std() / np.linalg.norm(query) for name, e in error.items()}
    assert spread["unit_norm"] == pytest.approx(0.22, abs=0.03)
    assert spread["residual_norm"] < 0.3 * spread["unit_norm"]
    assert abs(error["residual_norm"].mean()) < 3 * error["residual_norm"].std() / np.sqrt(len(keys))


@pytest.mark.parametrize(
    ("kind", "factor", "text"),
    [("zero", 0.0, "no direction"), ("large", 65520.0, "above 65504"), ("tiny", 2e-8, "too small for float16")],
)
def test_reference_fib_refuses_what_float16_cannot_hold_and_names_the_row(kind, factor, text):
    vectors = sample_vectors(6, 16)
    vectors[4] *= factor / np.linalg.norm(vectors[4])
    with pytest.raises(CodecError, match=rf"vectors\[4\] has norm .*{text}"):
        FibCodec(16, SEED, query_mode="gram", zero_vectors="refuse").encode(vectors)


@pytest.mark.parametrize("norm", [0.0, 3e-8, 1e-40, 65520.0, 1e30])
def test_mended_fib_keeps_odd_norms_and_leaves_the_other_rows_alone(norm):
    vectors = sample_vectors(6, 16)
    codec = FibCodec(16, SEED)
    plain = codec.decode(codec.encode(vectors))
    unit = vectors[4].astype(np.float64) / np.linalg.norm(vectors[4].astype(np.float64))
    odd = vectors.copy()
    odd[4] = unit * norm
    codes = codec.encode(odd)
    decoded = codec.decode(codes)
    others = [0, 1, 2, 3, 5]
    np.testing.assert_array_equal(decoded[others], plain[others])
    length = np.linalg.norm(decoded[4].astype(np.float64))
    assert length == pytest.approx(np.linalg.norm(plain[4]) / np.linalg.norm(vectors[4]) * norm, rel=0.01, abs=1e-44)
    wide = norm not in (0.0,)
    assert codes["norms"].dtype == (np.float32 if wide else np.float16)
    assert codec.nbytes(codes) == 6 * (3 + (4 if wide else 2))


def test_what_no_float32_norm_can_hold_is_refused_by_row():
    vectors = np.zeros((3, 64), np.float32)
    vectors[1] = 3e38
    with pytest.raises(CodecError, match=r"fib: vectors\[1\]"):
        FibCodec(64, SEED).encode(vectors)
    with pytest.raises(CodecError, match=r"turbo: vectors\[1\]"):
        TurboCodec(64, SEED).encode(vectors)
    with pytest.raises(CodecError, match=r"turbo: vectors\[1\]"):
        TurboCodec(80, SEED).encode(np.pad(vectors, ((0, 0), (0, 16))))
    decoded = int8(64).decode(int8(64).encode(vectors))
    np.testing.assert_allclose(decoded, vectors, rtol=1e-2)


@pytest.mark.parametrize("name", CODEC_CASES)
def test_scores_beyond_float32_are_refused_with_the_pair(name):
    codec = CODEC_CASES[name].build(16)
    keys = sample_vectors(4, 16)
    keys[2] *= 30000 / np.linalg.norm(keys[2])
    queries = np.ones((2, 16), np.float32)
    queries[1] = 3e37
    with pytest.raises(NonFiniteError, match="the score of query 1 and vector"):
        codec.scores(queries, codec.encode(keys))


def test_float16_scale_overflow_falls_back_to_float32_and_is_counted():
    vectors = sample_vectors(6, 16)
    vectors[3] *= 1e9
    for codec in (UniformCodec(16), UniformCodec(16, mode="asymmetric")):
        codes = codec.encode(vectors)
        assert codes["scale"].dtype == np.float32
        n_floats = 1 if codec.mode == "symmetric" else 2
        assert codec.nbytes(codes) == 6 * (16 + 4 * n_floats)
        usual = np.delete(np.arange(6), 3)
        np.testing.assert_array_equal(codec.decode(codes, usual), codec.decode(codec.encode(vectors[usual])))
        np.testing.assert_allclose(codec.decode(codes, [3]), vectors[[3]], atol=np.abs(vectors[3]).max() / 100)


@pytest.mark.parametrize(
    "spec",
    [
        {"id": "uniform", "bits": 1},
        {"id": "uniform", "bits": 9},
        {"id": "uniform", "bits": 8.0},
        {"id": "uniform", "bits": "8"},
        {"id": "uniform", "mode": "Symmetric"},
        {"id": "uniform", "axis": "token"},
        {"id": "uniform", "group_tokens": 0},
        {"id": "uniform", "group_tokens": 2**63},
        {"id": "uniform", "scale_dtype": "bfloat16"},
        {"id": "fib_k4_n32", "block_dim": 8},
        {"id": "fib_k4_n32", "training_samples": 31},
        {"id": "fib_k4_n32", "restarts": 0},
        {"id": "fib_k4_n32", "lloyd_iterations": 0},
        {"id": "fib_k4_n32", "query_mode": "exact"},
        {"id": "fib_k4_n32", "zero_vectors": True},
        {"id": "fib_k4_n32", "single_threshold": -1},
        {"id": "fib_k4_n32", "seed": 2**64},
        {"id": "turbo_8bit", "projections": 0},
        {"id": "turbo_8bit", "qjl": None},
        {"id": "turbo_8bit", "radii": "float16"},
        {"id": "turbo_8bit", "angle_point": "center"},
        {"id": "turbo_8bit", "seed": 1.5},
    ],
    ids=str,
)
def test_bad_arguments_are_refused_by_name(spec):
    (name,) = set(spec) - {"id"}
    with pytest.raises(PolykvError, match=name):
        build_codec(spec, 64)
