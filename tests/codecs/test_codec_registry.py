"""build_codec: known ids, unknown ids and arguments, trained codecs and their artifacts."""

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from polykv.codecs import registry
from polykv.codecs.base import Codes, checked_vectors
from polykv.codecs.registry import CODEC_IDS, CODECS, build_codec
from polykv.codecs.trained import TrainedCodec
from polykv.errors import CodecError, DimensionMismatch, NonFiniteError

DIGEST = "ab" * 32
UNTRAINED_IDS = tuple(name for name in CODEC_IDS if not issubclass(CODECS[name], TrainedCodec))


@dataclass(frozen=True)
class MeanCodec(TrainedCodec):
    """Keeps float16 differences from a fitted mean."""

    shrink: float = 1.0
    codec_id: ClassVar[str] = "mean"
    array_shapes: ClassVar[Mapping[str, tuple[str, ...]]] = {"mean": ("head_dim",), "pair": ("2", "rank")}

    @classmethod
    def check_head_dim(cls, head_dim):
        pass

    def encode(self, vectors):
        array = checked_vectors(vectors, self.head_dim)
        return Codes(len(array), self.head_dim, {"rest": (array - self.arrays["mean"]).astype(np.float16)})

    def decode(self, codes, rows=None):
        rest = codes["rest"] if rows is None else codes["rest"][rows]
        return rest.astype(np.float32) + self.arrays["mean"]

    def scores(self, queries, codes):
        return queries @ self.decode(codes).T

    def nbytes(self, codes):
        return codes["rest"].nbytes


@pytest.fixture
def with_mean_codec(monkeypatch):
    monkeypatch.setattr(registry, "CODECS", {**CODECS, "mean": MeanCodec})


def mean_arrays(head_dim=8):
    return {"mean": np.arange(head_dim, dtype=np.float32), "pair": np.zeros((2, 3), np.float32)}


@pytest.mark.parametrize("codec_id", UNTRAINED_IDS)
def test_every_id_builds_and_says_its_own_name(codec_id):
    codec = build_codec({"id": codec_id}, 64, seed=5)
    assert codec.codec_id == codec_id
    assert codec.config()["id"] == codec_id
    assert codec.config().get("seed", 5) == 5
    assert build_codec(json.loads(json.dumps(codec.config())), 64) == codec


def test_ids_of_the_seed_are_served():
    assert {"exact_f32_fallback", "fib_k4_n32", "turbo_8bit", "turbo_4bit", "uniform"} <= set(CODEC_IDS)


def test_digests_tell_configurations_apart():
    digests = {build_codec({"id": name}, d, s).digest() for name in UNTRAINED_IDS for d in (16, 64) for s in (0, 1)}
    seedless = 2
    assert len(digests) == 2 * (2 * (len(UNTRAINED_IDS) - seedless) + seedless)


def test_seed_in_the_spec_wins():
    assert build_codec({"id": "turbo_8bit", "seed": 3}, 16, seed=9).seed == 3


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"id": "fib"}, "unknown codec id 'fib' \\(did you mean 'fib_k4_n32'\\?\\)"),
        ({"id": "turbo_8bt"}, "did you mean 'turbo_8bit'"),
        ({"id": "unifrom"}, "did you mean 'uniform'"),
        ({"id": "zzz"}, "unknown codec id 'zzz'; known: exact_f32_fallback"),
        ({}, "known ids"),
        ({"id": 3}, "known ids"),
        ("uniform", "known ids"),
        ({"id": "uniform", "bit": 4}, "no argument 'bit' \\(did you mean 'bits'\\?\\)"),
        ({"id": "exact_f32_fallback", "seed": 1}, "no argument 'seed'"),
        ({"id": "turbo_4bit", "bits": 8}, "means bits = 4, but bits = 8"),
        ({"id": "fib_k4_n64", "codebook_size": 32}, "means codebook_size = 64, but codebook_size = 32"),
        ({"id": "uniform", "head_dim": 32}, "head_dim 32, the data has 64"),
    ],
    ids=str,
)
def test_bad_specs_are_refused_with_a_hint(spec, text):
    with pytest.raises(CodecError, match=text):
        build_codec(spec, 64)


def test_trained_codec_gets_its_arrays_through_the_loader(with_mean_codec):
    asked = []

    def loader(digest):
        asked.append(digest)
        return mean_arrays()

    codec = build_codec({"id": "mean", "artifact": DIGEST, "shrink": 0.5}, 8, artifacts=loader)
    assert asked == [DIGEST]
    assert codec.config() == {"id": "mean", "head_dim": 8, "artifact": DIGEST, "shrink": 0.5}
    assert pickle.loads(pickle.dumps(codec)) == codec
    vectors = np.ones((2, 8), np.float32)
    np.testing.assert_allclose(pickle.loads(pickle.dumps(codec)).decode(codec.encode(vectors)), vectors)
    with pytest.raises(ValueError, match="read-only"):
        codec.arrays["mean"][0] = 1


@pytest.mark.parametrize(
    ("spec", "arrays", "error", "text"),
    [
        ({}, mean_arrays(), CodecError, "needs the argument 'artifact'"),
        ({"artifact": "abc"}, mean_arrays(), CodecError, "'abc', must be a blake3 digest"),
        ({"artifact": DIGEST}, None, CodecError, "no artifact loader"),
        ({"artifact": DIGEST}, {"pair": np.zeros((2, 3))}, CodecError, "array 'mean' is missing; it holds pair"),
        ({"artifact": DIGEST}, mean_arrays(9), DimensionMismatch, "axis head_dim: expected 8, got 9"),
        ({"artifact": DIGEST}, {**mean_arrays(), "pair": np.zeros((3, 3))}, DimensionMismatch, "expected 2, got 3"),
        ({"artifact": DIGEST}, {**mean_arrays(), "pair": np.zeros(3)}, DimensionMismatch, "has 1 axes, expected 2"),
        ({"artifact": DIGEST}, {**mean_arrays(), "mean": np.full(8, np.nan)}, NonFiniteError, "'mean' holds NaN"),
    ],
)
def test_bad_artifacts_are_refused(with_mean_codec, spec, arrays, error, text):
    loader = None if arrays is None else lambda digest: arrays
    with pytest.raises(error, match=text):
        build_codec({"id": "mean", **spec}, 8, artifacts=loader)


def test_trained_codec_without_arrays_is_refused():
    with pytest.raises(CodecError, match="needs the arrays"):
        MeanCodec(8, DIGEST)
