"""A policy in force inside real (tiny) models: whole sequences, decoding, and what is refused."""

import dataclasses
import inspect

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

import polykv
from polykv.capture.adapter import to_numpy
from polykv.capture.forward import probe_layers
from polykv.certify.cells import plan_cells
from polykv.certify.inject import policy_logits
from polykv.errors import InputError, PolicyError
from polykv.hf import compressed
from polykv.policy import CompressionPolicy
from polykv.types import Cell
from tests.certify.certify_samples import FIB, KIVI, policy
from tests.certify.tiny_certify_models import ARCHITECTURES, BASE, VOCABULARY, tiny

pytestmark = pytest.mark.hf

N_TOKENS, N_PROMPT, SHARED = 44, 13, 16
# two codecs a tier, sinks, a window, a budget; groups of 8 tokens coded together, in a window that covers them
TURBO = {"id": "turbo_8bit", "bits": 8, "qjl": "off", "radii": "log_u8", "angle_point": "centre"}
POLICIES = {
    "int8": CompressionPolicy.int8(),
    "tiers": policy(FIB, FIB, shell={"key": TURBO, "value": TURBO}, sink_tokens=2, recent_window=3, candidate_k=6),
    "filled": policy(FIB, FIB, sink_tokens=2, recent_window=3, candidate_k=6, unselected_values="mean"),
    "groups": policy(KIVI, {**KIVI, "axis": "vector"}, sink_tokens=1, recent_window=8),
}


def token_ids(n_tokens=N_TOKENS, seed=5):
    return torch.from_numpy(np.random.default_rng(seed).integers(3, VOCABULARY, (1, n_tokens)))


def whole(model, ids, chosen, **options):
    with torch.inference_mode(), compressed(model, chosen, **options) as cache:
        logits = model(ids, use_cache=False).logits[0]
    return to_numpy(logits), cache


def stepped(model, ids, chosen, n_prompt=N_PROMPT, **options):
    """Logits of the prompt's forward and of one forward a token after it."""
    with torch.inference_mode(), compressed(model, chosen, **options) as cache:
        out = model(ids[:, :n_prompt], use_cache=True)
        found = [out.logits[0]]
        for at in range(n_prompt, ids.shape[1]):
            out = further(model, ids[:, at : at + 1], out)
            found.append(out.logits[0])
    return to_numpy(torch.cat(found)), cache


def further(model, ids, before):
    """One forward on the cache of the one before; its argument has another name in newer transformers."""
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    return model(ids, **{name: before.past_key_values}, use_cache=True)


def same(got, expected):
    """Equal within float32 noise, row by row. A code at the edge between two levels may fall to the other
    side for a difference of 1e-7, which then shows in the rows after it: a few, and little."""
    rows = np.abs(got - expected).max(axis=1) / np.abs(expected).max()
    assert (np.median(rows) < 5e-6, rows.max() < 2e-3) == (True, True), rows


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("kind", POLICIES)
def test_step_by_step_equals_the_whole_sequence(name, kind):
    model, ids = tiny(name), token_ids()
    plain = to_numpy(model(ids).logits[0])
    expected, once = whole(model, ids, POLICIES[kind], shared_tokens=SHARED)
    got, steps = stepped(model, ids, POLICIES[kind], shared_tokens=SHARED)
    same(got, expected)
    assert np.median(np.abs(expected - plain).max(axis=1) / np.abs(expected).max()) > 2e-3
    assert (steps.n_tokens, steps.nbytes) == (once.n_tokens, once.nbytes) == (N_TOKENS, once.nbytes)
    counts = [(c.decoded_values, c.exact_values, c.visible_values) for c in (once, steps)]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("kind", POLICIES)
def test_a_forward_is_what_the_certification_measures(kind):
    model, ids = tiny(), token_ids()
    specs, _ = probe_layers(model, np.arange(4))
    expected, uses = policy_logits(
        model, ids[0].numpy(), np.arange(N_TOKENS), plan_cells(POLICIES[kind], specs), SHARED
    )
    got, cache = whole(model, ids, POLICIES[kind], shared_tokens=SHARED)
    np.testing.assert_allclose(got, expected, atol=1e-5, rtol=0)
    assert cache.nbytes == sum(use.code_bytes for use in uses)
    assert cache.decoded_values == sum(int(use.decoded.sum()) for use in uses)
    assert cache.costs()["bytes_per_token"] == pytest.approx(cache.nbytes / N_TOKENS)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_exact_policy_generates_what_the_model_does(name):
    model, ids = tiny(name), token_ids(N_PROMPT)
    settings = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "use_cache": True}
    plain = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
    with compressed(model, "exact") as cache:
        got = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
    assert got.tolist() == plain.tolist()
    assert cache.n_tokens == N_PROMPT + 23


def test_generating_with_a_policy_is_forwards_with_it():
    """Each generated token is the best one after the whole sequence before it."""
    model, ids, chosen = tiny(), token_ids(N_PROMPT), POLICIES["tiers"]
    with compressed(model, chosen):
        got = model.generate(ids, max_new_tokens=20, do_sample=False, eos_token_id=None)
    logits, _ = whole(model, got, chosen, shared_tokens=N_PROMPT // 2)
    assert logits[N_PROMPT - 1 : -1].argmax(axis=1).tolist() == got[0, N_PROMPT:].tolist()
    plain = model.generate(ids, max_new_tokens=20, do_sample=False, eos_token_id=None)
    assert plain.tolist() != got.tolist()


def test_the_prompt_may_come_in_pieces():
    model, ids, chosen = tiny("gemma2"), token_ids(), POLICIES["groups"]
    expected, _ = whole(model, ids, chosen, shared_tokens=SHARED)
    with torch.inference_mode(), compressed(model, chosen, shared_tokens=SHARED):
        out = model(ids[:, :20], use_cache=True)
        rest = further(model, ids[:, 20:], out)
    same(to_numpy(torch.cat([out.logits[0], rest.logits[0]])), expected)


@pytest.mark.parametrize("shared", [0, N_TOKENS, 1000])
def test_a_tier_may_be_empty(shared):
    model, ids = tiny(), token_ids()
    expected, _ = whole(model, ids, POLICIES["tiers"], shared_tokens=shared)
    same(stepped(model, ids, POLICIES["tiers"], shared_tokens=shared)[0], expected)


def test_a_new_sequence_begins_anew():
    model, chosen = tiny(), POLICIES["groups"]
    alone = whole(model, token_ids(30, 9), chosen)
    with torch.inference_mode(), compressed(model, chosen) as cache:
        model.generate(token_ids(10), max_new_tokens=5, do_sample=False)
        again = to_numpy(model(token_ids(30, 9)).logits[0])
    np.testing.assert_array_equal(again, alone[0])
    assert (cache.n_tokens, cache.nbytes, cache.exact_values) == (30, alone[1].nbytes, alone[1].exact_values)


def test_mean_keys_are_subtracted_or_asked_for():
    model, ids = tiny(), token_ids()
    chosen = dataclasses.replace(CompressionPolicy.int8(), center_keys="calibrate_mean")
    cells = [Cell(layer, head) for layer in range(3) for head in range(2)]
    means = {cell: np.full(BASE["head_dim"], 0.5, np.float32) for cell in cells}
    centred, _ = whole(model, ids, chosen, means=means, shared_tokens=SHARED)
    plain, _ = whole(model, ids, chosen, uncentred=True, shared_tokens=SHARED)
    assert np.abs(centred - plain).max() > 1e-3
    with pytest.raises(PolicyError, match="subtracts mean keys, and none are given: pass means="):
        whole(model, ids, chosen)


def test_a_policy_file_brings_its_means(tmp_path):
    from polykv.certify.means import means_to_arrays
    from polykv.storage.artifacts import save_artifact

    model, ids = tiny(), token_ids()
    chosen = dataclasses.replace(policy(FIB, FIB), center_keys="calibrate_mean")
    cells = [Cell(layer, head) for layer in range(3) for head in range(2)]
    means = {cell: np.full(BASE["head_dim"], 0.5, np.float32) for cell in cells}
    digest = save_artifact(tmp_path, means_to_arrays(means))
    dataclasses.replace(chosen, artifacts={digest: f"{digest}.npz"}).save(tmp_path / "mine.policy.json")
    expected, _ = whole(model, ids, chosen, means=means)
    np.testing.assert_array_equal(whole(model, ids, tmp_path / "mine.policy.json")[0], expected)


def test_the_model_is_as_before_afterwards_even_after_a_refusal():
    model, ids = tiny(), token_ids()
    before = model.config._attn_implementation
    plain = to_numpy(model(ids).logits[0])
    whole(model, ids, "int8")
    assert model.config._attn_implementation == before
    with pytest.raises(InputError, match="a batch of 2"):
        whole(model, torch.cat([ids, ids]), "int8")
    assert model.config._attn_implementation == before
    np.testing.assert_array_equal(to_numpy(model(ids).logits[0]), plain)


def test_what_cannot_be_compressed_is_refused_in_a_line():
    model, ids = tiny(), token_ids(12)
    outside = model(ids, use_cache=True)
    padded = torch.ones_like(ids)
    padded[0, :3] = 0

    def cut():
        out = model(ids, use_cache=True)
        out.past_key_values.crop(-2)
        further(model, ids[:, :1], out)

    def another():
        first = model(ids, use_cache=True)
        model(token_ids(12, 8), use_cache=True)
        further(model, ids[:, :1], first)

    refused = {
        "a batch of 2 sequences": lambda: model(torch.cat([ids, ids])),
        "does not see token 0.*without padding": lambda: model(ids, attention_mask=padded),
        "given 12 cached keys where 0 are held.*start the sequence inside": lambda: further(model, ids[:, :1], outside),
        "given 10 cached keys where 12 are held": cut,
        "cached keys that it did not compute": another,
        "a static or quantised cache": lambda: model.generate(
            ids, max_new_tokens=3, do_sample=False, cache_implementation="static", disable_compile=True
        ),
        "a batch of 3": lambda: model.generate(ids, max_new_tokens=3, num_beams=3, do_sample=False),
    }
    for words, ask in refused.items():
        with pytest.raises(InputError, match=words) as told, compressed(model, "int8"):
            ask()
        assert "\n" not in str(told.value)


def test_what_does_not_fit_is_refused_before_any_token():
    model = tiny()
    with (
        pytest.raises(PolicyError, match="made for another model"),
        compressed(model, policy(cells={"7/0": {"candidate_k": 3}})),
    ):
        pass
    with pytest.raises(InputError, match="shared_tokens is -1"), compressed(model, "int8", shared_tokens=-1):
        pass
    with pytest.raises(InputError, match="training mode"), compressed(tiny().train(), "int8"):
        pass
    with compressed(model, "int8") as cache, pytest.raises(InputError, match="nothing was compressed yet"):
        cache.costs()


def test_it_is_reached_through_the_package():
    assert polykv.hf.compressed is compressed
