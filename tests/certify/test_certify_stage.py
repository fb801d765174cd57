"""The stage and the command: from files to a table, a receipt and an exit code."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from polykv import certify_stages
from polykv.certify import Budget, CertifyConfig, certify_rows
from polykv.certify.means import fit_key_means, means_from_arrays, means_to_arrays
from polykv.certify_stages import (
    CertifyOutcome,
    CertifyRequest,
    prepare_certification,
    run_certification,
)
from polykv.cli.certify import certify, exit_code, interval_text, parse_limit
from polykv.errors import InputError, PolicyError, StoreError
from polykv.policy import CompressionPolicy
from polykv.policy_files import policy_artifacts
from polykv.receipts import digest_json
from polykv.replay.means import key_mean
from polykv.schemas import CERTIFY
from polykv.storage import CaptureStore, CaptureWriter
from polykv.storage.artifacts import save_artifact
from polykv.storage.results import read_rows
from polykv.storage.run import RunDirectory
from polykv.types import Cell
from tests.certify.certify_samples import certification, means, spec
from tests.storage.store_samples import make_store


@pytest.mark.parametrize(
    ("text", "limit"), [("1%", 0.01), (" 2.5 %", 0.025), ("0.02", 0.02), ("none", None), ("0", 0.0)]
)
def test_limits_are_percentages_or_fractions(text, limit):
    assert parse_limit(text, "--max-ppl-increase") == pytest.approx(limit)


@pytest.mark.parametrize("text", ["", "%", "one", "1%%"])
def test_a_limit_that_is_none_is_refused(text):
    with pytest.raises(InputError, match="--max-kl is "):
        parse_limit(text, "--max-kl")


@pytest.mark.parametrize(("limit", "codes"), [(0.02, (0, 0, 0)), (0.0101, (0, 1, 0)), (0.005, (1, 1, 0))])
def test_exit_code_follows_the_verdict(limit, codes):
    config = CertifyConfig(n_passages=10, n_tokens=32, bucket_tokens=8, budget=Budget(limit))
    rows = certify_rows(certification(0.01 * np.linspace(0.9, 1.1, 10), config=config))
    outcome = CertifyOutcome(rows, {}, ())
    assert tuple(exit_code(outcome, fail_on) for fail_on in ("fail", "inconclusive", "never")) == codes


def test_a_boundless_end_is_said_in_words():
    row = {"ppl_increase_low": -0.5, "ppl_increase_high": 1e30}
    assert interval_text(row) == "-50.00% … beyond +10000%"
    assert interval_text(row | {"ppl_increase_high": None}) == "–"
    assert interval_text(row | {"ppl_increase_high": 0.25}) == "-50.00% … +25.00%"


def test_means_are_those_of_the_calibrate_split(tmp_path):
    make_store(tmp_path / "s.zarr")
    store = CaptureStore.open(tmp_path / "s.zarr")
    found = fit_key_means(store.cell, {Cell(2, 1): 3, Cell(5, 0): 0})
    np.testing.assert_array_equal(found[Cell(2, 1)], key_mean(store.cell(2, 1, "calibrate"), 3))
    assert found[Cell(2, 1)].shape == (8,)
    assert not np.allclose(found[Cell(2, 1)], key_mean(store.cell(2, 1, "calibrate"), 0))


def test_means_survive_their_artifact(tmp_path):
    kept = means(spec())
    digest = save_artifact(tmp_path, means_to_arrays(kept))
    policy = CompressionPolicy("p", center_keys="calibrate_mean", artifacts={digest: f"{digest}.npz"})
    policy.save(tmp_path / "p.json")
    prepared = prepare_certification(CertifyRequest("m", (str(tmp_path / "p.json"),), (__file__,)))
    loaded = prepared.candidates[0]
    assert loaded.means_source == f"artifact {digest}"
    assert sorted(loaded.means) == sorted(kept)
    np.testing.assert_array_equal(loaded.means[Cell(0, 1)], kept[Cell(0, 1)])
    assert means_from_arrays({"codebook": np.zeros(3)}) is None
    assert means_from_arrays({}) is None


def test_an_artifact_is_found_by_its_digest_or_refused(tmp_path):
    load = policy_artifacts(
        CompressionPolicy("p", artifacts={"a" * 64: f"{'a' * 64}.npz", "b" * 64: "b.npz"}), tmp_path
    )
    with pytest.raises(StoreError, match="the artifact is missing"):
        load("a" * 64)
    with pytest.raises(PolicyError, match="is listed as b.npz"):
        load("b" * 64)
    with pytest.raises(PolicyError, match="do not list it"):
        load("c" * 64)


def test_a_policy_that_centres_needs_means_or_says_so():
    with pytest.raises(InputError, match=r"subtracts mean keys.*--store STORE.*--uncentred"):
        prepare_certification(CertifyRequest("m", ("two_tier",), (__file__,)))
    prepared = prepare_certification(CertifyRequest("m", ("two_tier",), (__file__,), uncentred=True))
    assert prepared.candidates[0].means is None
    assert prepared.candidates[0].means_source == certify_stages.UNCENTRED


def test_nothing_to_do_is_refused_before_the_model():
    with pytest.raises(InputError, match="no policy to certify"):
        prepare_certification(CertifyRequest("m", (), (__file__,)))
    with pytest.raises(InputError, match="nothing to evaluate on"):
        prepare_certification(CertifyRequest("m", ("int8",)))
    with pytest.raises(PolicyError, match="did you mean 'int8'"):
        prepare_certification(CertifyRequest("m", ("int9",), (__file__,)))


@pytest.mark.hf
class TestWithModel:
    """A tiny Llama in place of a loaded one."""

    CONFIG = CertifyConfig(n_passages=6, n_tokens=48, bucket_tokens=8, budget=Budget(0.5))

    @pytest.fixture(autouse=True)
    def _model(self, monkeypatch, tmp_path):
        pytest.importorskip("torch")
        from tests.certify.tiny_certify_models import loaded, tiny, words

        self.loaded = loaded(tiny(), "2" * 64)
        monkeypatch.setattr(certify_stages, "load_model", lambda *args: self.loaded)
        for name, seed in (("fit", 1), ("judge", 2), ("other", 3)):
            (tmp_path / f"{name}.txt").write_text(words(400, seed))
        self.folder = tmp_path

    def _corpus(self, *names):
        return tuple(str(self.folder / f"{name}.txt") for name in names)

    def _store(self, weight_digest="2" * 64, splits=(0.5, 0.0, 0.5)):
        from dataclasses import replace

        from polykv.capture.config import CaptureConfig
        from polykv.capture.plan import plan_capture
        from polykv.capture.run import capture_to_store

        config = CaptureConfig(
            "tiny",
            self._corpus("fit", "judge"),
            n_tokens=40,
            n_passages=8,
            n_queries=4,
            recent_window=4,
            n_labels=0,
            split_fractions=splits,
        )
        plan = plan_capture(config, self.loaded)
        plan = replace(plan, meta=replace(plan.meta, weight_digest=weight_digest))
        capture_to_store(plan, CaptureWriter.create(self.folder / "s.zarr", plan.meta))
        return str(self.folder / "s.zarr")

    def test_command_writes_a_table_and_a_receipt(self):
        out = self.folder / "run"
        arguments = ["--model", "tiny", "--policy", "int8", "--policy", "exact", "--tokens", "48", "--passages", "6"]
        arguments += ["--max-ppl-increase", "50%", "--out", str(out), "--bucket", "8"]
        for path in self._corpus("judge", "other"):
            arguments += ["--corpus", path]
        result = CliRunner().invoke(certify, arguments, standalone_mode=False, catch_exceptions=False)
        assert result.return_value == 0
        assert "int8" in result.stdout
        assert "judge.txt" in result.stdout
        rows = read_rows(out / "certify.parquet", CERTIFY)
        assert {row["policy"] for row in rows} == {"int8", "exact"}
        receipt = json.loads((out / "certify.json").read_text())
        digest = receipt.pop("receipt_digest")
        assert digest_json(receipt) == digest
        run = RunDirectory.open(out)
        assert run.status == "complete"
        assert {row["run_id"] for row in rows} == {run.run_id}

    def test_same_request_same_rows(self):
        request = CertifyRequest("tiny", ("int8",), self._corpus("judge"), config=self.CONFIG)
        first, second = (run_certification(prepare_certification(request)) for _ in range(2))
        assert first.rows == second.rows
        assert first.receipt == second.receipt

    def test_centred_keys_from_the_store_change_the_figures(self):
        store = self._store()
        request = CertifyRequest("tiny", ("two_tier",), self._corpus("other"), store, self.CONFIG)
        centred = run_certification(prepare_certification(request))
        plain = run_certification(
            prepare_certification(
                CertifyRequest("tiny", ("two_tier",), self._corpus("other"), None, self.CONFIG, uncentred=True)
            )
        )
        told = centred.receipt["policies"][0]
        assert told["key_means"].startswith("split calibrate of the capture ")
        assert told["key_means_digest"]
        assert plain.receipt["policies"][0]["key_means_digest"] is None
        assert centred.summary[0]["kl_mean"] != plain.summary[0]["kl_mean"]
        assert centred.summary[0]["fixed_bytes"] == plain.summary[0]["fixed_bytes"] + 3 * 2 * 16 * 4

    def test_without_a_corpus_the_confirm_passages_are_judged(self):
        outcome = run_certification(prepare_certification(CertifyRequest("tiny", ("int8",), (), self._store())))
        row = outcome.summary[0]
        assert (row["n_passages"], row["first_token"], row["end_token"]) == (4, 20, 40)
        assert row["verdict_reason"].startswith("too_few_passages: 4")

    def test_documents_that_calibration_saw_are_named(self):
        prepared = prepare_certification(
            CertifyRequest("tiny", ("int8",), self._corpus("fit", "other"), self._store(splits=(1.0, 0.0, 0.0)))
        )
        assert prepared.notes == ("calibration saw these documents, so figures on them flatter the policy: fit.txt",)

    def test_a_capture_of_another_model_is_refused(self):
        request = CertifyRequest("tiny", ("int8",), self._corpus("judge"), self._store("3" * 64), self.CONFIG)
        with pytest.raises(InputError, match="their keys have nothing in common"):
            run_certification(prepare_certification(request))
