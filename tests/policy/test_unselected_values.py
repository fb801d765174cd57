"""The policy's field unselected_values: its identity, its file, where it is refused and what it costs."""

import json
from dataclasses import replace

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner

from polykv.certify.cells import plan_cells
from polykv.certify.cost import fixed_bytes, model_bytes
from polykv.cli.policy import policy as policy_command
from polykv.errors import PolicyError
from polykv.policy import NAMED_POLICIES, CompressionPolicy
from polykv.policy_stages import policy_json_schema
from polykv.pool import SharedKVPool
from polykv.replay.captured import run_captured_model_replay
from polykv.replay.seed_config import CapturedReplayConfig
from polykv.shape import KvTensorShape
from polykv.types import LayerSpec
from tests.replay.seed_samples import small_fixture

SCHEMA = jsonschema.Draft202012Validator(policy_json_schema())
FILLED = replace(CompressionPolicy.int8(), candidate_k=8, unselected_values="mean")


def test_drop_leaves_identities_as_they_were():
    for name in NAMED_POLICIES:
        named = CompressionPolicy.named(name)
        assert "unselected_values" not in named.to_dict()
        assert replace(named, unselected_values="drop").digest() == named.digest()
    # as released before there was this field
    digest = "a9566d1260e25e4e69fad818813bd0c4e69032a80040590a84e98563a2d37a18"
    assert CompressionPolicy.two_tier().digest() == digest


def test_it_is_part_of_the_identity_and_of_the_file(tmp_path):
    chosen = replace(FILLED, cells={"0/1": {"unselected_values": "drop"}})
    chosen.save(tmp_path / "filled.json")
    SCHEMA.validate(json.loads((tmp_path / "filled.json").read_text()))
    found = CompressionPolicy.load(tmp_path / "filled.json")
    assert found == chosen
    digests = {each.digest() for each in (FILLED, chosen, replace(FILLED, unselected_values="drop"))}
    assert len(digests) == 3
    assert (found.for_cell(0, 0).unselected_values, found.for_cell(0, 1).unselected_values) == ("mean", "drop")


def test_show_says_so(tmp_path):
    FILLED.save(tmp_path / "filled.json")
    shown = CliRunner().invoke(policy_command, ["show", str(tmp_path / "filled.json")]).output
    assert "unselected   their weight goes to the mean of the candidates' decoded values" in shown
    assert "unselected" not in CliRunner().invoke(policy_command, ["show", "int8"]).output


@pytest.mark.parametrize("value", ["Mean", "zero", "", None, True, ["mean"]])
def test_schema_and_reader_refuse_another_value(value):
    raw = {**CompressionPolicy.int8().to_dict(), "unselected_values": value}
    assert not SCHEMA.is_valid(raw)
    with pytest.raises(PolicyError, match=r"unselected_values is .*; known: drop, mean"):
        CompressionPolicy.from_dict(raw)
    with pytest.raises(PolicyError, match=r"unselected_values is .*; known: drop, mean"):
        CompressionPolicy("p", cells={"0/0": {"unselected_values": value}})


def test_pools_and_fixtures_refuse_for_they_attend_to_hits_alone():
    shape = KvTensorShape("gqa", 2, 4, 2, 8, 32)
    rows = [("t0", np.ones(shape.row_length, np.float32))]
    words = r"unselected_values 'mean' in cell 0/0.*use a policy with unselected_values \"drop\""
    with pytest.raises(PolicyError, match=words):
        SharedKVPool.build(rows, shape, 1, FILLED)
    filled = replace(CompressionPolicy.reference(), unselected_values="mean")
    with pytest.raises(PolicyError, match=words):
        run_captured_model_replay(small_fixture(), CapturedReplayConfig(candidate_ks=(2,)), filled)


@pytest.mark.parametrize(("candidate_k", "vectors"), [(8, 2), ("full", 0), (None, 0)])
def test_a_cell_that_selects_is_charged_one_float32_vector(candidate_k, vectors):
    specs = {0: LayerSpec(0, 4, 2, 16, 12, 0.3)}
    drop = CompressionPolicy("p", sink_tokens=2, recent_window=3, candidate_k=candidate_k)
    plain, filled = (
        plan_cells(replace(drop, unselected_values=how), specs) for how in ("drop", "mean")
    )  # fmt: skip
    extra = vectors * 12 * 4
    assert fixed_bytes(filled, specs) - fixed_bytes(plain, specs) == extra
    bytes_of = [model_bytes(plans, specs, dict.fromkeys(plans, 10.0)) for plans in (plain, filled)]
    assert bytes_of[0]["bytes_per_token"] == bytes_of[1]["bytes_per_token"]
    more = bytes_of[1]["bytes_per_token_at_4k"] - bytes_of[0]["bytes_per_token_at_4k"]
    assert more == pytest.approx(extra / 4096, abs=1e-12)
