"""`polykv receipt`: replay, show, verify, export; exit codes and one-line errors."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from polykv.cli import main
from polykv.codecs.base import Codes
from polykv.codecs.exact import ExactCodec
from polykv.codecs.registry import CODECS
from polykv.codecs.trained import TrainedCodec
from polykv.policy import CompressionPolicy
from polykv.pool import SharedKVPool, save_pool, save_shell
from polykv.receipts import pretty_json
from polykv.replay.fixtures import ModelReplayQuery
from polykv.replay.model_shaped import run_model_replay
from polykv.replay.seed_config import ModelReplayConfig
from polykv.schemas import RESULTS
from polykv.shape import KvTensorShape
from polykv.storage.artifacts import save_artifact
from polykv.storage.results import read_rows, write_table

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
PASSING, FAILING = (str(GOLDEN / f"captured_replay{end}.in.json") for end in ("", "_fail"))


def run(capsys, *argv):
    code = main(["receipt", *map(str, argv)])
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    return code, said.out, said.err


@pytest.fixture(scope="module")
def finished(store, tmp_path_factory):
    out = str(tmp_path_factory.mktemp("runs") / "done")
    assert main(["replay", store, "--out", out, "--policy", "int8,two_tier", "--serial", "--ks", "4,full", "-q"]) == 0
    return out


def test_replay_prints_the_receipt_and_exits_by_its_gates(capsys):
    code, out, err = run(capsys, "replay", PASSING)
    receipt = json.loads(out)
    assert (code, receipt["passed"], receipt["selected_candidate_k"]) == (0, True, 8)
    assert "candidate_k 8: pass" in err
    code, out, err = run(capsys, "replay", FAILING)
    assert (code, json.loads(out)["passed"]) == (1, False)
    assert "fail: output_cosine_mean 0.7084 < 0.9999" in err


def test_budgets_policy_and_gates_can_be_asked_for(capsys, tmp_path):
    path = tmp_path / "r.json"
    asked = ("--ks", "4,4", "--ks", "full", "--policy", "exact", "--min-output-cosine", "0.5", "--out", path, "-q")
    code, out, err = run(capsys, "replay", FAILING, *asked)
    receipt = json.loads(path.read_text())
    assert (code, out, err) == (0, "", "")
    assert receipt["config"]["candidate_ks"] == [4, 4, 48]
    assert receipt["config"]["min_output_cosine"] == 0.5
    # what was not asked for is the file's
    assert receipt["config"]["max_kl_divergence"] == 1e-6
    assert receipt["provenance"]["policy"] == "exact"


def test_another_softmax_scale_is_warned_about(capsys, tmp_path):
    raw = json.loads(Path(PASSING).read_text())["fixture"]
    path = tmp_path / "f.json"
    path.write_text(json.dumps(raw | {"softmax_scale": 0.25}))
    _, _, err = run(capsys, "replay", path, "--ks", "8")
    assert "warning: fixture 'closed-form-sincos' has softmax_scale 0.25" in err


REPLAY_REFUSED = {
    "no file": (("nowhere.json", "--ks", "1"), "cannot read nowhere.json"),
    "no budgets": (("FIXTURE",), "holds no config: say which budgets to try"),
    "a bad budget": (("FIXTURE", "--ks", "4,many"), "candidate_k 'many' is neither"),
    "zero": (("FIXTURE", "--ks", "0", "--policy", "int8"), "candidate_k 0 is not possible"),
    "a policy": (("FIXTURE", "--ks", "4", "--policy", "int"), "unknown policy 'int'; did you mean 'int8'"),
    "a gate": (("FIXTURE", "--ks", "4", "--max-kl-divergence", "nan"), "max_kl_divergence is nan"),
    "out": (("FIXTURE", "--ks", "4", "--out", "no/such/folder/r.json"), "cannot be written"),
}


@pytest.mark.parametrize("name", REPLAY_REFUSED)
def test_bad_asking_is_refused_in_a_line(capsys, tmp_path, name):
    argv, text = REPLAY_REFUSED[name]
    path = tmp_path / "f.json"
    path.write_text(json.dumps(json.loads(Path(PASSING).read_text())["fixture"]))
    code, _, err = run(capsys, "replay", *[str(path) if word == "FIXTURE" else word for word in argv])
    assert code == 2
    assert text in err
    assert err.count("\n") == 1


def test_verify_holds_what_replay_made(capsys, tmp_path):
    path = tmp_path / "r.json"
    run(capsys, "replay", PASSING, "--policy", "two_tier", "--out", path, "-q")
    code, out, _ = run(capsys, "verify", path)
    assert (code, "holds; " in out) == (0, True)
    code, out, _ = run(capsys, "verify", path, "--fixture", PASSING, "--json")
    assert code == 0
    assert json.loads(out)["schema_version"] == "poly_kv_captured_model_replay_v1"
    code, _, err = run(capsys, "verify", path, "--fixture", PASSING, "--policy", "int8")
    assert (code, "provenance.policy_digest" in err) == (3, True)


@pytest.mark.parametrize("name", ["captured_replay", "captured_replay_fail", "model_replay"])
def test_verify_holds_the_references_receipts(capsys, name):
    evidence = ["--fixture", GOLDEN / f"{name}.in.json"] if name.startswith("captured") else []
    code, out, _ = run(capsys, "verify", GOLDEN / f"{name}.receipt.json", *evidence)
    assert (code, "holds" in out) == (0, True)


def test_a_changed_digit_is_found(capsys, tmp_path):
    raw = json.loads((GOLDEN / "captured_replay.receipt.json").read_text())
    raw["candidate_results"][3]["output_cosine_mean"] += 0.001
    path = tmp_path / "r.json"
    path.write_text(json.dumps(raw))
    code, _, err = run(capsys, "verify", path)
    assert code == 3
    assert "metrics is stated as" in err


@pytest.mark.parametrize("text", ["[]", "{}", '{"schema_version": "x"}', '{"schema_version": 1}', '{"a": NaN}', "{"])
def test_what_is_no_receipt(capsys, tmp_path, text):
    path = tmp_path / "r.json"
    path.write_text(text)
    code, _, err = run(capsys, "verify", path)
    assert code == 2
    assert err.startswith("polykv: ")


def test_pools_shells_and_their_receipts(capsys, tmp_path):
    raw = json.loads((GOLDEN / "model_replay.in.json").read_text())
    pool, built = SharedKVPool.build(
        [(f"t{i}", row) for i, row in enumerate(raw["shared"])], KvTensorShape.from_dict(raw["shape"]), 42
    )
    shell, made = pool.materialize_shell("a", [(f"h{i}", row) for i, row in enumerate(raw["hot"])], 43)
    save_pool(pool, tmp_path / "pool")
    save_shell(shell, tmp_path / "shell")

    class Cache:
        def write(self, layer, position, keys, values):
            pass

    query = ModelReplayQuery.from_dict(raw["queries"][0])
    receipts = {
        "built": built,
        "made": made,
        "selected": shell.attention_topk_compressed(pool, 0, 0, query.query, 3).receipt,
        "injected": pool.inject_into_cache(shell, Cache()),
        "pool_manifest": pool.manifest,
        "shell_manifest": shell.manifest,
        "replayed": run_model_replay(pool, shell, [query], ModelReplayConfig(candidate_ks=(4,))),
    }
    for name, receipt in receipts.items():
        path = tmp_path / f"{name}.json"
        path.write_text(pretty_json(receipt.to_dict()))
        code, out, err = run(capsys, "verify", path, "--pool", tmp_path / "pool", "--shell", tmp_path / "shell")
        assert (code, err) == (0, ""), name
        assert receipt.schema in out
    broken = receipts["built"].to_dict() | {"codebook_digest": "0" * 64}
    (tmp_path / "built.json").write_text(json.dumps(broken))
    assert run(capsys, "verify", tmp_path / "built.json")[0] == 0
    code, _, err = run(capsys, "verify", tmp_path / "built.json", "--pool", tmp_path / "pool")
    assert (code, "codebook_digest is stated as '000" in err) == (3, True)
    assert run(capsys, "verify", tmp_path / "made.json", "--shell", tmp_path / "shell")[0] == 2


def test_show_rebuilds_the_receipt_of_a_cell(capsys, finished, tmp_path):
    code, out, _ = run(capsys, "show", finished, "--layer", 5, "--head", 1, "--policy", "int8")
    assert code == 0
    receipt = json.loads(out)
    rows = read_rows(Path(finished) / "results.parquet", RESULTS, layer=5, kv_head=1, policy="int8", split="confirm")
    rows = [row for row in rows if row["row_kind"] == "candidate"]
    assert receipt["provenance"]["rows"] == rows
    assert receipt["config"]["candidate_ks"] == [row["candidate_k"] for row in rows]
    for result, row in zip(receipt["candidate_results"], rows, strict=True):
        assert result["output_cosine_mean"] == row["seed_output_cosine_mean"]
        assert result["decoded_values_total"] == row["decoded_values_total"]
        # this capture has no logits, and the receipt says why
        assert result["kl_divergence_mean"] is None
    assert receipt["provenance"]["logits_reason"]
    assert receipt["model_id"] == "tiny-random"
    path = tmp_path / "r.json"
    path.write_text(out)
    assert run(capsys, "verify", path)[0] == 0
    assert run(capsys, "verify", path, "--run", finished)[0] == 0
    receipt["candidate_results"][0]["output_mse_mean"] += 1e-9
    path.write_text(json.dumps(receipt))
    code, _, err = run(capsys, "verify", path, "--run", finished)
    assert code == 3


def test_show_asks_for_what_it_needs(capsys, finished, tmp_path):
    for argv, code, text in (
        ((finished, "--layer", 5, "--head", 1), 2, "holds the policies int8, two_tier; choose one"),
        ((finished, "--layer", 4, "--head", 1), 2, "has no row of layer 4, KV head 1"),
        ((finished, "--layer", 5, "--head", 1, "--policy", "exact"), 2, "no policy 'exact'"),
        ((tmp_path / "none", "--layer", 5, "--head", 1), 2, "a run directory was expected"),
    ):
        found, _, err = run(capsys, "show", *argv)
        assert (found, text in err) == (code, True), err


def test_a_cell_whose_jobs_failed_has_no_receipt(capsys, finished, tmp_path):
    copy = tmp_path / "run"
    copy.mkdir()
    (copy / "run.json").write_bytes((Path(finished) / "run.json").read_bytes())
    rows = read_rows(Path(finished) / "results.parquet", RESULTS)
    for row in rows:
        if row["layer"] == 5:
            row.update(status="failed", reason="MemoryError: too small")
    write_table(copy / "results.parquet", RESULTS, rows)
    code, _, err = run(capsys, "show", copy, "--layer", 5, "--head", 1, "--policy", "int8")
    assert (code, "MemoryError: too small; run the replay again" in err) == (3, True)


def test_export_and_replay(capsys, store, tmp_path):
    path = tmp_path / "f.json"
    code, _, err = run(capsys, "export", store, "--layer", 5, "--head", 1, "--queries", 2, "--out", path)
    assert (code, "no logit data (no_linear_projection)" in err) == (2, True)
    asked = ("--layer", 5, "--head", 1, "--queries", 2, "--synthetic-projection", "--passage", 9)
    code, _, err = run(capsys, "export", store, *asked, "--out", path)
    assert (code, "passage 9; queries scaled by" in err) == (0, True)
    code, out, err = run(capsys, "replay", path, "--ks", "full", "--policy", "exact")
    assert (code, "warning" in err) == (0, False)
    assert json.loads(out)["metrics"]["kl_divergence_mean"] < 1e-6
    code, _, err = run(capsys, "export", store, "--layer", 5, "--head", 1, "--passage", 99, "--out", path)
    assert (code, "passages 0 to 13, not 99" in err) == (2, True)


def test_a_policy_file_brings_its_artifacts(capsys, tmp_path, monkeypatch):
    """A fitted codec's arrays are found beside the policy file, by digest."""
    monkeypatch.setitem(CODECS, ScaledCodec.codec_id, ScaledCodec)
    digest = save_artifact(tmp_path, {"scale": np.full(16, 2.0, np.float32)})
    tier = {"key": {"id": "scaled", "artifact": digest}, "value": {"id": "scaled", "artifact": digest}}
    policy = replace(CompressionPolicy.exact(), name="fitted", pool=tier, artifacts={digest: f"{digest}.npz"})
    policy.save(tmp_path / "p.json")
    path = tmp_path / "r.json"
    code, _, _ = run(capsys, "replay", PASSING, "--ks", "48", "--policy", tmp_path / "p.json", "--out", path)
    assert code == 0
    assert json.loads(path.read_text())["metrics"]["output_cosine_mean"] > 0.99999
    code, _, err = run(capsys, "verify", path, "--fixture", PASSING)
    assert (code, "policy 'fitted', which has no fixed meaning" in err) == (2, True)
    assert run(capsys, "verify", path, "--fixture", PASSING, "--policy", tmp_path / "p.json")[0] == 0
    replace(policy, artifacts={}).save(tmp_path / "p.json")
    code, _, err = run(capsys, "replay", PASSING, "--policy", tmp_path / "p.json")
    assert (code, "but does not list it" in err) == (2, True)


@dataclass(frozen=True)
class ScaledCodec(TrainedCodec):
    """Keeps vectors times an artifact's scale."""

    codec_id: ClassVar[str] = "scaled"
    array_shapes: ClassVar[dict] = {"scale": ("head_dim",)}

    @classmethod
    def check_head_dim(cls, head_dim):
        ExactCodec.check_head_dim(head_dim)

    def encode(self, vectors):
        return Codes(len(vectors), self.head_dim, {"vectors": np.asarray(vectors, np.float32) * self.arrays["scale"]})

    def decode(self, codes, rows=None):
        kept = codes["vectors"] if rows is None else codes["vectors"][rows]
        return kept / self.arrays["scale"]

    def scores(self, queries, codes):
        return queries @ self.decode(codes).T

    def nbytes(self, codes):
        return codes["vectors"].nbytes


def shown(capsys, finished, path):
    assert run(capsys, "show", finished, "--layer", 5, "--head", 1, "--policy", "int8", "--out", path)[0] == 0
    return json.loads(path.read_text())


def test_a_shown_receipt_that_was_changed_consistently_fails_its_body_digest(capsys, finished, tmp_path):
    path = tmp_path / "cell.json"
    raw = shown(capsys, finished, path)
    code, out, _ = run(capsys, "verify", path, "--json")
    assert (code, "provenance.body_digest" in json.loads(out)["checked"]) == (0, True)
    raw["model_id"] = "a better model"  # nothing else in a receipt depends on it
    path.write_text(json.dumps(raw))
    code, _, err = run(capsys, "verify", path)
    assert (code, "provenance.body_digest is stated as" in err) == (3, True)


def test_a_shown_receipt_of_an_earlier_release_still_reads(capsys, finished, tmp_path):
    path = tmp_path / "cell.json"
    raw = shown(capsys, finished, path)
    del raw["provenance"]["body_digest"]
    path.write_text(json.dumps(raw))
    code, out, _ = run(capsys, "verify", path, "--run", finished, "--json")
    assert (code, "provenance.body_digest" in json.loads(out)["checked"]) == (0, False)
