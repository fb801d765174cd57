"""A search in the report: its picture, its tables, its command, with and without a policy found."""

import html
import re
import shlex
from dataclasses import asdict, replace

import pytest

from polykv.cli.search import search, search_request
from polykv.report.search_front import front_of, search_picture
from polykv.report_stages import report_stage
from polykv.schemas import SEARCH, SENSITIVITY
from polykv.search_stages import SearchRequest
from polykv.storage.results import write_table
from polykv.storage.run import RunDirectory

REQUEST = asdict(SearchRequest("captures/mine", "smollm2", "runs/found"))
# Every option with another value than its default; the last three have no option.
OTHER = SearchRequest(
    "captures/mine", "smollm2", "runs/found", max_ppl_increase=0.03, margin=0.3, min_cosine=0.99, floor_bytes=4.5, rate="entropy",
    metric="output", gradient_passages=5, unselected_values="drop", select_passages=3, sensitivities="heads", sensitivity_passages=4,
    confirm_passages=6, max_passes=77, before_rope=False, name="other", corpus=("a.txt", "b.txt"), seed=9,
    sink_tokens=4, recent_window=32, model_cache=None,
)  # fmt: skip


def trial(number, bytes_per_token, kl, best=False):
    return {
        "run_id": "r", "trial": number, "knob": 1e-6, "bytes_per_token": bytes_per_token, "ratio_to_float16": 23040 / bytes_per_token,
        "predicted_kl": kl / 2, "kl_mean": kl, "log_ratio_mean": kl, "log_ratio_standard_error": 0.001, "ppl_increase": kl,
        "n_passages": 8, "meets_budget": kl <= 0.007, "is_best": best,
    }  # fmt: skip


TRIALS = [trial(0, 2400.0, 0.014), trial(1, 5000.0, 0.003), trial(2, 3200.0, 0.0068, True), trial(3, 3400.0, 0.0069)]
SENSITIVITIES = [
    {"run_id": "r", "layer": layer, "kv_head": None, "stream": stream, "true_kl": 0.002, "expected_kl": expected, "output_error": 0.1, "output_cosine_loss": 0.01, "relative_mse": 0.1, "bytes_per_vector": 12.0}
    for layer, expected in enumerate((0.001, 0.003, None))
    for stream in ("key", "value")
]  # fmt: skip


@pytest.mark.parametrize("trials", [TRIALS, [row | {"is_best": False, "meets_budget": False} for row in TRIALS]])
def test_the_report_of_a_search_shows_it_and_says_how_to_repeat_it(tmp_path, trials):
    with RunDirectory.create_or_resume(tmp_path / "run", {"kind": "search", "model_id": "tiny"}) as run:
        run.record("request", REQUEST)
        write_table(run.table_path("search"), SEARCH, trials)
        write_table(run.table_path("sensitivity"), SENSITIVITY, SENSITIVITIES)
    page = report_stage(str(tmp_path / "run")).read_text()
    assert "polykv policy search captures/mine --model smollm2 --budget-ppl 1% --rate fixed" in page
    assert "The search" in page
    assert "3,200" in page
    assert ("chosen: 7.2×" in page) == trials[2]["is_best"]
    if not trials[2]["is_best"]:
        assert "No policy: no sharing of bytes" in page


@pytest.mark.parametrize(
    "asked", [OTHER, replace(OTHER, max_ppl_increase=None, budget_bytes=2880.0), replace(OTHER, min_cosine=None)]
)
def test_the_command_it_shows_asks_for_the_same_search(tmp_path, asked):
    config = {"kind": "search", "model_id": "tiny"}
    with RunDirectory.create_or_resume(tmp_path / "run", config) as run:
        run.record("request", asdict(asked))
        write_table(run.table_path("search"), SEARCH, TRIALS)
        write_table(run.table_path("sensitivity"), SENSITIVITY, SENSITIVITIES)
    page = report_stage(str(tmp_path / "run")).read_text()
    words = shlex.split(html.unescape(re.search("polykv policy search [^<]*", page)[0]))
    given = search.make_context("search", words[3:]).params
    for name in ("fail_on", "dry_run", "as_json", "quiet"):
        given.pop(name)
    assert search_request(given.pop("out"), given) == asked


def test_the_front_holds_what_nothing_beats():
    assert [row["trial"] for row in front_of(TRIALS)] == [0, 1, 2]


def test_the_picture_is_an_svg_with_the_choice_and_the_limit():
    picture = search_picture(TRIALS, 0.007)
    assert picture.startswith("<?xml")
    assert "</svg>" in picture
