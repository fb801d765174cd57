"""A policy's attention over keys coded before RoPE: against exact attention, and the cell replay."""

import numpy as np
import pytest

from polykv.certify.attention import attend_layer
from polykv.certify.cells import cell_rotations, plan_cells
from polykv.errors import PolicyError
from polykv.policy import CompressionPolicy
from polykv.replay.head import HeadInputs, exact_token_mask, replay_head
from polykv.replay.passage import encode_tiers
from polykv.rotation import Rotation, rotation_to_arrays
from polykv.types import Cell
from tests.certify.certify_samples import FIB, inputs, means, policy, spec

DIGEST = "cd" * 32
ROTATION = Rotation(10000.0 ** (-2 * np.arange(8) / 16))
ARTIFACTS = {DIGEST: rotation_to_arrays({0: ROTATION})}.__getitem__
EXACT = {"id": "exact_f32_fallback"}


def laid(chosen, rules, centred=False):
    return plan_cells(chosen, {0: rules}, means(rules) if centred else None, ARTIFACTS)


@pytest.mark.parametrize("centred", [False, True])
def test_exact_codes_before_rope_are_exact_attention(centred):
    rules = spec()
    given = inputs(rules, 200)
    chosen = policy(EXACT, EXACT, key_rotation=DIGEST, center_keys="calibrate_mean" if centred else "off")
    plans = laid(chosen, rules, centred)
    out, _ = attend_layer(given, plans, 90)
    expected, _ = attend_layer(given, plan_cells(CompressionPolicy.exact(), {0: rules}), 90)
    np.testing.assert_allclose(out, expected, atol=5e-6)
    assert all(plan.is_lossless(200) for plan in plans.values())


@pytest.mark.parametrize("candidate_k", [None, 3])
@pytest.mark.parametrize("centred", [False, True])
def test_lossy_policy_agrees_with_the_cell_replay(candidate_k, centred):
    rules = spec()
    given = inputs(rules)
    chosen = policy(
        key_rotation=DIGEST, sink_tokens=2, recent_window=5, candidate_k=candidate_k,
        center_keys="calibrate_mean" if centred else "off",
    )  # fmt: skip
    plans = laid(chosen, rules, centred)
    out, _ = attend_layer(given, plans, 20)
    for head in range(rules.n_q_heads):
        plan = plans[Cell(0, head // rules.group_size)]
        kv = plan.cell.kv_head
        encoded = encode_tiers(given.keys[kv], given.values[kv], plan.codecs, 20, plan.key_mean, plan.rotation)
        positions = np.arange(48)
        exact = exact_token_mask(positions, 48, None, 2, 5)
        scores = encoded.scores(given.queries[head])
        made = HeadInputs(
            given.queries[head], positions, given.keys[kv], given.values[kv], scores, np.zeros(48), encoded.values(), exact, None
        )  # fmt: skip
        expected = replay_head(made, rules, np.array([candidate_k or 48]))
        np.testing.assert_allclose(out[:, head], expected.outputs[:, 0], atol=3e-6)
    plain, _ = attend_layer(given, laid(policy(sink_tokens=2, recent_window=5), rules), 20)
    assert not np.allclose(out, plain, atol=1e-3)


def test_a_plan_holds_the_rotation_of_its_cell_only():
    chosen = policy(key_rotation=DIGEST, cells={"0/1": {"key_rotation": "keep"}})
    plans = laid(chosen, spec())
    assert plans[Cell(0, 1)].rotation is None
    np.testing.assert_array_equal(plans[Cell(0, 0)].rotation.frequencies, ROTATION.frequencies)
    assert cell_rotations(chosen, {0: spec()}, ARTIFACTS).keys() == {Cell(0, 0)}


def test_what_cannot_be_honoured_is_refused():
    with pytest.raises(PolicyError, match="no artifact loader"):
        plan_cells(policy(key_rotation=DIGEST), {0: spec()})
    with pytest.raises(PolicyError, match="no layer 4"):
        plan_cells(policy(key_rotation=DIGEST), {4: spec(4)}, None, ARTIFACTS)
    with pytest.raises(PolicyError, match="query_mode 'gram'"):
        laid(policy(FIB | {"query_mode": "gram"}, key_rotation=DIGEST), spec())
