"""A session is bounded, closed outside its block, and fails when a vector is dropped."""

import numpy as np
import pytest

from polykv.capture import AttentionRecord, capturing
from polykv.errors import CaptureError
from polykv.types import LayerSpec


def attention(n_heads=2, n_queries=3, width=4):
    q = np.ones((n_heads, n_queries, width), np.float32)
    return AttentionRecord(q, q, LayerSpec(0, n_heads, n_heads, width, width, 0.5))


def test_layers_and_streams_may_differ_in_width():
    with capturing(2, 6) as session:
        session.record(0, True, np.arange(12.0), 3, 4)
        session.record(0, False, np.arange(6.0), 3, 2)
        session.record(1, True, np.arange(24.0), 3, 8)
        session.record_attention(0, attention())
    assert session.vectors(0, True).shape == (3, 4)
    assert session.vectors(0, False).shape == (3, 2)
    assert session.vectors(1, True).shape == (3, 8)
    assert session.attention(0).spec.softmax_scale == 0.5


def _too_many(session):
    session.record(0, True, np.zeros(28), 7, 4)


def _other_width(session):
    session.record(0, True, np.zeros(4), 1, 4)
    session.record(0, True, np.zeros(3), 1, 3)


def _short(session):
    session.record(0, True, np.zeros(4), 2, 4)


def _no_such_layer(session):
    session.record(2, True, np.zeros(4), 1, 4)


def _no_width(session):
    session.record(0, True, np.zeros(4), 1, 0)


def _attention_twice(session):
    session.record_attention(0, attention())
    session.record_attention(0, attention())


def _attention_of_no_layer(session):
    session.record_attention(5, attention())


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (_too_many, "past_cap 1"),
        (_other_width, "head_dim_mismatch 1"),
        (_short, "short_slice 1"),
        (_no_such_layer, "layer_out_of_range 1"),
        (_no_width, "zero_head_dim 1"),
        (_attention_twice, "past_cap 6"),
        (_attention_of_no_layer, "layer_out_of_range 6"),
    ],
)
def test_any_drop_fails_the_capture(spoil, told):
    with pytest.raises(CaptureError, match=told), capturing(2, 6) as session:
        spoil(session)


def test_recording_after_the_block_is_a_drop():
    with capturing(1, 6) as session:
        pass
    session.record(0, True, np.zeros(4), 1, 4)
    with pytest.raises(CaptureError, match="no_buffer 1"):
        session.check()


def _drop_and_divide():
    with capturing(1, 1) as session:
        _too_many(session)
        return 1 / 0


def test_an_error_under_way_is_not_replaced():
    with pytest.raises(ZeroDivisionError):
        _drop_and_divide()


def test_what_was_not_recorded_is_an_error():
    with capturing(1, 1) as session:
        pass
    with pytest.raises(CaptureError, match="layer 0: no key vector"):
        session.vectors(0, True)
    with pytest.raises(CaptureError, match="layer 0: no queries"):
        session.attention(0)
