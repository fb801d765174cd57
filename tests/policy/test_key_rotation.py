"""The policy's field key_rotation: its identity, its file, and the artifact that goes with it."""

import json
from dataclasses import replace

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner

from polykv.calibrated_stages import write_found_policies
from polykv.certify.cells import cell_rotations
from polykv.certify_stages import candidate_of
from polykv.cli.policy import policy as policy_command
from polykv.errors import PolicyError, StoreError
from polykv.npz import npz_bytes
from polykv.policy import NAMED_POLICIES, CompressionPolicy
from polykv.policy_files import load_policy, write_policy
from polykv.policy_stages import export_policy, policy_json_schema, write_export
from polykv.receipts import digest_bytes
from polykv.replay.means import key_mean
from polykv.rotation import Rotation, rotation_to_arrays
from polykv.schemas import RESULTS
from polykv.stages import Engine, SweepRequest, check_sweep, sweep_stage
from polykv.storage import CaptureStore
from polykv.storage.results import read_rows
from tests.tiny_store import write_tiny_store

SCHEMA = jsonschema.Draft202012Validator(policy_json_schema())
INT4 = {"id": "uniform", "bits": 4, "mode": "symmetric", "axis": "vector"}


def rotated(layers, head_dim, **changes):
    """(a policy that codes keys before RoPE, the arrays of its artifacts by digest)."""
    arrays = rotation_to_arrays({layer: Rotation(0.5 ** np.arange(head_dim // 2)) for layer in layers})
    digest = digest_bytes(npz_bytes(arrays))
    tier = {"key": INT4, "value": INT4}
    listed = {digest: f"parts/{digest}.npz"}
    made = CompressionPolicy("before", pool=tier, shell=tier, key_rotation=digest, artifacts=listed, **changes)
    return made, {digest: arrays}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """(store, policy file, run) of a sweep with a policy that un-rotates and centres."""
    folder = tmp_path_factory.mktemp("rotated")
    store = write_tiny_store(folder / "store")
    meta = CaptureStore.open(store).meta
    made, arrays = rotated([s.layer for s in meta.layers], meta.layers[0].head_dim, center_keys="calibrate_mean")
    file = write_policy(folder, made, arrays)
    sweep_stage(check_sweep(SweepRequest(store, str(folder / "run"), (str(file),), ("4", "full"))), Engine("serial"))
    return store, file, folder / "run"


def test_keep_leaves_digests_as_they_were():
    assert CompressionPolicy.two_tier().digest() == TWO_TIER_DIGEST
    for name in NAMED_POLICIES:
        assert "key_rotation" not in CompressionPolicy.named(name).to_dict()


TWO_TIER_DIGEST = "a9566d1260e25e4e69fad818813bd0c4e69032a80040590a84e98563a2d37a18"


def test_a_rotation_is_part_of_the_identity_and_of_the_file(tmp_path):
    made, arrays = rotated([0], 8, cells={"0/1": {"key_rotation": "keep"}})
    path = write_policy(tmp_path, made, arrays)
    found, artifacts = load_policy(str(path))
    assert found == made
    assert found.digest() != CompressionPolicy("before", pool=made.pool, shell=made.shell).digest()
    assert found.for_cell(0, 1).key_rotation == "keep"
    assert artifacts(found.key_rotation).keys() == {"frequencies_0", "interleaved"}
    SCHEMA.validate(json.loads(path.read_text()))
    shown = CliRunner().invoke(policy_command, ["show", str(path)])
    assert shown.exit_code == 0
    assert f"before RoPE (artifact {made.key_rotation[:16]})" in shown.output


@pytest.mark.parametrize("value", ["off", "", None, 3, "AB" * 32, "ab" * 31])
def test_schema_and_reader_refuse_another_value(value):
    raw = {**CompressionPolicy.int8().to_dict(), "key_rotation": value}
    assert not SCHEMA.is_valid(raw)
    with pytest.raises(PolicyError, match='must be "keep" or the digest'):
        CompressionPolicy.from_dict(raw)
    with pytest.raises(PolicyError, match='must be "keep" or the digest'):
        CompressionPolicy("p", cells={"0/0": {"key_rotation": value}})


def test_a_sweep_measures_it_and_every_row_is_sound(swept):
    rows = read_rows(swept[2] / "results.parquet", RESULTS)
    assert {(row["status"], row["reason"]) for row in rows} == {("ok", None)}


def test_a_sweep_without_the_artifact_is_refused_before_any_work(swept, tmp_path):
    store, file, _ = swept
    (tmp_path / "alone.json").write_bytes(file.read_bytes())
    with pytest.raises(StoreError, match="artifact is missing"):
        check_sweep(SweepRequest(store, str(tmp_path / "run"), (str(tmp_path / "alone.json"),)))
    assert not (tmp_path / "run").exists()


def test_a_sweep_of_a_codec_that_scores_otherwise_is_refused_before_any_work(swept, tmp_path):
    meta = CaptureStore.open(swept[0]).meta
    made, arrays = rotated([s.layer for s in meta.layers], meta.layers[0].head_dim)
    gram = {"id": "fib_k4_n32", "query_mode": "gram"}
    file = write_policy(tmp_path, replace(made, shell={"key": gram, "value": INT4}), arrays)
    with pytest.raises(PolicyError, match="fib_k4_n32 has query_mode 'gram'"):
        check_sweep(SweepRequest(swept[0], str(tmp_path / "run"), (str(file),)))


def test_means_are_fitted_on_unrotated_keys_in_sweep_and_certification(swept):
    store, file, run = swept
    opened = CaptureStore.open(store)
    found, artifacts = load_policy(str(file))
    rotations = cell_rotations(found, {s.layer: s for s in opened.meta.layers}, artifacts)
    cell = max(rotations)
    data = opened.cell(*cell, "calibrate")
    expected = key_mean(data, 0, rotations[cell])
    assert not np.allclose(expected, key_mean(data, 0))
    np.testing.assert_array_equal(candidate_of(str(file), opened).means[cell], expected)
    swept_means = [np.load(path) for path in (run / "artifacts").glob("*.npz")]
    assert any("key_mean" in m and np.array_equal(m["key_mean"], expected) for m in swept_means)


def test_the_found_policy_carries_rotation_and_means(swept):
    store, file, run = swept
    path = write_found_policies(run, CaptureStore.open(store), (str(file),))[0]
    candidate = candidate_of(str(path), None)
    assert len(candidate.policy.artifacts) == 2
    assert candidate.means.keys() == set(CaptureStore.open(store).meta.cells)
    assert "frequencies_" in " ".join(candidate.artifacts(candidate.policy.key_rotation))


def test_the_export_carries_the_artifact_and_exact_cells_keep_their_keys(swept, tmp_path):
    exported = export_policy(swept[2], "before", folder=tmp_path)
    path = write_export(exported, tmp_path / "before.json", "json")
    SCHEMA.validate(json.loads(path.read_text()))
    found, artifacts = load_policy(str(path))
    assert artifacts(found.key_rotation)
    for cell in found.cells.values():
        exact = cell.get("pool") == CompressionPolicy.exact().pool
        assert cell.get("key_rotation") == ("keep" if exact else None)
