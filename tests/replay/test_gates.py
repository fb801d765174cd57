"""Gates: NaN never passes, limits are inclusive, requests are checked at the door."""

import numpy as np
import pytest

from polykv.errors import InputError
from polykv.replay.config import DEFAULT_GATES, PERFECT, Gate, SweepConfig, normalise_candidate_ks
from polykv.replay.gates import blockers, cell_verdict, gate_verdict
from polykv.replay.statistics import Interval


@pytest.mark.parametrize("value", [None, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("metric", PERFECT)
@pytest.mark.parametrize("direction", ["min", "max"])
def test_a_figure_that_is_not_finite_blocks_every_gate(metric, direction, value):
    gate = Gate(metric, direction, 0.5)
    assert not gate.meets(value)
    assert blockers([gate], {metric: value}) == [{"gate": f"non_finite: {metric}", "value": None, "limit": 0.5}]
    mean = np.nan if value is None else value
    intervals = {metric: Interval(mean, 0.4, 0.6, 8)}
    assert cell_verdict([gate], intervals, 8) == ("fail", f"non_finite: {metric}")


def test_limits_are_inclusive():
    low, high = Gate("output_cosine_mean", "min", 0.75), Gate("output_relative_error_mean", "max", 0.25)
    assert low.meets(0.75)
    assert not low.meets(np.nextafter(0.75, 0))
    assert high.meets(0.25)
    assert not high.meets(np.nextafter(0.25, 1))


@pytest.mark.parametrize(
    ("ends", "expected"), [((0.01, 0.04), "pass"), ((0.06, 0.09), "fail"), ((0.04, 0.06), "inconclusive")]
)
def test_a_gate_passes_with_its_whole_interval(ends, expected):
    gate = Gate("output_relative_error_mean", "max", 0.05)
    assert gate_verdict(gate, Interval(sum(ends) / 2, *ends, 8)) == expected


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [(("pass", "pass"), "pass"), (("pass", "fail"), "fail"), (("inconclusive", "fail"), "fail"), (("pass", "inconclusive"), "inconclusive")],
)  # fmt: skip
def test_a_cell_fails_with_any_gate_and_passes_with_all(verdicts, expected):
    ends = {"pass": (0.9995, 0.9999), "fail": (0.9, 0.95), "inconclusive": (0.99, 0.9999)}
    errors = {"pass": (0.01, 0.02), "fail": (0.2, 0.3), "inconclusive": (0.04, 0.06)}
    low, high = verdicts
    intervals = {
        "output_cosine_mean": Interval(0.99, *ends[low], 8),
        "output_relative_error_mean": Interval(0.05, *errors[high], 8),
    }
    assert cell_verdict(DEFAULT_GATES, intervals, 8)[0] == expected


@pytest.mark.parametrize(
    ("asked", "expected", "notes"),
    [
        ([8, 16], (8, 16), []),
        (["full"], (128,), []),
        ([16, 8], (8, 16), ["sorted"]),
        ([8, 8, 16], (8, 16), ["repeated"]),
        ([128, "full"], (128,), ["repeated"]),
        ([8, 500], (8, 500), ["exceed"]),
        (["full", 500, 8, 8], (8, 128, 500), ["repeated", "sorted", "exceed"]),
    ],
)
def test_candidate_ks_are_sorted_and_deduplicated_with_a_note(asked, expected, notes):
    numbers, said = normalise_candidate_ks(asked, 128)
    assert numbers == expected
    assert len(said) == len(notes)
    for word, text in zip(notes, said, strict=True):
        assert word in text


@pytest.mark.parametrize("asked", [[], [0], [8, -1], ["all"], [1.5], [True]])
def test_candidate_ks_that_mean_nothing_are_refused(asked):
    with pytest.raises(InputError, match="candidate_k"):
        normalise_candidate_ks(asked, 128)


@pytest.mark.parametrize("ks", [(), (0,), (-3, 8), (8, 8), (16, 8), (1.5,)])
def test_a_config_takes_only_ascending_budgets(ks):
    with pytest.raises(InputError, match="candidate_ks"):
        SweepConfig(ks)


def test_a_config_survives_json_and_refuses_what_it_does_not_know():
    config = SweepConfig((8, 128), shared_tokens=64, seed=3)
    assert SweepConfig.from_dict(config.to_dict()) == config
    with pytest.raises(InputError, match="colour"):
        SweepConfig.from_dict(config.to_dict() | {"colour": 1})
    with pytest.raises(InputError, match="ppl"):
        SweepConfig((8,), gates=(Gate("ppl", "max", 1.0),))
    with pytest.raises(InputError, match="shared_tokens is 0"):
        SweepConfig((8,), shared_tokens=0)


@pytest.mark.parametrize(
    ("metric", "direction", "limit"),
    [("output_cosine_mean", "max", 0.9), ("output_cosine_mean", "min", 1.001), ("attention_kl_mean", "min", 0.1)],
)
def test_a_gate_that_a_perfect_replay_fails_is_refused(metric, direction, limit):
    with pytest.raises(InputError, match=f"gate {metric}.*even a perfect replay"):
        SweepConfig((8,), gates=(Gate(metric, direction, limit),))
    SweepConfig((8,), gates=(Gate("output_cosine_mean", "min", 1.0), Gate("attention_kl_mean", "max", 0.0)))


@pytest.mark.parametrize("seed", [-1, True, 1.0])
def test_a_seed_is_a_whole_number_from_0(seed):
    with pytest.raises(InputError, match="seed is"):
        SweepConfig((8,), seed=seed)
