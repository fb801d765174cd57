"""The end of a calibration: which policies are certified, on what, and when there is nothing to certify."""

import numpy as np
import pytest

from polykv.calibrated_stages import certify_skipped, found_policy, write_found_policies
from polykv.capture import CaptureConfig
from polykv.certify_stages import CertifyOutcome, CertifyRequest, prepare_certification
from polykv.cli import sweep as sweep_module
from polykv.cli.certify import none_holds
from polykv.errors import InputError
from polykv.policy import CompressionPolicy
from polykv.policy_files import load_policy
from polykv.receipts import parse_json
from polykv.replay.means import key_mean
from polykv.schemas import CERTIFY
from polykv.stages import Engine, SweepRequest, check_sweep, read_findings, sweep_stage
from polykv.storage import CaptureStore
from polykv.storage.results import read_rows
from polykv.storage.run import RunDirectory
from polykv.types import Cell
from tests.tiny_store import write_tiny_store

CAPTURE = CaptureConfig("tiny", ("book.txt",), n_tokens=48)


def selected(layer, kv_head, candidate_k, verdict="pass", is_full=False, policy="int8"):
    return {"policy": policy, "layer": layer, "kv_head": kv_head, "candidate_k": candidate_k, "verdict": verdict, "is_full": is_full}  # fmt: skip


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """(store, run) of a small sweep of two_tier and int8."""
    folder = tmp_path_factory.mktemp("swept")
    store = write_tiny_store(folder / "store")
    request = SweepRequest(store, str(folder / "run"), ("two_tier", "int8"), ("4", "full"))
    sweep_stage(check_sweep(request), Engine("serial"), records={"certify": "in certify/"})
    return store, folder / "run"


def test_no_model_or_not_asked_or_not_all_layers_is_skipped_with_its_reason():
    assert certify_skipped(True, CAPTURE) is None
    assert certify_skipped(True, None) == certify_skipped(False, None) == "skipped: no model"
    assert certify_skipped(False, CAPTURE) == "skipped: not asked for"
    for some in ({"layers": (0,)}, {"layer_stride": 2}):
        capture = CaptureConfig("tiny", ("book.txt",), **some)
        assert certify_skipped(True, capture).startswith("skipped: the capture keeps some layers")


def test_a_cell_keeps_the_budget_that_held_and_decodes_all_where_none_did():
    rows = [
        selected(0, 0, 16),
        selected(0, 1, 16, "fail"),
        selected(1, 0, None, "fail"),
        selected(1, 1, 48, is_full=True),
        selected(2, 0, 8, "inconclusive"),
        selected(2, 1, 8, "failed"),
        selected(3, 0, 4, policy="another"),
    ]
    given = CompressionPolicy("int8", cells={"0/0": {"candidate_k": 2, "sink_tokens": 3}})
    found = found_policy(given, rows)
    assert {key: cell["candidate_k"] for key, cell in found.cells.items()} == {
        "0/0": 16, "0/1": "full", "1/0": "full", "1/1": "full", "2/0": 8, "2/1": "full"
    }  # fmt: skip
    assert found.cells["0/0"]["sink_tokens"] == 3
    assert given.cells["0/0"]["candidate_k"] == 2


def test_found_policies_are_whole_in_the_run_directory(swept, tmp_path):
    store, run = swept
    paths = write_found_policies(run, CaptureStore.open(store), ("two_tier", "int8"))
    assert [path.name for path in paths] == ["two_tier.policy.json", "int8.policy.json"]
    run.rename(tmp_path / "elsewhere")
    moved = tmp_path / "elsewhere" / "two_tier.policy.json"
    try:
        policy, artifacts = load_policy(str(moved))
        chosen = {row["candidate_k"] for row in read_findings(moved.parent).cells if row["policy"] == "two_tier"}
        assert {cell["candidate_k"] for cell in policy.cells.values()} <= chosen | {"full"}
        assert len(policy.cells) == 4
        candidate = prepare_certification(CertifyRequest("m", (str(moved),), (__file__,))).candidates[0]
        means = key_mean(CaptureStore.open(store).cell(5, 1, "calibrate"), policy.sink_tokens)
        np.testing.assert_array_equal(candidate.means[Cell(5, 1)], means)
        assert artifacts(next(iter(policy.artifacts))).keys() == {f"key_mean_{la}_{h}" for la in (0, 5) for h in (0, 1)}
    finally:
        (tmp_path / "elsewhere").rename(run)
    assert load_policy(str(paths[1]))[0].artifacts == {}


def test_two_policies_of_one_file_name_are_refused(swept, tmp_path):
    store, run = swept
    for file, name in (("a", "x/y"), ("b", "x y")):
        CompressionPolicy(name).save(tmp_path / f"{file}.json")
    with pytest.raises(InputError, match=r"'x y' would be written to x_y\.policy\.json"):
        write_found_policies(run, CaptureStore.open(store), (str(tmp_path / "a.json"), str(tmp_path / "b.json")))


@pytest.mark.parametrize(
    ("verdicts", "codes"),
    [(("pass", "fail"), (False, False)), (("inconclusive", "fail"), (False, True)), (("fail", "fail"), (True, True))],
)
def test_a_calibration_fails_when_no_policy_holds(verdicts, codes):
    outcome = CertifyOutcome([{"slice_kind": "all", "verdict": verdict} for verdict in verdicts], {}, ())
    assert tuple(none_holds(outcome, fail_on) for fail_on in ("fail", "inconclusive")) == codes
    assert not none_holds(outcome, "never")


class TestCommand:
    """`polykv calibrate` with capture and certification stood in for."""

    MODEL = ("--model", "tiny", "--corpus", "book.txt", "--serial", "--ks", "full", "--policy", "int8", "--no-gonogo")

    @pytest.fixture(autouse=True)
    def _stand_ins(self, monkeypatch, tmp_path):
        self.asked = []
        store = write_tiny_store(tmp_path / "run-capture")
        monkeypatch.setattr(sweep_module, "_captured", lambda *args: store)
        monkeypatch.setattr(sweep_module, "certify_calibration", self._certify)
        monkeypatch.setattr(sweep_module, "say_certification", lambda outcome: None)
        self.out = tmp_path / "run"
        self.verdict = "pass"

    def _certify(self, out, store, capture, policies, shared_tokens, progress):
        self.asked.append((out, store, capture.model, policies, shared_tokens))
        return CertifyOutcome([{"slice_kind": "all", "verdict": self.verdict}], {}, ())

    def _run(self, capsys, *argv):
        from polykv.cli import main

        code = main(["calibrate", "--out", str(self.out), *argv])
        return code, capsys.readouterr().err

    def _recorded(self):
        return RunDirectory.open(self.out).state["sessions"][-1]["certify"]

    def test_a_model_is_certified_after_the_sweep(self, capsys):
        assert self._run(capsys, *self.MODEL, "--shared-tokens", "20")[0] == 0
        assert self.asked == [(str(self.out), f"{self.out}-capture", "tiny", ("int8",), 20)]
        assert self._recorded() == "in certify/"

    def test_a_policy_that_costs_too_much_is_the_exit_code(self, capsys):
        self.verdict = "fail"
        assert self._run(capsys, *self.MODEL)[0] == 1
        assert self._run(capsys, *self.MODEL, "--fail-on", "never")[0] == 0

    def test_no_certify_runs_none_and_says_so(self, capsys):
        code, err = self._run(capsys, *self.MODEL, "--no-certify")
        assert (code, self.asked) == (0, [])
        assert "skipped: not asked for (certify)" in err
        assert self._recorded() == "skipped: not asked for"

    def test_a_store_alone_has_no_model(self, capsys):
        code, err = self._run(capsys, "--store", f"{self.out}-capture", *self.MODEL[4:])
        assert (code, self.asked) == (0, [])
        assert "skipped: no model (capture, certify)" in err
        assert self._recorded() == "skipped: no model"


@pytest.mark.hf
class TestWithModel:
    """Capture, sweep and certification of a tiny model."""

    def test_a_calibration_ends_with_perplexities(self, capsys, monkeypatch, tmp_path):
        pytest.importorskip("torch")
        from polykv import certify_stages
        from polykv.capture import plan
        from polykv.cli import main
        from tests.certify.tiny_certify_models import loaded, tiny, words

        model = loaded(tiny(), "2" * 64)
        for module in (certify_stages, plan):
            monkeypatch.setattr(module, "load_model", lambda *args: model)
        for name, seed in (("a", 1), ("b", 2), ("c", 3), ("d", 4)):
            (tmp_path / f"{name}.txt").write_text(words(500, seed))
        out = tmp_path / "run"
        argv = ["calibrate", "--model", "tiny", "--corpus", str(tmp_path / "*.txt"), "--out", str(out), "--serial"]
        argv += ["--tokens", "96", "--passages", "16", "--queries", "4", "--policy", "int8,two_tier", "--ks", "8,full"]
        code = main([*argv, "--no-gonogo", "--labels", "0", "--fail-on", "never"])
        said, err = capsys.readouterr()
        assert code == 0, err
        assert "baseline perplexity" in said
        rows = {row["policy"]: row for row in read_rows(out / "certify.parquet", CERTIFY) if row["slice_kind"] == "all"}
        assert sorted(rows) == ["int8", "two_tier"]
        assert 0 < rows["int8"]["kl_mean"] < rows["two_tier"]["kl_mean"]
        assert {row["first_token"] for row in rows.values()} == {48}
        receipt = parse_json((out / "certify.json").read_bytes(), "receipt")
        certified = receipt["policies"][1]
        assert certified["key_means"].startswith("artifact ")
        assert certified["policy"] == CompressionPolicy.load(out / "two_tier.policy.json").to_dict()
        assert len(certified["policy"]["cells"]) == 6
        assert (out / "certify.parquet").read_bytes() == (out / "certify/certify.parquet").read_bytes()
        self._certified_elsewhere(out, tmp_path, certified["figures"])

    def _certified_elsewhere(self, out, tmp_path, figures):
        """The policy file alone, with the capture's passages, gives the same numbers."""
        from polykv.certify import CertifyConfig
        from polykv.certify_stages import run_certification

        policy = str(out.rename(tmp_path / "moved") / "two_tier.policy.json")
        request = CertifyRequest("tiny", (policy,), (), str(tmp_path / "run-capture"), CertifyConfig(n_tokens=96))
        row = run_certification(prepare_certification(request)).summary[0]
        assert row["kl_mean"] == pytest.approx(figures["kl_mean"], rel=1e-6)
        assert row["policy_digest"] == figures["policy_digest"]
