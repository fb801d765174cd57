"""The certification flow and its place in a calibration."""

import pytest
from click.testing import CliRunner
from prefect.client.orchestration import get_client

from flows import calibrate as calibrate_module
from flows import certify as certify_module
from flows.certify import certify, command
from polykv.capture import CaptureConfig
from polykv.certify import CertifyConfig
from polykv.certify_stages import CertifyOutcome, CertifyRequest
from polykv.errors import InputError
from polykv.stages import SweepRequest
from polykv.storage.run import RunDirectory

ROW = {
    "slice_kind": "all", "policy": "int8", "verdict": "pass", "ppl_increase": 0.0012, "ppl_increase_low": 0.0,
    "ppl_increase_high": 0.002, "kl_mean": 0.0007, "ratio_to_float16": 1.94,
}  # fmt: skip
OUTCOME = CertifyOutcome([ROW], {"claim_boundary": "these texts"}, ())


def test_a_mistake_is_told_before_prefect_starts(monkeypatch, tmp_path):
    monkeypatch.setattr(certify_module, "certify", lambda *args: pytest.fail("the flow was started"))
    argv = ["--model", "m", "--policy", "two_teir", "--corpus", __file__, "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(command, argv)
    assert "did you mean 'two_tier'" in str(done.exception)
    done = CliRunner().invoke(command, ["--model", "m", "--policy", "int8", "--out", str(tmp_path / "run")])
    assert isinstance(done.exception, InputError)
    assert not (tmp_path / "run").exists()


prefect = [
    pytest.mark.slow,
    pytest.mark.usefixtures("harness"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def artifact(key):
    with get_client(sync_client=True) as client:
        return max((a for a in client.read_artifacts() if a.key == key), key=lambda a: a.created).data


class TestOnPrefect:
    pytestmark = prefect

    def test_a_calibration_with_a_model_ends_with_the_certification(self, store, monkeypatch, tmp_path):
        asked = []
        monkeypatch.setattr(calibrate_module, "capture", lambda config, out: out)
        monkeypatch.setattr(certify_module, "certify_calibration", lambda *args: asked.append(args[:5]) or OUTCOME)
        out, capture = str(tmp_path / "run"), CaptureConfig("tiny", ("book.txt",))
        request = SweepRequest(store, out, ("int8",), ("full",))
        _, _, certified, _ = calibrate_module.calibrate(request, "serial", capture, None, True, False)
        assert certified.summary == [ROW]
        assert asked == [(out, store, capture, ("int8",), None)]
        assert "| int8 | +0.12% |" in artifact("polykv-certify")
        assert RunDirectory.open(out).state["sessions"][-1]["certify"] == "in certify/"
        _, _, certified, _ = calibrate_module.calibrate(request, "serial", capture, None, True, False, False)
        assert (certified, len(asked)) == (None, 1)
        assert RunDirectory.open(out).state["sessions"][-1]["certify"] == "skipped: not asked for"

    @pytest.mark.hf
    def test_the_flow_certifies_a_tiny_model(self, monkeypatch, tmp_path):
        pytest.importorskip("torch")
        from polykv import certify_stages
        from tests.certify.tiny_certify_models import loaded, tiny, words

        monkeypatch.setattr(certify_stages, "load_model", lambda *args: loaded(tiny(), "2" * 64))
        (tmp_path / "text.txt").write_text(words(400))
        config = CertifyConfig(n_passages=2, n_tokens=48)
        out = str(tmp_path / "run")
        outcome = certify(CertifyRequest("tiny", ("int8",), (str(tmp_path / "text.txt"),), config=config), out, True)
        assert outcome.summary[0]["kl_mean"] > 0
        assert (tmp_path / "run/certify.parquet").exists()
        assert "| int8 |" in artifact("polykv-certify")
        assert out in artifact("polykv-certify-run")
