"""The running reference's receipts, reproduced: every metric within 1e-5, every text and choice the same."""

import pytest

from polykv.policy import CompressionPolicy
from polykv.replay.captured import run_captured_model_replay, verify_captured_receipt
from polykv.replay.fixtures import CapturedReplayFixture, model_queries
from polykv.replay.model_shaped import run_model_replay
from polykv.replay.seed_config import CapturedReplayConfig, ModelReplayConfig
from polykv.replay.seed_records import CapturedReplayReceipt, ModelReplayReceipt
from tests.replay.seed_samples import golden, golden_pool_and_shell

CAPTURED = ("captured_replay", "captured_replay_fail")


def run_captured(name):
    raw = golden(f"{name}.in")
    fixture = CapturedReplayFixture.from_dict(raw["fixture"])
    return fixture, run_captured_model_replay(fixture, CapturedReplayConfig.from_dict(raw["config"]))


def run_model():
    raw = golden("model_replay.in")
    pool, shell, _, _ = golden_pool_and_shell()
    return run_model_replay(pool, shell, model_queries(raw["queries"]), ModelReplayConfig.from_dict(raw["config"]))


def assert_same(found, expected, place="$"):
    """Every key of the reference's receipt is there, in its order, and equal; floats within 1e-5 (relative above 1)."""
    if isinstance(expected, dict):
        assert [key for key in found if key in expected] == list(expected), place
        for key, value in expected.items():
            assert_same(found[key], value, f"{place}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), place
        for i, (one, two) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, two, f"{place}[{i}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-5, rel=1e-5), place
    else:
        assert found == expected, place
        assert type(found) is type(expected), place


@pytest.mark.parametrize("name", CAPTURED)
def test_captured_receipts(name):
    _, receipt = run_captured(name)
    assert_same(receipt.to_dict(), golden(f"{name}.receipt"))


def test_the_model_shaped_receipt_names_its_reference():
    receipt = run_model()
    assert_same(receipt.to_dict(), golden("model_replay.receipt"))
    assert receipt.provenance["exact_reference"].startswith("decoded_pool")


@pytest.mark.parametrize("name", [*CAPTURED, "model_replay"])
def test_the_references_receipts_hold_by_themselves(name):
    kind = ModelReplayReceipt if name == "model_replay" else CapturedReplayReceipt
    raw = golden(f"{name}.receipt")
    receipt = kind.from_dict(raw)
    assert receipt.verify()
    assert receipt.to_dict() == raw


@pytest.mark.parametrize("name", CAPTURED)
def test_the_references_receipts_hold_against_their_fixture(name):
    fixture = CapturedReplayFixture.from_dict(golden(f"{name}.in")["fixture"])
    receipt = CapturedReplayReceipt.from_dict(golden(f"{name}.receipt"))
    assert len(verify_captured_receipt(receipt, fixture)) > len(receipt.verify())


def test_defaults_are_the_seeds():
    assert ModelReplayConfig().to_dict() == {
        "layer": 0,
        "head": 0,
        "candidate_ks": [],
        "vocab_size": 64,
        "projection_seed": 0,
        "min_output_cosine": 0.75,
        "max_output_mse": 0.25,
        "max_kl_divergence": 0.50,
        "max_ppl_delta": 1.0,
        "min_top1_agreement": 0.25,
    }


def test_a_query_has_its_own_pool_and_shell_seeds(monkeypatch):
    from polykv.pool import SharedKVPool

    seeds = []
    build, shell = SharedKVPool.from_arrays.__func__, SharedKVPool.shell_from_arrays

    def spy_build(cls, keys, values, shape, seed, *rest):
        seeds.append(seed)
        return build(cls, keys, values, shape, seed, *rest)

    def spy_shell(self, agent, keys, values, seed):
        seeds.append(seed)
        return shell(self, agent, keys, values, seed)

    monkeypatch.setattr(SharedKVPool, "from_arrays", classmethod(spy_build))
    monkeypatch.setattr(SharedKVPool, "shell_from_arrays", spy_shell)
    run_captured("captured_replay")
    # fixture seed 7; one pool and one shell a query, however many candidate_ks
    assert seeds == [7, 10_007, 8, 10_008, 9, 10_009, 10, 10_010]


def test_the_mended_policies_do_better_than_the_reference():
    fixture, reference = run_captured("captured_replay_fail")
    cosine = reference.metrics.output_cosine_mean
    for name in ("two_tier", "int8", "exact"):
        receipt = run_captured_model_replay(fixture, CapturedReplayConfig((48,)), CompressionPolicy.named(name))
        assert receipt.metrics.output_cosine_mean > cosine + 0.1
        assert receipt.provenance["policy"] == name
