"""From a capture's cell to a fixture whose exact tensors agree with each other."""

from dataclasses import replace

import numpy as np
import pytest

from polykv.errors import InputError
from polykv.policy import CompressionPolicy
from polykv.receipt_stages import export_fixture
from polykv.replay.captured import run_captured_model_replay
from polykv.replay.fixture_export import fixture_of_cell
from polykv.replay.fixtures import CapturedReplayFixture
from polykv.replay.seed_config import CapturedReplayConfig
from polykv.replay.seed_float32 import project_f32
from polykv.types import LayerSpec
from tests.replay.cells import make_cell
from tests.storage.store_samples import make_meta, make_store


@pytest.mark.parametrize("shape", [{}, {"sliding_window": 7}, {"lengths": [24, 20, 24, 24, 24, 24], "group": 3}])
def test_the_exact_codec_at_full_budget_changes_nothing(shape):
    """No softmax_scale, no warning about one, and a KL below 1e-6."""
    cell = make_cell(logits=True, n_queries=4, **shape)
    for passage, q_head in ((None, 0), (1, 1)):
        fixture = fixture_of_cell(cell, "m", 3, q_head, passage)
        assert fixture.softmax_scale is None
        receipt = run_captured_model_replay(fixture, CapturedReplayConfig((24,)), CompressionPolicy.exact())
        assert receipt.passed
        assert receipt.metrics.kl_divergence_mean < 1e-6
        assert receipt.metrics.output_cosine_mean > 1 - 1e-9
        assert receipt.metrics.top1_agreement == 1.0
        assert CapturedReplayFixture.from_dict(fixture.to_dict()).digest() == fixture.digest()


def test_what_a_fixture_holds():
    cell = make_cell(logits=True, n_queries=4, scale=0.5)
    fixture = fixture_of_cell(cell, "m", 2, q_head=1, passage=3)
    first, last = fixture.queries
    position = int(cell.query_position[3, 3])
    np.testing.assert_array_equal(last.keys, cell.keys[3, : position + 1])
    np.testing.assert_array_equal(first.query, cell.queries[3, 1, 0] * np.float32(0.5))
    np.testing.assert_allclose(last.exact_attention_output, cell.outputs[3, 1, 3], rtol=1e-5)
    logits, rms = cell.logits, cell.logits.final_rms[3][[0, 3]].mean()
    np.testing.assert_allclose(fixture.output_projection, logits.wlm_gamma[3] @ logits.w_o[1] / rms, rtol=1e-5)
    np.testing.assert_array_equal(
        first.exact_logits, project_f32(first.exact_attention_output, fixture.output_projection)
    )
    assert [q.label_token for q in fixture.queries] == [int(logits.label_token[3, i]) for i in (0, 3)]
    assert fixture.shared_tokens == len(first.keys) // 2
    assert "head-only logits" in fixture.note
    assert "layer 3, KV head 0, query head 1 of its group, passage 3; queries scaled by 0.5" in fixture.note


def test_a_window_keeps_only_what_the_query_sees():
    fixture = fixture_of_cell(make_cell(logits=True, sliding_window=5), "m", 3)
    assert [len(query.keys) for query in fixture.queries] == [5, 5, 5]


def test_a_capture_without_logits_can_use_the_seeds_projection():
    fixture = fixture_of_cell(make_cell(), "m", 3, synthetic_projection=True)
    assert fixture.output_projection.shape == (64, 8)
    assert "synthetic" in fixture.note
    receipt = run_captured_model_replay(fixture, CapturedReplayConfig((24,)), CompressionPolicy.exact())
    assert receipt.metrics.kl_divergence_mean < 1e-6


def test_from_a_sealed_store_with_logits(tmp_path):
    spec = LayerSpec(2, 4, 2, 8, 8, 0.5)
    meta, _ = make_store(tmp_path / "store", make_meta(labels=5, layers=(spec,)))
    fixture = export_fixture(str(tmp_path / "store"), 2, 1, 2, q_head=1)
    assert fixture.model_id == meta.model_id
    assert fixture.output_projection.shape == (5, 8)
    config = CapturedReplayConfig((9,), min_output_cosine=0.999999, max_kl_divergence=1e-6)
    assert run_captured_model_replay(fixture, config, CompressionPolicy.exact()).passed


REFUSED = {
    "no logits": ({}, {}, "no logit data .captured without labels., and a fixture needs an output projection"),
    "soft-cap": ({"logit_softcap": 3.0}, {}, "layer 3 soft-caps its attention logits"),
    "sink logits": ({"sinks": True}, {}, "layer 3 has sink logits"),
    "widths": ({"value_dim": 4}, {}, "keys of 8 and values of 4"),
    "a window of one": ({"sliding_window": 1, "logits": True}, {}, "window of 1"),
    "q_head": ({"logits": True}, {"q_head": 2}, "query heads 0 to 1, not 2"),
    "queries": ({"logits": True}, {"n_queries": 9}, "9 queries asked for, a passage here has at most 3"),
    "no queries": ({"logits": True}, {"n_queries": 0}, "0 queries asked for"),
    "passage": ({"logits": True}, {"passage": 77}, "passage 77 has no queries in split 'confirm'"),
    "shared_tokens": ({"logits": True}, {"shared_tokens": 99}, "shared_tokens 99 must split the shortest"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_a_fixture_is_refused(name):
    shape, asked, text = REFUSED[name]
    with pytest.raises(InputError, match=text):
        fixture_of_cell(make_cell(**shape), "m", **({"n_queries": 2} | asked))


def test_a_damaged_capture_is_refused_with_its_place():
    cell = make_cell(logits=True)
    keys = cell.keys.copy()
    keys[2, 3, 1] = np.inf
    with pytest.raises(InputError, match=r"passage 2: keys\[3, 1\] is inf"):
        fixture_of_cell(replace(cell, keys=keys), "m", 2)
