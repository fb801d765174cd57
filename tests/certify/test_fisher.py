"""The Fisher information of keys and values: it says what a small error costs a real model, in nats."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch and transformers: make hf")

from polykv.capture.forward import probe_layers  # noqa: E402
from polykv.certify.cells import CellPlan, plan_cells  # noqa: E402
from polykv.certify.fisher import FisherConfig, measured_fisher  # noqa: E402
from polykv.certify.inject import baseline_logits, policy_logits  # noqa: E402
from polykv.certify.metrics import compare_logits  # noqa: E402
from polykv.certify.rotation import measured_rotation  # noqa: E402
from polykv.codecs.exact import ExactCodec  # noqa: E402
from polykv.errors import InputError, NonFiniteError  # noqa: E402
from polykv.policy import CompressionPolicy  # noqa: E402
from polykv.replay.passage import TierCodecs  # noqa: E402
from polykv.types import STREAMS, Cell  # noqa: E402
from tests.certify.tiny_certify_models import ALTERNATING, ARCHITECTURES, WINDOW, loaded, tiny, words  # noqa: E402

pytestmark = pytest.mark.hf
TOKENS, SINKS, RECENT = 48, 2, 6
CONFIG = FisherConfig(SINKS, RECENT, n_draws=48)
SCORED = np.arange(SINKS + RECENT, TOKENS - 1)


class Noisy(ExactCodec):
    """Exact but for `noise` [token, head_dim], added to what is decoded."""

    def __init__(self, noise):
        super().__init__(noise.shape[1])
        self.noise = noise.astype(np.float32)

    def decode(self, codes, rows=None):
        noise = self.noise if rows is None else self.noise[rows]
        return super().decode(codes, rows) + noise

    def scores(self, queries, codes):
        return queries @ self.decode(codes).T


def token_ids(seed):
    return np.array([int(word) for word in words(TOKENS, seed).split()])


def true_kl(model, ids, cell, stream, noise):
    """Nats a scored token with `noise` [token, head_dim] on one stream of one cell; sinks and window stay exact."""
    specs, _ = probe_layers(model, ids[:4])
    exact = CompressionPolicy("noisy", sink_tokens=SINKS, recent_window=RECENT, candidate_k="full")
    plan = plan_cells(exact, {cell.layer: specs[cell.layer]})[cell]
    codecs = list(plan.all_codecs)
    codecs[STREAMS.index(stream)] = Noisy(noise)
    plans = plan_cells(exact, {cell.layer: specs[cell.layer]})
    plans[cell] = CellPlan(cell, plan.policy, TierCodecs(*codecs), None)
    logits, _ = policy_logits(model, ids, SCORED, plans, TOKENS)
    return float(compare_logits(baseline_logits(model, ids, SCORED), logits, ids[SCORED + 1]).kl.mean())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_small_error_costs_what_it_says(architecture, monkeypatch):
    # an error that sends a token to another expert costs more than any gradient knows: let it have all experts
    monkeypatch.setitem(ARCHITECTURES["gpt_oss"][2], "num_experts_per_tok", 4)
    model, ids, size = tiny(architecture), token_ids(5), 3e-3
    metrics = measured_fisher(loaded(model), [ids], CONFIG).metrics
    rng = np.random.default_rng(0)
    for layer, stream in product((0, 2), STREAMS):
        cell = Cell(layer, 0)
        noises = [size * rng.standard_normal((TOKENS, 16)) for _ in range(8)]
        measured = np.mean([true_kl(model, ids, cell, stream, noise) for noise in noises])
        expected = size**2 * np.trace(metrics[cell, stream])
        assert expected == pytest.approx(measured, rel=0.35), (layer, stream)


@pytest.mark.parametrize("stream", STREAMS)
def test_an_error_in_proportion_to_each_vector_is_weighed_token_by_token(stream):
    """Tokens differ in size and in how much they matter: the mean of one times the mean of the other is another thing."""
    model, ids = tiny(), token_ids(5)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (8, TOKENS, 1))
    cell, sizes = Cell(1, 0), np.geomspace(1e-4, 6e-3, TOKENS)[:, None]

    def grown(vectors):
        return (vectors - vectors + sizes[SINKS:]).astype(np.float64)

    found = measured_fisher(loaded(model), [ids], CONFIG, disturb=grown)
    noise = np.broadcast_to(sizes, (TOKENS, 16))
    measured = np.mean([true_kl(model, ids, cell, stream, sign * noise) for sign in signs])
    assert found.disturbed[cell, stream] == pytest.approx(measured, rel=0.35)


def test_directions_before_rope_cost_what_they_say():
    model, ids, size = tiny(), token_ids(5), 3e-3
    specs, _ = probe_layers(model, ids[:4])
    rotations = measured_rotation(loaded(model), specs, ids)
    metrics = measured_fisher(loaded(model), [ids], CONFIG, rotations).metrics
    signs = np.random.default_rng(1).choice([-1.0, 1.0], (8, TOKENS, 1))
    for layer in (0, 2):
        sizes, axes = np.linalg.eigh(metrics[Cell(layer, 1), "key"])
        costs = []
        for axis in (0, -1):
            turned = [rotations[layer].apply(size * sign * axes[:, axis], np.arange(TOKENS)) for sign in signs]
            costs.append(np.mean([true_kl(model, ids, Cell(layer, 1), "key", noise) for noise in turned]))
        assert costs[1] == pytest.approx(size**2 * sizes[-1], rel=0.35)
        assert costs[1] > 3 * costs[0]


def test_an_exact_window_as_wide_as_a_layers_own_forgives_everything():
    found = measured_fisher(loaded(tiny("gemma2")), [token_ids(5)], replace(CONFIG, recent_window=WINDOW, n_draws=1))
    assert len(found.metrics) == len(found.disturbed) == 3 * 2 * 2
    for (cell, _), metric in found.metrics.items():
        slides = ALTERNATING[cell.layer] == "sliding_attention"
        assert np.array_equal(metric, np.zeros((16, 16))) == slides


def test_it_is_the_same_again_and_another_with_another_seed():
    model, ids, few = tiny(), [token_ids(5), token_ids(6)], replace(CONFIG, n_draws=2)
    first, again, other = (measured_fisher(loaded(model), ids, c) for c in (few, few, replace(few, seed=1)))
    assert all(np.array_equal(first.metrics[place], again.metrics[place]) for place in first.metrics)
    assert not np.array_equal(first.metrics[Cell(0, 0), "key"], other.metrics[Cell(0, 0), "key"])


def test_what_cannot_be_measured_is_refused():
    model = tiny()
    with pytest.raises(InputError, match=r"has 8 tokens, none lies past 8"):
        measured_fisher(loaded(model), [token_ids(5)[:8]], CONFIG)
    model.lm_head.weight[0] = float("nan")
    with pytest.raises(NonFiniteError, match="not finite"):
        measured_fisher(loaded(model), [token_ids(5)], CONFIG)
