"""The numbers of data/docs/claims.md about the reference's codecs, measured again and held to the page."""

import re
from pathlib import Path

import numpy as np
import pytest

from polykv.codecs.registry import build_codec
from polykv.errors import CodecError
from polykv.replay.config import Gate

PAGE = (Path(__file__).parents[2] / "data" / "docs" / "claims.md").read_text(encoding="utf-8")
HEAD_DIM = 64
FIB = {"id": "fib_k4_n32", "zero_vectors": "refuse"}
TURBO = {"id": "turbo_8bit", "bits": 8}


@pytest.fixture(scope="module")
def vectors():
    rng = np.random.default_rng(0)
    keys = rng.normal(size=(512, HEAD_DIM)).astype(np.float32)
    return keys, rng.normal(size=(64, HEAD_DIM)).astype(np.float32)


def measured(spec, vectors):
    keys, queries = vectors
    codec = build_codec(spec, HEAD_DIM, 42)
    codes = codec.encode(keys)
    scores, exact = codec.scores(queries, codes), queries @ keys.T
    best, found = (np.argsort(-s, axis=1)[:, :16] for s in (exact, scores))
    return {
        "correlation": float(np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(scores, exact, strict=True)])),
        "recall": float(np.mean([len({*a} & {*b}) / 16 for a, b in zip(best, found, strict=True)])),
        "error": float(np.mean((codec.decode(codes) - keys) ** 2)),
        "bytes": codec.nbytes(codes) / len(keys),
    }


def turbo(vectors, qjl, radii, angle_point):
    return measured({**TURBO, "qjl": qjl, "radii": radii, "angle_point": angle_point}, vectors)


def stated(start):
    """The numbers in the table line that begins with `start`."""
    line = next(line for line in PAGE.splitlines() if line.startswith(f"| {start}"))
    return [float(number) for number in re.findall(r"(?<![@\w-])\d+(?:\.\d+)?", line.split("|", 2)[2])]


def test_a_quantised_query_costs_correlation(vectors):
    both = measured({**FIB, "query_mode": "gram"}, vectors)["correlation"]
    mended = measured({**FIB, "query_mode": "asymmetric"}, vectors)["correlation"]
    assert stated("FibQuant scores") == [round(both, 3), round(mended, 3)]


def test_the_sketch_costs_recall(vectors):
    with_sketch = turbo(vectors, "unit_norm", "float32", "lower_edge")["recall"]
    without = turbo(vectors, "off", "float32", "lower_edge")["recall"]
    assert stated("TurboQuant adds") == [round(with_sketch, 2), round(without, 2)]


def test_lower_edges_have_four_times_the_error(vectors):
    edge = turbo(vectors, "off", "float32", "lower_edge")["error"]
    centre = turbo(vectors, "off", "float32", "centre")["error"]
    assert stated("angles decode") == [round(edge / centre, 1)]


def test_float32_radii_need_more_than_float16(vectors):
    before = turbo(vectors, "unit_norm", "float32", "lower_edge")["bytes"]
    mended = turbo(vectors, "off", "log_u8", "centre")["bytes"]
    assert stated("radii are float32")[:3] == [before, 2 * HEAD_DIM, mended]


def test_plain_int8_is_smaller_and_better(vectors):
    int8 = measured({"id": "uniform", "bits": 8, "mode": "symmetric", "axis": "vector"}, vectors)
    mended = turbo(vectors, "off", "log_u8", "centre")
    assert stated("“8 bit” sounds")[:2] == [int8["bytes"], round(mended["error"] / int8["error"], 1)]


def test_a_zero_vector_is_refused_by_the_reference_alone():
    zero = np.zeros((1, HEAD_DIM), dtype=np.float32)
    with pytest.raises(CodecError):
        build_codec({**FIB, "query_mode": "gram"}, HEAD_DIM, 42).encode(zero)
    mended = build_codec({**FIB, "query_mode": "asymmetric", "zero_vectors": "encode"}, HEAD_DIM, 42)
    assert not mended.decode(mended.encode(zero)).any()


def test_nan_meets_no_gate():
    assert not Gate("output_cosine_mean", "min", 0.999).meets(float("nan"))
    assert not Gate("output_relative_error_mean", "max", 0.05).meets(None)
