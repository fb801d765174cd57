"""From a run to a policy: what each cell gets, what it rests on, and that the file is what its schema says."""

import csv
import io
import json

import jsonschema
import pytest

import polykv
from polykv.errors import InputError, PolicyError, StoreError
from polykv.policy import NAMED_POLICIES, CompressionPolicy
from polykv.policy_stages import export_policy, policy_json_schema, read_policy_file, write_export
from polykv.receipt_stages import show_receipt
from polykv.receipts import digest_json
from polykv.schemas import SELECTION
from polykv.storage.results import read_rows
from tests.report.run_samples import GATES, KS, write_run

SCHEMA = jsonschema.Draft202012Validator(policy_json_schema())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "run", fail=[(3, 1, "rough")])


@pytest.fixture(scope="module")
def int8(run):
    return export_policy(run, "int8")


def cell(policy, key):
    return policy.for_cell(*map(int, key.split("/")))


def test_passing_cells_get_their_candidate_k(run, int8):
    for row in read_rows(run / "selection.parquet", SELECTION, policy="int8"):
        here = int8.policy.for_cell(row["layer"], row["kv_head"])
        assert here.candidate_k == row["candidate_k"] < max(KS)
        assert here.pool == CompressionPolicy.int8().pool


def test_a_budget_that_covered_everything_is_full(tmp_path):
    exported = export_policy(write_run(tmp_path / "run", ks=(64,)), "exact")
    assert {here["candidate_k"] for here in exported.policy.cells.values()} == {"full"}


def test_other_cells_are_kept_exact_or_decoded_in_full(run):
    kept = export_policy(run, "rough").policy
    assert cell(kept, "0/0").pool == cell(kept, "0/0").shell == CompressionPolicy.exact().pool
    coded = export_policy(run, "rough", "full").policy
    assert cell(coded, "0/0").pool["key"]["bits"] == 4
    assert {here["candidate_k"] for here in (*kept.cells.values(), *coded.cells.values())} == {"full"}


def test_evidence_says_what_a_cell_rests_on(run, int8):
    told = int8.evidence["cells"]["3/1"]
    row = read_rows(run / "selection.parquet", SELECTION, policy="int8", layer=3, kv_head=1)[0]
    assert (told["verdict"], told["kept"], told["reason"]) == ("pass", "compressed", None)
    assert told["output_cosine"] == {end: row[f"confirm_output_cosine_{end}"] for end in ("mean", "low", "high")}
    assert told["receipt_digest"] == show_receipt(str(run), 3, 1, "int8").provenance["body_digest"]
    assert int8.evidence["gates"] == GATES
    assert int8.evidence["source_policy_digest"] == CompressionPolicy.int8().digest()


def test_a_failed_cell_is_exact_and_says_why(run):
    told = export_policy(run, "rough").evidence["cells"]
    assert told["3/1"]["reason"] == "the worker ran out of memory"
    assert (told["3/1"]["kept"], told["3/1"]["receipt_digest"]) == ("exact", None)
    assert told["0/0"]["reason"].startswith("no_candidate_k_passes_on_select; output_cosine_mean 0.99 (limit 0.999)")


def test_the_file_is_a_policy_and_evidence_is_no_part_of_it(int8, tmp_path):
    path = write_export(int8, tmp_path / "int8.json", "json")
    loaded = polykv.Policy.load(path)
    assert loaded == int8.policy
    assert loaded.digest() == int8.policy.digest() != CompressionPolicy.int8().digest()
    assert read_policy_file(str(path)) == (int8.policy, json.loads(path.read_text())["evidence"])
    assert loaded.codec("pool", "key", 3, 1, 8).head_dim == 8


def test_the_table_has_a_line_a_cell(int8):
    rows = list(csv.DictReader(io.StringIO(int8.to_csv())))
    assert [(row["layer"], row["kv_head"]) for row in rows] == [(str(n), str(h)) for n in (0, 3, 7) for h in (0, 1)]
    told = int8.evidence["cells"]["7/1"]
    assert float(rows[-1]["output_relative_error_high"]) == told["output_relative_error"]["high"]
    assert rows[-1]["receipt_digest"] == told["receipt_digest"]
    assert rows[-1]["reason"] == ""


def test_artifacts_are_found_from_where_the_file_stands(tmp_path):
    run = write_run(tmp_path / "runs" / "a")
    policy = CompressionPolicy("int8", artifacts={"a" * 64: "artifacts/x.npz"})
    state = json.loads((run / "run.json").read_text())
    state["config"]["policies"]["int8"] = policy.to_dict()
    state["config_digest"] = digest_json(state["config"])
    (run / "run.json").write_text(json.dumps(state))
    (tmp_path / "policies").mkdir()
    exported = export_policy(run, "int8", folder=tmp_path / "policies")
    assert exported.policy.artifacts == {"a" * 64: f"../runs/a/artifacts/{'a' * 64}.npz"}


REFUSED = {
    "several policies": ({}, InputError, "exact, int8, rough; choose one"),
    "an unknown policy": ({"name": "int9"}, InputError, "did you mean 'int8'"),
    "an unknown way": ({"name": "int8", "otherwise": "hope"}, InputError, "known: exact, full"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_exported_is_refused(run, kind):
    arguments, error, words = REFUSED[kind]
    with pytest.raises(error, match=words):
        export_policy(run, **arguments)


def test_a_run_without_decisions_is_refused(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "selection.parquet").unlink()
    with pytest.raises(StoreError, match="has no table 'selection'; it has controls, results"):
        export_policy(run, "int8")


@pytest.mark.parametrize("name", NAMED_POLICIES)
def test_named_policies_meet_the_schema(name):
    SCHEMA.validate(CompressionPolicy.named(name).to_dict())


def test_exports_meet_the_schema(run):
    jsonschema.Draft202012Validator.check_schema(policy_json_schema())
    for name, otherwise in (("int8", "exact"), ("rough", "exact"), ("rough", "full"), ("exact", "full")):
        SCHEMA.validate(json.loads(export_policy(run, name, otherwise).to_json()))


WRONG = {
    "another version": {"schema_version": "polykv_policy_v2"},
    "no name": {"name": ""},
    "an unknown field": {"colour": 1},
    "negative sinks": {"sink_tokens": -1},
    "budget 0": {"candidate_k": 0},
    "a word for a budget": {"candidate_k": "all"},
    "a tier without values": {"pool": {"key": {"id": "exact_f32_fallback"}}},
    "a codec without id": {"pool": {"key": {"id": "exact_f32_fallback"}, "value": {"bits": 4}}},
    "a cell of no place": {"cells": {"layer 3": {}}},
    "a cell with a name": {"cells": {"3/1": {"name": "x"}}},
    "evidence that is a list": {"evidence": []},
    "evidence without cells": {"evidence": {"run_id": "x"}},
}


@pytest.mark.parametrize("kind", WRONG)
def test_schema_and_reader_refuse_the_same(kind):
    raw = CompressionPolicy.int8().to_dict() | WRONG[kind]
    with pytest.raises(PolicyError):
        CompressionPolicy.from_dict(raw)
    assert not SCHEMA.is_valid(raw)
