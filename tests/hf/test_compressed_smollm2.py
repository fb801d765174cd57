"""The same in SmolLM2-135M: decoding equals the whole sequence, and exact is exact."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from polykv.capture.adapter import to_numpy
from polykv.capture.models import load_model
from polykv.hf import compressed

pytestmark = [pytest.mark.hf, pytest.mark.slow]

TEXT = "Sir Walter Elliot, of Kellynch Hall, in Somersetshire, was a man who, for his own amusement, never took up any book but the Baronetage; there he found occupation for an idle hour, and consolation in a distressed one; "


@pytest.fixture(scope="module")
def smollm2():
    loaded = load_model("smollm2")
    return loaded.model, torch.tensor([list(loaded.tokenize(TEXT))])


def _generate(model, ids, n_new):
    return model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=n_new, do_sample=False, eos_token_id=None,
        use_cache=True, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip


def test_exact_generates_the_same_tokens(smollm2):
    model, ids = smollm2
    plain = _generate(model, ids, 16).sequences
    with compressed(model, "exact"):
        assert _generate(model, ids, 16).sequences.tolist() == plain.tolist()


@pytest.mark.parametrize(("name", "n_new", "options"), [("kivi4", 12, {}), ("two_tier", 4, {"uncentred": True})])
def test_decoding_equals_the_whole_sequence(smollm2, name, n_new, options):
    model, ids = smollm2
    with compressed(model, name, **options) as cache:
        found = _generate(model, ids, n_new)
    scored = slice(-n_new - 1, -1)
    with torch.inference_mode(), compressed(model, name, shared_tokens=ids.shape[1] // 2, **options):
        whole = to_numpy(model(found.sequences, use_cache=False).logits[0, scored])
    with torch.inference_mode():
        plain = to_numpy(model(found.sequences, use_cache=False).logits[0, scored])
    error = np.linalg.norm(to_numpy(torch.cat(found.logits)) - whole, axis=1) / np.linalg.norm(whole, axis=1)
    effect = np.linalg.norm(plain - whole, axis=1) / np.linalg.norm(whole, axis=1)
    # float32 noise through 30 layers, and codes that it tips over an edge: measured 8e-5 and 3e-6, at effects of .015, .22
    assert np.median(error) < 3e-4
    assert error.max() < 0.1 * np.median(effect)
    assert cache.n_tokens == ids.shape[1] + n_new - 1
    assert cache.costs()["ratio_to_float16"] > 2
