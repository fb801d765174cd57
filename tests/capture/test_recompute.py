"""The checks a captured layer must pass, on arrays alone."""

from dataclasses import replace

import numpy as np
import pytest

from polykv.attention import attend
from polykv.capture.labels import choose_labels, label_index
from polykv.capture.recompute import check_attention, check_finite, check_storable, recorded_heads, same_rules
from polykv.capture.residual import ResidualTap, linear_projection, logits_error, residual_rms
from polykv.capture.session import AttentionRecord
from polykv.errors import CaptureError, InputError, NonFiniteError
from polykv.types import LayerCapture, LayerSpec

SPEC = LayerSpec(2, 4, 2, 8, 6, 0.5, sliding_window=7, logit_softcap=6.0, has_sink_logits=True)
POSITIONS = np.array([10, 13, 18])
SINKS = np.array([0.5, -1.0, 2.0, 0.0], np.float32)


@pytest.fixture
def captured():
    rng = np.random.default_rng(0)
    k, v, q = (rng.normal(size=shape).astype(np.float32) * 2 for shape in ((2, 20, 8), (2, 20, 6), (4, 3, 8)))
    out = [attend(q[h], k[h // 2], v[h // 2], POSITIONS, SPEC, float(SINKS[h])) for h in range(4)]
    return LayerCapture(k, v, q, np.array(out, np.float32))


def record(capture, spec=SPEC, sinks=SINKS, exact_out=None):
    return AttentionRecord(capture.q, capture.out, spec, sinks, exact_out)


def test_a_right_layer_passes_and_tells_its_error(captured):
    assert check_attention(captured, record(captured), POSITIONS, "p") < 1e-6


@pytest.mark.parametrize(
    ("spec", "sinks", "positions"),
    [
        (replace(SPEC, softmax_scale=0.505), SINKS, POSITIONS),
        (replace(SPEC, sliding_window=8), SINKS, POSITIONS),
        (replace(SPEC, sliding_window=6), SINKS, POSITIONS),
        (replace(SPEC, logit_softcap=None), SINKS, POSITIONS),
        (SPEC, None, POSITIONS),
        (SPEC, SINKS[::-1], POSITIONS),
        (SPEC, SINKS, POSITIONS + 1),
    ],
)
def test_a_wrong_rule_fails_by_layer_head_and_both_numbers(captured, spec, sinks, positions):
    with pytest.raises(CaptureError, match=r"p: attention of layer 2, head \d.* by [0-9.e-]+ .* more than 0.0001"):
        check_attention(captured, record(captured, spec, sinks), positions, "p")


def test_an_output_of_lower_precision_has_a_layers_limit(captured):
    rough = replace(captured, out=captured.out * np.float32(1.004))
    with pytest.raises(CaptureError, match="more than 0.0001"):
        check_attention(rough, record(rough), POSITIONS, "p")
    assert check_attention(rough, record(rough, exact_out=captured.out), POSITIONS, "p") == pytest.approx(
        0.004, rel=0.1
    )
    rougher = replace(captured, out=captured.out * np.float32(1.05))
    with pytest.raises(CaptureError, match="all heads in bfloat16, .* more than 0.03"):
        check_attention(rougher, record(rougher, exact_out=captured.out), POSITIONS, "p")


def test_nothing_passes_by_being_nan(captured):
    captured.out[1] = np.nan
    with pytest.raises(CaptureError, match="head 1"):
        check_attention(captured, record(captured), POSITIONS, "p")


@pytest.mark.parametrize("name", ["k", "v", "q", "out"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_is_named_by_place(captured, name, bad):
    getattr(captured, name)[1, 2, 3] = bad
    with pytest.raises(NonFiniteError, match=f"p: {name} of layer 2, head 1, row 2 is {bad}"):
        check_finite(captured, 2, "p")


def test_float16_overflow_is_named_by_place_and_value(captured):
    captured.k[1, 4, 0] = -65505.0
    with pytest.raises(InputError, match=r"p: k of layer 2, head 1, row 4 is -65505, beyond float16 .*--dtype float32"):
        check_storable(captured, 2, "float16", "p")
    check_storable(captured, 2, "float32", "p")
    captured.k[1, 4, 0] = -65504.0
    check_storable(captured, 2, "float16", "p")


def test_rules_may_not_change_between_passages():
    same_rules(SPEC, SPEC, "p")
    with pytest.raises(CaptureError, match="softmax_scale 0.4, .* was .*softmax_scale 0.5"):
        same_rules(replace(SPEC, softmax_scale=0.4), SPEC, "p")


def test_token_major_rows_become_heads():
    rows = np.arange(12).reshape(6, 2)
    np.testing.assert_array_equal(recorded_heads(rows, 2, 3, "k")[1], [[2, 3], [6, 7], [10, 11]])
    with pytest.raises(CaptureError, match="k: 6 vectors were recorded, expected 4 tokens × 2 heads = 8"):
        recorded_heads(rows, 2, 4, "k")


def test_labels_hold_next_tokens_then_each_querys_likeliest_then_the_likeliest():
    logits = np.zeros((2, 8))
    logits[0, 5], logits[1, 6], logits[1, 2] = 9.0, 3.0, 2.5
    np.testing.assert_array_equal(choose_labels(logits, np.array([0, 0]), 1, 8), [0])
    np.testing.assert_array_equal(choose_labels(logits, np.array([0, 0]), 3, 8), [0, 5, 6])
    np.testing.assert_array_equal(choose_labels(logits, np.array([0, 7]), 5, 8), [0, 2, 5, 6, 7])
    np.testing.assert_array_equal(choose_labels(logits, np.array([0, 3]), 3, 6), [0, 3, 5])
    with pytest.raises(InputError, match="2 different next tokens do not fit 1 labels"):
        choose_labels(logits, np.array([0, 1]), 1, 8)


def test_a_label_outside_the_set_is_refused():
    label_set = np.array([2, 5, 9])
    np.testing.assert_array_equal(label_index(label_set, np.array([9, 2])), [2, 0])
    with pytest.raises(InputError, match="next token 6 is not among the 3 labels"):
        label_index(label_set, np.array([2, 6]))
    with pytest.raises(InputError, match="next token 10 "):
        label_index(label_set, np.array([10]))


class Weights:
    """Projections of one layer, as arrays."""

    def __init__(self, w_o, bias):
        self._w_o, self._bias = w_o, bias

    def w_o(self, layer):
        return self._w_o

    def bias(self, layer):
        return self._bias


def residual_case(residual_norm=1.0):
    rng = np.random.default_rng(1)
    out, w_o, bias = rng.normal(size=(4, 3, 6)), rng.normal(size=(10, 24)), rng.normal(size=10)
    before = rng.normal(size=(3, 10)) * residual_norm
    mid = before + out.transpose(1, 0, 2).reshape(3, 24) @ w_o.T + bias
    mlp = rng.normal(size=(3, 10))
    at = {(0, "in"): before, (0, "mid"): mid, (0, "mlp"): mlp, (0, "out"): mid + mlp}
    at |= {("last",): mid + mlp, ("final",): mid + mlp}
    tap = ResidualTap({key: [value.astype(np.float32)] for key, value in at.items()})
    return tap, {0: out.astype(np.float32)}, Weights(w_o.astype(np.float32), bias.astype(np.float32))


@pytest.mark.parametrize("residual_norm", [1.0, 3e3])
def test_a_linear_residual_is_recognised(residual_norm):
    tap, outs, weights = residual_case(residual_norm)
    assert linear_projection(tap, 0, outs, weights) is None


@pytest.mark.parametrize(
    ("place", "factor", "told"),
    [
        ((0, "mid"), 1.001, r"layer 0: residual \+ W_o·out misses"),
        ((0, "out"), 1.001, r"layer 0: residual \+ mlp misses"),
        (("final",), 1.001, "not what the final norm reads"),
        ((0, "mid"), np.nan, "W_o·out misses"),
    ],
)
def test_a_residual_made_otherwise_is_told(place, factor, told):
    tap, outs, weights = residual_case()
    tap.at[place][0] *= np.float32(factor)
    assert told.replace("\\", "") in linear_projection(tap, 0, outs, weights)


def test_a_residual_that_never_passed_is_told():
    tap, outs, weights = residual_case()
    del tap.at[0, "mid"]
    assert "layer 0: its 'mid' residual never passed" in linear_projection(tap, 0, outs, weights)


def test_logits_from_the_normed_residual():
    rng = np.random.default_rng(2)
    final, head, gamma = rng.normal(size=(3, 10)), rng.normal(size=(5, 10)), rng.normal(size=10)
    rms = np.sqrt(np.mean(final**2, axis=1) + 1e-5)
    full = (final / rms[:, None] * gamma) @ head.T
    np.testing.assert_allclose(residual_rms(final, 1e-5), rms, rtol=1e-6)
    assert logits_error(head * gamma, final, rms, full) < 1e-12
    assert logits_error(head, final, rms, full) > 0.1
