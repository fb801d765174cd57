"""Real architectures, tiny: a right capture recomputes, and every trait left out is seen."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch and transformers: make hf")

import tiny_models  # noqa: E402

from polykv.capture import adapter, recompute  # noqa: E402
from polykv.capture.plan import plan_capture  # noqa: E402
from polykv.capture.run import capture_passages  # noqa: E402
from polykv.capture.session import CaptureSession  # noqa: E402
from polykv.errors import CaptureError, UnsupportedModelError  # noqa: E402

pytestmark = pytest.mark.hf


def capture(model, folder, **changes):
    plan = plan_capture(tiny_models.config(folder, **changes), tiny_models.loaded(model))
    return plan, list(capture_passages(plan))


@pytest.mark.parametrize("key", tiny_models.TINY)
def test_a_right_capture_recomputes(key, tmp_path, monkeypatch):
    monkeypatch.setattr(recompute, "HEAD_LIMIT", 3e-6)
    model = tiny_models.make(key)
    deviations = tiny_models.score_deviations(model)
    plan, passages = capture(model, tmp_path)
    assert len(passages) == 2
    assert all(3.0 < deviation < 10.0 for deviation in deviations.values())
    assert (plan.logits_detail is None) == tiny_models.TINY[key].linear, plan.logits_detail
    assert plan.meta.logits_reason == (None if tiny_models.TINY[key].linear else "no_linear_projection")
    for spec in plan.meta.layers:
        layer = passages[0].layers[spec.layer]
        assert layer.k.shape == (spec.n_kv_heads, 40, spec.head_dim)
        assert layer.v.shape == (spec.n_kv_heads, 40, spec.value_dim)
        assert layer.q.shape == (spec.n_q_heads, 6, spec.head_dim)
        assert layer.out.shape == (spec.n_q_heads, 6, spec.value_dim)


@pytest.mark.parametrize(
    ("key", "layer", "expected"),
    [
        ("llama", 0, {"n_q_heads": 6, "n_kv_heads": 2, "head_dim": 8, "sliding_window": None}),
        ("llama_mqa_tied", 0, {"n_kv_heads": 1}),
        ("mistral", 1, {"sliding_window": 8}),
        ("qwen3", 0, {"head_dim": 16, "softmax_scale": 0.25}),
        ("gemma2", 0, {"sliding_window": 8, "logit_softcap": 5.0}),
        ("gemma2", 1, {"sliding_window": None, "logit_softcap": 5.0}),
        ("gemma3", 2, {"sliding_window": 8, "logit_softcap": None}),
        ("granite", 0, {"softmax_scale": 0.3}),
        ("gpt_oss", 1, {"sliding_window": None, "has_sink_logits": True}),
        ("deepseek_v3", 0, {"head_dim": 24, "value_dim": 16}),
    ],
)
def test_the_rules_recorded_are_the_models(key, layer, expected):
    from polykv.capture.forward import probe_layers

    specs, sinks = probe_layers(tiny_models.make(key), tiny_models.token_ids(4))
    assert {name: getattr(specs[layer], name) for name in expected} == expected
    assert (layer in sinks) == specs[layer].has_sink_logits


def spoil_rules(**change):
    """Every layer to which the change means something says another rule than it follows."""

    def spoil(monkeypatch, model):
        right = adapter.layer_rules

        def wrong(*arguments):
            spec = right(*arguments)
            return replace(spec, **{name: value(getattr(spec, name)) for name, value in change.items()})

        monkeypatch.setattr(adapter, "layer_rules", wrong)

    return spoil


def other_window(step):
    return spoil_rules(sliding_window=lambda window: window and window + step)


def no_sinks(monkeypatch, model):
    monkeypatch.setattr(adapter, "sink_logits", lambda kwargs: None)


def other_sinks(monkeypatch, model):
    right = adapter.sink_logits
    monkeypatch.setattr(adapter, "sink_logits", lambda kwargs: right(kwargs)[::-1].copy())


def no_mask(monkeypatch, model):
    monkeypatch.setattr(adapter, "register_mask", lambda name: None)


def spoil_record(change):
    """The session keeps other vectors than the attention saw."""

    def spoil(monkeypatch, model):
        right = CaptureSession.record

        def wrong(self, layer, k_not_v, proj, n_kv, head_dim):
            return right(self, layer, k_not_v, change(model, layer, k_not_v, proj), n_kv, head_dim)

        monkeypatch.setattr(CaptureSession, "record", wrong)

    return spoil


def other_head_order(model, layer, k_not_v, proj):
    return np.ascontiguousarray(proj[:, ::-1])


def other_token_order(model, layer, k_not_v, proj):
    return proj if k_not_v else np.roll(proj, 1, axis=0)


def keys_before_rope(monkeypatch, model):
    projected = {}
    for layer, module in tiny_models.attention_modules(model).items():
        module.k_proj.register_forward_hook(lambda _, __, out, layer=layer: projected.update({layer: out}))

    def change(model, layer, k_not_v, proj):
        return projected[layer].detach().numpy().reshape(proj.shape).copy() if k_not_v else proj

    spoil_record(change)(monkeypatch, model)


def interleaved_query_heads(monkeypatch, model):
    right = CaptureSession.record_attention

    def wrong(self, layer, attention):
        order = np.arange(attention.spec.n_q_heads).reshape(attention.spec.n_kv_heads, -1).T.reshape(-1)
        return right(self, layer, replace(attention, q=attention.q[order], out=attention.out[order]))

    monkeypatch.setattr(CaptureSession, "record_attention", wrong)


@pytest.mark.parametrize(
    ("key", "spoil"),
    [
        pytest.param("llama", spoil_rules(softmax_scale=lambda scale: scale * 1.01), id="scale"),
        pytest.param("granite", spoil_rules(softmax_scale=lambda scale: 8**-0.5), id="granite-multiplier"),
        pytest.param("gemma2", spoil_rules(logit_softcap=lambda cap: None), id="softcap-left-out"),
        pytest.param("gemma2", spoil_rules(logit_softcap=lambda cap: cap * 1.05), id="softcap-other"),
        pytest.param("mistral", other_window(1), id="mistral-window+1"),
        pytest.param("mistral", other_window(-1), id="mistral-window-1"),
        pytest.param("gemma2", other_window(1), id="gemma2-window+1"),
        pytest.param("gemma3", other_window(1), id="gemma3-window+1"),
        pytest.param("gemma3", other_window(-1), id="gemma3-window-1"),
        pytest.param("gpt_oss", other_window(-1), id="gpt-oss-window-1"),
        pytest.param("mistral", spoil_rules(sliding_window=lambda window: None), id="window-left-out"),
        pytest.param("gpt_oss", no_sinks, id="sinks-left-out"),
        pytest.param("gpt_oss", other_sinks, id="sinks-of-other-heads"),
        pytest.param("llama", spoil_record(other_head_order), id="kv-head-order"),
        pytest.param("llama", interleaved_query_heads, id="query-head-order"),
        pytest.param("llama", spoil_record(other_token_order), id="token-order"),
        pytest.param("llama", keys_before_rope, id="pre-rope-keys"),
        pytest.param("qwen2", keys_before_rope, id="pre-rope-keys-with-bias"),
        pytest.param("qwen3", keys_before_rope, id="keys-before-their-norm"),
        pytest.param("llama", no_mask, id="not-causal"),
        pytest.param("mistral", no_mask, id="not-causal-nor-windowed"),
    ],
)
def test_a_trait_left_out_fails_the_capture(key, spoil, tmp_path, monkeypatch):
    model = tiny_models.make(key)
    spoil(monkeypatch, model)
    with pytest.raises(CaptureError, match=r"attention of layer \d, head \d, recomputed .* by [0-9.e-]+ \(relative\)"):
        capture(model, tmp_path)


REFUSED = {
    "Falcon": {"new_decoder_architecture": False, "alibi": False, "hidden_size": 48, "num_attention_heads": 6},
    "Bloom": {"hidden_size": 48, "n_head": 6},
    "Lfm2": {
        **tiny_models.BASE,
        "num_hidden_layers": 2,
        "layer_types": ["conv", "full_attention"],
    },
}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "Falcon",
            "FalconForCausalLM cannot be captured: 0 attention calls in 0 layers, expected one in each of its 2",
        ),
        ("Bloom", "BloomForCausalLM cannot be captured: 0 attention calls in 0 layers"),
        ("Lfm2", "Lfm2ForCausalLM cannot be captured: 1 attention calls in 1 layers, expected one in each of its 2"),
    ],
)
def test_models_past_the_attention_interface_are_refused_by_name(name, told, tmp_path):
    model = tiny_models.build(name, {"vocab_size": 97, "num_hidden_layers": 2, **REFUSED[name]})
    with pytest.raises(UnsupportedModelError, match=told):
        capture(model, tmp_path)


def test_an_encoder_decoder_is_refused_by_name(tmp_path):
    import transformers

    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 97}
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes, **heads))
    with pytest.raises(UnsupportedModelError, match="BartForConditionalGeneration is an encoder-decoder"):
        capture(model, tmp_path)


def test_a_layer_that_attends_twice_is_refused():
    model = tiny_models.make("llama")
    attention = tiny_models.attention_modules(model)[1]
    plain = attention.forward
    attention.forward = lambda *args, **kwargs: (plain(*args, **kwargs), plain(*args, **kwargs))[1]
    from polykv.capture.forward import probe_layers

    with pytest.raises(UnsupportedModelError, match=r"4 attention calls in 3 layers \(layer 1: 2\)"):
        probe_layers(model, tiny_models.token_ids(4))
