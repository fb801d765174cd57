"""Rotations measured from models: which are found, how exactly, and which models are refused."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch and transformers: make hf")

from polykv.capture.forward import probe_layers  # noqa: E402
from polykv.capture.models import load_model  # noqa: E402
from polykv.certify.config import CertifyConfig  # noqa: E402
from polykv.certify.passages import EvaluationText  # noqa: E402
from polykv.certify.rotation import measured_rotation  # noqa: E402
from polykv.certify.run import Candidate, certify_policies  # noqa: E402
from polykv.errors import InputError, MissingExtraError, UnsupportedModelError  # noqa: E402
from polykv.policy import CompressionPolicy  # noqa: E402
from polykv.rotation import rotation_to_arrays  # noqa: E402
from polykv.types import Document  # noqa: E402
from tests.capture import tiny_models  # noqa: E402
from tests.certify import tiny_certify_models  # noqa: E402

pytestmark = pytest.mark.hf
IDS = tiny_models.token_ids(64)


def measured(model, ids=IDS):
    specs, _ = probe_layers(model, ids[:4])
    return measured_rotation(tiny_models.loaded(model), specs, ids)


def powers(base, width):
    return base ** (-2 * np.arange(width // 2) / width)


# architecture → (base of its frequencies, numbers of a key that turn, interleaved)
FOUND = {
    "llama": (1e4, 8, False),
    "qwen3": (1e4, 16, False),
    "phi3": (1e4, 8, False),
    "gemma2": (1e4, 16, False),
    "cohere": (5e5, 8, True),
    "gpt_neox": (1e4, 2, False),  # a quarter of 8 numbers turns
}


@pytest.mark.parametrize("name", FOUND)
def test_the_frequencies_of_known_architectures_are_found(name):
    base, width, interleaved = FOUND[name]
    found = measured(tiny_models.make(name))
    assert found.keys() == {0, 1, 2}
    for rotation in found.values():
        assert rotation.interleaved is interleaved
        np.testing.assert_allclose(rotation.frequencies, powers(base, width), atol=1e-6)


@pytest.mark.parametrize("part", [0.25, 0.5])
def test_a_part_of_a_key_that_turns_is_found(part):
    config = {**tiny_models.BASE, "hidden_size": 96, "max_position_embeddings": 1024}
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": part}
    model = tiny_models.sensitive(tiny_models.build("GPTNeoX", config), 0, 4.0)
    for rotation in measured(model).values():
        np.testing.assert_allclose(rotation.frequencies, powers(1e4, int(16 * part)), atol=1e-7)


def test_layers_may_differ():
    found = measured(tiny_models.make("gemma3"))
    np.testing.assert_allclose(found[0].frequencies, powers(1e4, 16), atol=1e-6)
    np.testing.assert_allclose(found[1].frequencies, powers(1e6, 16), atol=1e-6)


def test_a_layer_without_rope_has_frequencies_of_zero():
    config = {**tiny_models.BASE, "no_rope_layers": [1, 0, 1]}
    model = tiny_models.sensitive(tiny_models.build("SmolLM3", config), 0, 4.0)
    found = measured(model)
    np.testing.assert_array_equal(found[1].frequencies, np.zeros(4))
    assert found[0].frequencies[0] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", ["gpt2", "deepseek_v3"])
def test_a_model_whose_keys_are_not_rotated_so_is_refused_with_both_numbers(name):
    words = r"layer 0: .*relative residual 0\.\d+, limit 0\.001\); use key_rotation \"keep\""
    with pytest.raises(UnsupportedModelError, match=words):
        measured(tiny_models.make(name))


def test_too_little_to_measure_on_is_refused():
    model = tiny_models.make("llama")
    with pytest.raises(InputError, match="at least 2 tokens, got 1"):
        measured(model, IDS[:1])
    model.config.max_position_embeddings = 64
    with pytest.raises(UnsupportedModelError, match="64 positions, too few to shift 64 tokens"):
        measured(model)


def test_exact_codes_before_rope_leave_the_model_as_it_is():
    model = tiny_certify_models.tiny("llama")
    loaded = tiny_certify_models.loaded(model)
    ids = np.random.default_rng(1).integers(3, tiny_certify_models.VOCABULARY, 64)
    specs, _ = probe_layers(model, ids[:4])
    digest = "ab" * 32
    arrays = {digest: rotation_to_arrays(measured_rotation(loaded, specs, ids))}
    exact = CompressionPolicy("exact_before", key_rotation=digest)
    tier = {"key": {"id": "uniform", "bits": 4, "mode": "symmetric", "axis": "vector"}, "value": {"id": "exact_f32_fallback"}}  # fmt: skip
    coded = CompressionPolicy("coded_before", pool=tier, shell=tier, key_rotation=digest)
    text = EvaluationText((ids,), np.zeros(1, np.int64), (Document("d", "0" * 64, 64),))
    candidates = [Candidate(each, artifacts=arrays.__getitem__) for each in (exact, coded)]
    found = certify_policies(loaded, text, candidates, CertifyConfig(n_passages=1, n_tokens=64, bucket_tokens=16))
    kls = [figures.passages[0].kl.mean() for figures in found.policies]
    assert kls[0] < 1e-8 < 1e-4 < kls[1]


@pytest.mark.slow
def test_smollm2():
    try:
        loaded = load_model("smollm2")
    except MissingExtraError as error:
        pytest.skip(str(error))
    ids = np.array(loaded.tokenize("The old harbour lay in the light of a low sun, and boats came in one by one. " * 8))
    specs, _ = probe_layers(loaded.model, ids[:4])
    found = measured_rotation(loaded, specs, ids)
    assert len(found) == 30
    expected = powers(1e5, 64)
    for rotation in found.values():
        assert not rotation.interleaved
        np.testing.assert_allclose(rotation.frequencies[:16], expected[:16], rtol=1e-4)
        np.testing.assert_allclose(rotation.frequencies, expected, atol=1e-6)
