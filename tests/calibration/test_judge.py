"""The verdict: no-go on noise where the old rule says go, go on true structure, and the edges."""

import json

import numpy as np
import pytest
from gonogo_samples import gaussian, subspaces

from polykv.calibration import GonogoSettings, judge_dictionary
from polykv.calibration.rivals import Coded
from polykv.calibration.sample import sample_of_rows
from polykv.calibration.scoring import score
from polykv.calibration.settings import FULL_GRID
from polykv.calibration.verdict import Estimate, legacy_verdict, verdict_of
from polykv.errors import DimensionMismatch, InputError, NonFiniteError
from polykv.receipts import digest_json

QUICK = {"n_atoms": 32, "sparsity": 2, "iterations": 5}


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_a_no_go_though_the_old_rule_says_go(seed):
    receipt = judge_dictionary(gaussian(seed), gaussian(seed + 100, 512))
    assert receipt.verdict == "no-go"
    assert receipt.legacy_verdict == "go"
    assert receipt.comparison.margin.high < 0
    assert receipt["calibrate_relative_error"] < receipt["confirm_relative_error"] - 0.1


def test_true_structure_is_a_go():
    calibrate, confirm = subspaces(1, (2048, 1024))
    queries = gaussian(5, 24)
    receipt = judge_dictionary(
        calibrate,
        confirm,
        confirm_groups=np.arange(1024) // 64,
        calibrate_groups=np.arange(2048) // 64,
        queries=queries,
    )
    assert receipt.verdict == "go"
    assert receipt["confirm_relative_error"] < 0.05
    assert receipt.comparison.attention_margin.low > 0
    assert receipt["units"] == "groups"
    assert receipt["n_units"] == receipt["n_attention_units"] == 16


def test_the_receipt_is_plain_json_with_every_arm_on_both_splits():
    receipt = judge_dictionary(gaussian(0, 200, 8), gaussian(1, 100, 8), **QUICK)
    body = receipt.to_dict()
    assert json.loads(json.dumps(body)) == body
    digest = body.pop("digest")
    assert digest == digest_json(body)
    families = {arm["codec"] for arm in body["arms"]}
    assert {"sparse", "int8", "uniform", "uniform_centered", "channel", "turbo_scalar", "fib", "nothing"} <= families
    for arm in body["arms"]:
        assert arm["confirm_relative_error_low"] <= arm["confirm_relative_error"] <= arm["confirm_relative_error_high"]
        assert arm["calibrate_relative_error"] > 0
        assert (arm["comparison"] is not None) == (arm["codec"] == "sparse")
    assert [a["config"]["coefficients"] for a in body["arms"][:3]] == ["float16", "int8", "int4"]
    assert body["judged_arm"]["comparison"]["verdict"] == body["verdict"]
    assert body["units"] == "rows"
    assert "rows are the units" in body["notes"][0]


def test_the_same_input_gives_the_same_receipt_and_the_seed_counts():
    rows = gaussian(0, 200, 8), gaussian(1, 100, 8)
    first, second = (judge_dictionary(*rows, **QUICK).to_dict() for _ in range(2))
    assert first == second
    assert judge_dictionary(*rows, **QUICK, seed=1)["digest"] != first["digest"]


def test_the_judged_codec_is_handed_out():
    receipt = judge_dictionary(gaussian(0, 200, 8), gaussian(1, 100, 8), **QUICK)
    codec, confirm = receipt.codec, gaussian(1, 100, 8)
    decoded = codec.decode(codec.encode(confirm))
    error = np.linalg.norm(decoded.astype(np.float64) - confirm) / np.linalg.norm(confirm)
    assert error == pytest.approx(receipt["confirm_relative_error"], rel=1e-5)


def test_grouping_widens_the_interval():
    """Groups whose vectors share a scale: rows as units would be too sure."""
    rng = np.random.default_rng(0)
    draw = lambda: np.repeat(np.exp(rng.normal(size=8)), 64)[:, None] * rng.normal(size=(512, 8))  # noqa: E731
    calibrate, confirm, groups = draw(), draw(), np.repeat(np.arange(8), 64)
    confirm[groups % 2 == 0] = np.abs(confirm[groups % 2 == 0])
    by_row = judge_dictionary(calibrate, confirm, **QUICK).comparison.margin
    by_group = judge_dictionary(calibrate, confirm, **QUICK, confirm_groups=groups).comparison.margin
    assert by_group.value == pytest.approx(by_row.value, abs=0.02)  # channel groups stop at group ends
    assert by_group.high - by_group.low > 1.5 * (by_row.high - by_row.low)


def test_group_labels_may_be_anything_and_in_any_order():
    rows, labels = gaussian(1, 96, 8), np.array(["a", "b", "c", "d", "e", "f"])[np.arange(96) % 6]
    order = np.argsort(labels, kind="stable")
    mixed = judge_dictionary(gaussian(0, 200, 8), rows, **QUICK, confirm_groups=labels)
    sorted_ = judge_dictionary(gaussian(0, 200, 8), rows[order], **QUICK, confirm_groups=labels[order])
    assert mixed["arms"] == sorted_["arms"]
    assert mixed["n_units"] == 6


@pytest.mark.parametrize("n_units", [1, 2, 5])
def test_few_units_decide_nothing(n_units):
    calibrate, confirm = subspaces(2, (300, 60), 4, 2, 8)
    receipt = judge_dictionary(calibrate, confirm, **QUICK, confirm_groups=np.arange(60) % n_units)
    assert receipt.verdict == "inconclusive"
    assert receipt.verdict_reason == f"too_few_units: {n_units} < 6"
    assert (receipt.comparison.margin.low is None) == (n_units == 1)


def test_one_vector_is_inconclusive():
    receipt = judge_dictionary(gaussian(0, 1, 8), gaussian(1, 1, 8), n_atoms=1, sparsity=1, iterations=2)
    assert receipt.verdict == "inconclusive"


def test_confirm_must_not_be_calibrate():
    rows, _ = subspaces(2, (300, 60), 4, 2, 8)
    receipt = judge_dictionary(rows, rows, **QUICK)
    assert (receipt.verdict, receipt.verdict_reason) == ("inconclusive", "confirm_is_calibrate")


def test_head_dim_one_and_zero_vectors():
    """One dimension needs one number: the dictionary's ±1 atoms are as exact as a scaled sign, and dearer."""
    receipt = judge_dictionary(gaussian(0, 300, 1), gaussian(1, 100, 1), **QUICK)
    assert receipt.verdict != "go"
    assert receipt["confirm_relative_error"] < 1e-3
    assert receipt["absent_rivals"]["fib"].startswith("fib: head_dim is 1")
    calibrate, confirm = subspaces(2, (300, 200), 4, 2, 8)
    confirm[::3] = 0
    calibrate[::7] = 0
    assert judge_dictionary(calibrate, confirm, **QUICK).verdict == "go"


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"calibrate_rows": np.full((300, 8), np.nan)}, NonFiniteError, r"calibrate_rows\[0, 0\] is nan"),
        ({"confirm_rows": np.full((3, 8), np.inf)}, NonFiniteError, r"confirm_rows\[0, 0\] is inf"),
        ({"confirm_rows": gaussian(1, 20, 9)}, DimensionMismatch, "calibrate rows have 8 dimensions, confirm rows 9"),
        ({"confirm_rows": np.zeros((20, 8))}, InputError, "all vectors of the confirm split are zero"),
        ({"calibrate_rows": gaussian(0, 31, 8)}, InputError, "32 atoms asked for, but only 31 of 31 rows"),
        ({"confirm_rows": np.zeros((0, 8))}, InputError, "confirm_rows is empty"),
        ({"confirm_rows": np.zeros(8)}, DimensionMismatch, "confirm_rows: dimension mismatch"),
        ({"confirm_groups": [1, 2]}, DimensionMismatch, "confirm_rows: 100 rows, but 2 group labels"),
        ({"queries": gaussian(3, 5, 7)}, DimensionMismatch, "queries: dimension mismatch: expected 8, got 7"),
        ({"coefficients": ("int3",)}, InputError, "unknown coefficients 'int3'; known: float16, int8, int4"),
        ({"confidence": 1.0}, InputError, "confidence is 1.0, must be between 0 and 1"),
    ],
)
def test_refusals(change, error, text):
    arguments = {"calibrate_rows": gaussian(0, 200, 8), "confirm_rows": gaussian(1, 100, 8), **QUICK}
    with pytest.raises(error, match=text):
        judge_dictionary(**{**arguments, **change})


def test_the_verdict_table():
    above, below, open_, unknown = (
        Estimate(1, 0.5, 2),
        Estimate(-1, -2, 0.0),
        Estimate(0, -1, 1),
        Estimate(1, None, None),
    )
    cases = [
        ([above], ("go", None)),
        ([above, above], ("go", None)),
        ([below], ("no-go", None)),
        ([open_], ("inconclusive", "interval_holds_zero")),
        ([above, below], ("no-go", "attention_worse")),
        ([above, open_], ("inconclusive", "attention_undecided")),
        ([below, above], ("no-go", None)),
        ([open_, below], ("no-go", "attention_worse")),
        ([unknown], ("inconclusive", "interval_holds_zero")),
    ]
    for margins, expected in cases:
        assert verdict_of(margins, 6, 6) == expected
    assert verdict_of([above], 5, 6) == ("inconclusive", "too_few_units: 5 < 6")


def test_the_old_rule():
    rows = np.array([[2.0, 0.9, -1.1], [0, 0, 0]], np.float32)
    # round(x / 2) = 1, 0, −1 → 2, 0, −2: what is lost is 0.9² + 0.9² of 4 + 0.81 + 1.21
    expected = np.sqrt(1.62 / 6.02)
    assert legacy_verdict(rows, 0.5).ternary_error == pytest.approx(expected, rel=1e-6)
    assert legacy_verdict(rows, expected + 1e-6).verdict == "no-go"
    assert legacy_verdict(rows, expected - 1e-6).verdict == "go"


def test_plain_queries_measure_attention_over_the_rows():
    """Two keys, one query, written out: the coded key moves the weights, the values stay exact."""
    rows = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    sample = sample_of_rows(rows, None, "rows", np.array([[2.0, 0.0]]))
    decoded = np.array([[0.5, 0.0], [0.0, 1.0]], np.float32)
    found = score(sample, Coded(decoded, 0, 0), attention=True)
    weights, coded = (np.exp(s) / np.exp(s).sum() for s in (np.array([2, 0]) / 2**0.5, np.array([1, 0]) / 2**0.5))
    change = np.linalg.norm(coded - weights) / np.linalg.norm(weights)
    assert found.attention_error == pytest.approx([change])
    assert found.attention_kl == pytest.approx([(coded * np.log(coded / weights)).sum()])
    assert found.squared_error == pytest.approx([0.25, 0.0])


def test_settings_are_json_and_checked():
    settings = GonogoSettings(grid=FULL_GRID)
    assert len(settings.to_dict()["grid"]) == 12
    assert settings.digest() != GonogoSettings().digest()
    with pytest.raises(InputError, match="min_units is 1, must be at least 2"):
        GonogoSettings(min_units=1)
    with pytest.raises(InputError, match="grid and coefficients"):
        GonogoSettings(grid=())
