"""A whole search inside a tiny model: it finds, resumes, stops when told, and its policy travels."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch and transformers: make hf")

from polykv import search_stages  # noqa: E402
from polykv.capture import CaptureConfig  # noqa: E402
from polykv.capture.plan import plan_capture  # noqa: E402
from polykv.capture.run import capture_to_store  # noqa: E402
from polykv.certify_stages import CertifyRequest, prepare_certification, run_certification  # noqa: E402
from polykv.errors import InputError  # noqa: E402
from polykv.policy import KEEP_ROTATION  # noqa: E402
from polykv.policy_files import load_policy  # noqa: E402
from polykv.schemas import CERTIFY, SEARCH, SENSITIVITY  # noqa: E402
from polykv.search_stages import SearchRequest, run_search  # noqa: E402
from polykv.storage import CaptureWriter  # noqa: E402
from polykv.storage.results import read_rows  # noqa: E402
from polykv.storage.run import RunDirectory  # noqa: E402
from tests.certify.tiny_certify_models import VOCABULARY, loaded, tiny  # noqa: E402

pytestmark = pytest.mark.hf
TOKENS = 64


def captured(folder, model, n_queries=8):
    """A capture of 24 passages in folder/store, texts apart for each split."""
    corpus = []
    for seed, split in enumerate(("calibrate", "select", "confirm", "confirm")):
        path = folder / f"{split}{seed}.txt"
        ids = np.random.default_rng(seed).integers(3, VOCABULARY, 900)
        path.write_text(" ".join(map(str, ids.tolist())))
        corpus.append(f"{split}:{path}")
    config = CaptureConfig(
        "tiny", tuple(corpus), n_tokens=TOKENS, n_passages=24, n_queries=n_queries, recent_window=8, n_labels=0
    )
    plan = plan_capture(config, model)
    capture_to_store(plan, CaptureWriter.create(str(folder / "store"), plan.meta))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """(folder, model) with a capture in folder/store."""
    folder, model = tmp_path_factory.mktemp("search"), loaded(tiny("llama"))
    captured(folder, model)
    return folder, model


@pytest.fixture
def request_of(world, tmp_path, monkeypatch):
    folder, model = world
    monkeypatch.setattr(search_stages, "load_model", lambda *arguments: model)

    def make(**changes):
        settings = {
            "store": str(folder / "store"),
            "model": "tiny",
            "out": str(tmp_path / "run"),
            "max_ppl_increase": 0.2,
            "select_passages": 3,
            "sensitivity_passages": 1,
            "confirm_passages": 8,
            "min_cosine": 0.9999,
            "recent_window": 8,
        }
        return SearchRequest(**{**settings, **changes})

    return make


def test_it_finds_a_policy_within_the_budget_and_leaves_its_trace(request_of, world):
    request = request_of()
    outcome = run_search(request)
    best = outcome.found.best
    assert best is not None, [(t.bytes_per_token, t.kl, t.log_ratio, t.predicted_kl) for t in outcome.found.trials]
    assert best.meets(outcome.target)
    trials = read_rows(outcome.path / "search.parquet", SEARCH)
    assert [row["is_best"] for row in trials].count(True) == 1
    assert all(row["kl_mean"] <= outcome.target.kl for row in trials if row["meets_budget"])
    assert len(read_rows(outcome.path / "sensitivity.parquet", SENSITIVITY)) == 3 * 2
    policy, _ = load_policy(str(outcome.policy))
    assert policy.key_rotation != KEEP_ROTATION
    assert len(policy.cells) == 3 * 2
    verdict = read_rows(outcome.path / "certify.parquet", CERTIFY, slice_kind="all")
    assert len(verdict) == 1
    assert verdict[0]["n_documents"] == 2
    assert verdict[0]["bytes_per_token"] == pytest.approx(best.bytes_per_token, rel=1e-9)
    assert "<svg" in (outcome.path / "search.svg").read_text()


def test_the_policy_gives_the_same_figures_where_the_run_was_copied_to(request_of, world, tmp_path):
    folder, model = world
    outcome = run_search(request_of())
    shutil.copytree(outcome.path, tmp_path / "elsewhere")
    config = replace(request_of().certify_config, n_passages=8)
    request = CertifyRequest("tiny", (str(tmp_path / "elsewhere" / outcome.policy.name),), store=str(folder / "store"), config=config)  # fmt: skip
    again = run_certification(prepare_certification(request), loaded=model).summary[0]
    for name in ("ppl_increase", "kl_mean", "bytes_per_token", "decode_reduction"):
        assert again[name] == pytest.approx(outcome.certified.summary[0][name], rel=1e-9), name


def test_a_search_that_ran_out_of_passes_goes_on_where_it_stopped(request_of, tmp_path):
    whole = run_search(request_of(out=str(tmp_path / "whole")))
    for allowed in (4, 65):
        stopped = run_search(request_of(max_passes=allowed))
        assert stopped.policy is None or not stopped.found.complete
        assert any("--max-passes" in note for note in stopped.notes)
        assert stopped.passes <= allowed
    resumed = run_search(request_of())
    assert resumed.passes < whole.passes
    assert resumed.policy.read_text() == whole.policy.read_text()
    for name, schema in (("search", SEARCH), ("sensitivity", SENSITIVITY), ("certify", CERTIFY)):
        assert read_rows(resumed.path / f"{name}.parquet", schema) == read_rows(whole.path / f"{name}.parquet", schema)


def test_another_configuration_is_refused_in_the_same_directory(request_of):
    run_search(request_of(max_passes=4))
    with pytest.raises(InputError, match="floor_bytes"):
        run_search(request_of(floor_bytes=5))


def test_another_budget_reuses_what_was_measured(request_of, tmp_path):
    first = run_search(request_of(out=str(tmp_path / "first")))
    apart = run_search(request_of(max_ppl_increase=0.4, out=str(tmp_path / "apart")))
    reusing = run_search(request_of(max_ppl_increase=0.4, out=str(tmp_path / "reusing"), reuse=str(first.path)))
    assert reusing.passes < apart.passes
    assert reusing.policy.read_text() == apart.policy.read_text()
    # under another name nothing is asked again
    named = run_search(
        request_of(max_ppl_increase=0.4, out=str(tmp_path / "named"), reuse=str(apart.path), name="mine")
    )
    assert named.passes == 0
    assert named.policy.name == "mine.policy.json"


def test_answers_about_another_capture_are_not_reused(request_of, world, tmp_path):
    first = run_search(request_of(max_passes=4, out=str(tmp_path / "first")))
    captured(tmp_path, world[1], n_queries=6)
    with pytest.raises(InputError, match=r"searched the capture .* leave --reuse out"):
        run_search(request_of(store=str(tmp_path / "store"), reuse=str(first.path)))


@pytest.mark.parametrize("metric", ["fisher", "output"])
def test_a_pruned_head_does_not_end_a_search(request_of, tmp_path, monkeypatch, metric):
    model = loaded(tiny("llama"))
    layer = model.model.model.layers[1].self_attn
    with torch.no_grad():
        layer.v_proj.weight[: layer.head_dim] = 0
    monkeypatch.setattr(search_stages, "load_model", lambda *arguments: model)
    captured(tmp_path, model)
    outcome = run_search(request_of(store=str(tmp_path / "store"), metric=metric))
    assert outcome.found.best.meets(outcome.target)
    policy, _ = load_policy(str(outcome.policy))
    assert len(policy.cells) == 3 * 2


def test_an_entropy_coded_policy_is_found_too(request_of, tmp_path):
    pytest.importorskip("constriction")
    outcome = run_search(request_of(rate="entropy", out=str(tmp_path / "entropy"), floor_bytes=1))
    best = outcome.found.best
    assert best.meets(outcome.target)
    policy, _ = load_policy(str(outcome.policy))
    assert {cell["pool"]["key"]["id"] for cell in policy.cells.values()} == {"transform_ecsq"}
    assert outcome.certified.summary[0]["bytes_per_token"] == pytest.approx(best.bytes_per_token, rel=0.15)


def test_a_byte_budget_is_kept(request_of, tmp_path):
    outcome = run_search(request_of(max_ppl_increase=None, budget_bytes=60.0, out=str(tmp_path / "bytes")))
    assert outcome.found.best.bytes_per_token <= 60
    assert len(outcome.trials) == 1
    assert RunDirectory.open(outcome.path).status == "complete"


def test_a_budget_that_nothing_meets_writes_no_policy_and_says_so(request_of, tmp_path):
    outcome = run_search(request_of(max_ppl_increase=1e-9, out=str(tmp_path / "none")))
    assert outcome.policy is None
    assert outcome.certified is None
    assert any("no sharing met the budget" in note for note in outcome.notes)
    assert not (outcome.path / "searched.policy.json").exists()
