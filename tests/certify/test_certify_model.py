"""Certification inside real (tiny) models: what must show, what must not, and what must be caught."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from polykv.capture import adapter
from polykv.capture.corpus import TextDocument
from polykv.capture.forward import probe_layers
from polykv.certify import Budget, Candidate, CertifyConfig, attention, certify_policies, evaluation_text, inject
from polykv.certify.attention import attend_layer
from polykv.certify.cells import plan_cells
from polykv.certify.inject import baseline_logits, policy_logits
from polykv.errors import CertifyError, InputError, PolicyError
from polykv.policy import CompressionPolicy
from tests.certify.certify_samples import policy
from tests.certify.tiny_certify_models import ARCHITECTURES, WINDOW, loaded, tiny, words

pytestmark = pytest.mark.hf

CONFIG = CertifyConfig(n_passages=2, n_tokens=48, bucket_tokens=8)
TWO_BITS = {"id": "uniform", "bits": 2, "mode": "asymmetric"}


def _text(model, n_passages=2):
    documents = [TextDocument(f"d{i}.txt", words(200, i), f"{i:064d}") for i in range(2)]
    return evaluation_text(documents, loaded(model).tokenize, None, n_passages, 48)


def _certify(model, *policies, config=CONFIG, **candidate):
    candidates = [Candidate(chosen, **candidate) for chosen in policies]
    return certify_policies(loaded(model), _text(model), candidates, config)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_exact_changes_nothing_and_lossy_shows_in_every_architecture(name):
    found = _certify(tiny(name), CompressionPolicy.exact(), policy(TWO_BITS, TWO_BITS))
    exact, lossy = found.policies
    assert max(passage.kl.max() for passage in exact.passages) < 1e-6
    assert min(passage.kl.mean() for passage in lossy.passages) > 1e-3
    assert found.controls.zeroed_kl > 0.5
    assert found.controls.causal_kl["lossy"] < 1e-9
    if "sliding_attention" in str(ARCHITECTURES[name]) or name == "mistral":
        assert found.specs[0].sliding_window == WINDOW


def test_later_layers_see_earlier_damage():
    """Keys of layer 1 change when layer 0 alone is compressed."""
    model = tiny()
    seen = {}

    def watched(inputs, plans, shared):
        seen.setdefault(inputs.spec.layer, []).append(inputs.keys.copy())
        return attend_layer(inputs, plans, shared)

    ids = _text(model).token_ids[0]
    specs, _ = probe_layers(model, ids[:4])
    exact = {"id": "exact_f32_fallback"}
    only_first = policy(exact, exact, cells={f"0/{head}": _tiers(TWO_BITS) for head in range(2)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inject, "attend_layer", watched)
        for chosen in (CompressionPolicy.exact(), only_first):
            policy_logits(model, ids, np.array([47]), plan_cells(chosen, specs), 24)
    np.testing.assert_array_equal(seen[0][0], seen[0][1])
    assert np.abs(seen[1][0] - seen[1][1]).max() > 1e-2


def _tiers(codec):
    return {tier: {"key": codec, "value": codec} for tier in ("pool", "shell")}


def test_the_model_is_as_before_afterwards():
    model = tiny()
    before = model.config._attn_implementation
    ids = _text(model).token_ids[0]
    first = baseline_logits(model, ids, np.arange(48))
    _certify(model, CompressionPolicy.int8())
    assert model.config._attn_implementation == before
    np.testing.assert_array_equal(first, baseline_logits(model, ids, np.arange(48)))


def test_an_attention_without_its_mask_is_refused(monkeypatch):
    """Without a mask function transformers hands over no mask at all, and eager attention sees the future."""
    monkeypatch.setattr(adapter, "register_mask", lambda name: None)
    with pytest.raises(CertifyError, match="the query at position 0 sees token 1; a causal mask was expected"):
        _certify(tiny(), CompressionPolicy.int8())


def test_without_the_mask_check_the_exact_control_still_catches_it(monkeypatch):
    monkeypatch.setattr(adapter, "register_mask", lambda name: None)
    monkeypatch.setattr(inject, "check_mask", lambda *args: None)
    with pytest.raises(CertifyError, match="exact policy changed the model"):
        _certify(tiny(), CompressionPolicy.int8())


def test_a_wrong_rule_is_caught_by_the_exact_control(monkeypatch):
    """Attending without the model's soft-cap is another model."""
    rules = inject.layer_rules
    monkeypatch.setattr(inject, "layer_rules", lambda *args: dataclasses.replace(rules(*args), logit_softcap=None))
    with pytest.raises(CertifyError, match="exact policy changed the model"):
        _certify(tiny("gemma2"), CompressionPolicy.int8())


def test_a_policy_that_never_reaches_the_model_fails(monkeypatch):
    """The measured delta is then exactly zero, which reads like a perfect result."""
    exact = plan_cells(CompressionPolicy.exact(), probe_layers(tiny(), np.arange(3, 7))[0])
    monkeypatch.setattr(inject, "attend_layer", lambda inputs, plans, shared: attend_layer(inputs, exact, shared))
    with pytest.raises(CertifyError, match="'int8' is lossy, yet moved predictions by KL .* never engaged"):
        _certify(tiny(), CompressionPolicy.int8())


def test_a_cache_that_is_never_reached_fails(monkeypatch):
    monkeypatch.setattr(inject, "attention_replaced", _only_counts)
    with pytest.raises(CertifyError, match="emptied cache hardly changed the model"):
        _certify(tiny(), CompressionPolicy.int8())


def _only_counts(model, attention):
    """Broken on purpose: the model keeps its own attention, the calls are counted all the same."""
    return adapter.tapped(model, lambda call: None)


def test_a_policy_that_sees_the_future_fails(monkeypatch):
    """An output that depends on later keys, as codes made from a whole passage would."""

    def leaking(inputs, plans, shared):
        out, uses = attend_layer(inputs, plans, shared)
        exact = all(plan.is_lossless(48) for plan in plans.values())
        return out if exact else out + np.float32(0.5 * inputs.keys.mean()), uses

    monkeypatch.setattr(inject, "attend_layer", leaking)
    with pytest.raises(CertifyError, match="policy 'int8' sees the future"):
        _certify(tiny(), CompressionPolicy.int8())


def test_a_window_over_the_whole_passage_is_told_apart_from_a_result():
    with pytest.raises(CertifyError, match="among its sinks and its window"):
        _certify(tiny(), policy(TWO_BITS, TWO_BITS, recent_window=48))


def test_selection_costs_and_is_counted():
    whole, chosen = (
        dataclasses.replace(CompressionPolicy.exact(), name=n, candidate_k=k) for n, k in (("a", None), ("b", 4))
    )
    found = _certify(tiny(), whole, chosen)
    full, few = found.policies
    assert full.decoded == full.visible
    # 24 scored queries (positions 23 … 46) × 6 heads × 3 layers × 2 passages, four values each
    assert few.decoded == 24 * 6 * 3 * 2 * 4
    assert few.visible == 6 * 3 * 2 * sum(range(24, 48))
    assert np.mean([p.kl.mean() for p in few.passages]) > 1e-3


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_filling_in_decodes_no_more_and_passes_every_control(name):
    drop, mean = (
        dataclasses.replace(CompressionPolicy.exact(), name=how, candidate_k=4, unselected_values=how, recent_window=3)
        for how in ("drop", "mean")
    )
    whole = dataclasses.replace(mean, name="whole", candidate_k=48)
    found = _certify(tiny(name), drop, mean, whole)
    dropped, meant, lossless = found.policies
    kls = [np.mean([passage.kl.mean() for passage in each.passages]) for each in found.policies]
    assert (dropped.decoded, dropped.visible) == (meant.decoded, meant.visible)
    assert kls[1] < kls[0]
    assert kls[2] < 1e-6
    assert max(found.controls.causal_kl.values()) < 1e-9


def test_a_mean_of_later_tokens_sees_the_future(monkeypatch):
    def over_all(block, sums):
        return np.broadcast_to((sums[-1] / len(sums)).astype(np.float32), (len(block.visible), sums.shape[1]))

    monkeypatch.setattr(attention._Block, "candidate_means", over_all)
    chosen = dataclasses.replace(CompressionPolicy.exact(), name="ahead", candidate_k=2, unselected_values="mean")
    with pytest.raises(CertifyError, match="policy 'ahead' sees the future"):
        _certify(tiny(), chosen)


def test_what_cannot_be_certified_is_refused_before_any_pass():
    model = tiny()
    with pytest.raises(InputError, match="two policies are named 'int8'"):
        _certify(model, CompressionPolicy.int8(), CompressionPolicy.int8())
    with pytest.raises(PolicyError, match="made for another model"):
        _certify(model, policy(cells={"7/0": {"candidate_k": 3}}))
    with pytest.raises(InputError, match=r"passages have \[48\] tokens, all must have 40"):
        _certify(model, CompressionPolicy.int8(), config=dataclasses.replace(CONFIG, n_tokens=40, budget=Budget(0.1)))


def test_progress_counts_every_forward_pass():
    ticks = []
    certify_policies(
        loaded(tiny()), _text(tiny()), [Candidate(CompressionPolicy.int8())], CONFIG, lambda *tick: ticks.append(tick)
    )
    assert ticks == [(i, 0, 8) for i in range(1, 9)]
