"""The closed loop: the cheapest sharing that meets the budget, in few trials, whatever the model says."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.errors import InputError
from polykv.search.loop import CLOSE_ENOUGH, MOST_TRIALS, Target, Trial, search_sharing

SIZES = [500 + 5 * i for i in range(800)]
PREDICTED = [0.2 * math.exp(-i / 150) for i in range(800)]


def model(factor=1.0, power=1.0, ratio=1.2):
    """A judge whose KL is a power of the prediction, and its log ratio a multiple of that."""
    asked = []

    def judge(place):
        asked.append(place)
        kl = factor * PREDICTED[place] ** power
        return Trial(place, PREDICTED[place], kl, ratio * kl, SIZES[place])

    return judge, asked


@settings(deadline=None, max_examples=60)
@given(st.floats(0.2, 8), st.floats(0.7, 1.4), st.floats(0.0, 3.0), st.floats(0.002, 0.05))
def test_it_ends_close_to_the_cheapest_that_meets(factor, power, ratio, budget):
    target = Target.of_ppl(budget, 0.7)
    judge, asked = model(factor, power, ratio)
    found = search_sharing(SIZES, PREDICTED, target, judge)
    cheapest = next((i for i in range(800) if judge(i).meets(target)), None)
    if cheapest is None:
        assert found.best is None
        return
    assert found.complete
    assert found.best is not None
    assert found.best.meets(target)
    assert SIZES[found.best.place] <= SIZES[cheapest] * (1 + 4 * CLOSE_ENOUGH)
    assert len(found.trials) <= MOST_TRIALS


def test_no_place_is_tried_twice():
    judge, asked = model(3.0)
    search_sharing(SIZES, PREDICTED, Target.of_ppl(0.01, 0.7), judge)
    assert len(set(asked)) == len(asked)


def test_a_budget_that_nothing_meets_finds_nothing_and_has_tried_the_dearest():
    judge, asked = model(1e6)
    found = search_sharing(SIZES, PREDICTED, Target.of_ppl(0.01, 0.7), judge)
    assert found.best is None
    assert found.complete
    assert max(asked) == len(SIZES) - 1


def test_a_budget_that_everything_meets_finds_the_cheapest():
    judge, _ = model(1e-6)
    assert search_sharing(SIZES, PREDICTED, Target.of_ppl(0.01, 0.7), judge).best.place == 0


def test_it_stops_when_the_passes_are_used_up_and_keeps_what_it_has():
    judge, _ = model(2.0)
    answers = iter([True, False])
    found = search_sharing(
        SIZES, PREDICTED, Target.of_ppl(0.05, 0.7), lambda place: judge(place) if next(answers) else None
    )
    assert not found.complete
    assert len(found.trials) == 1


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_a_prediction_in_proportion_needs_two_trials(factor):
    judge, _ = model(factor)
    found = search_sharing(SIZES, PREDICTED, Target.of_ppl(0.05, 0.7), judge)
    assert len(found.trials) <= 2
    assert found.best.kl >= 0.96 * 0.7 * math.log1p(0.05)


def test_a_log_ratio_decides_only_when_it_is_beyond_its_noise():
    target = Target.of_ppl(0.01, 0.7)
    assert Trial(0, 0.1, 0.005, 0.015, 1.0, log_ratio_error=0.004).meets(target)
    assert not Trial(0, 0.1, 0.005, 0.015, 1.0, log_ratio_error=0.002).meets(target)
    assert not Trial(0, 0.1, 0.008, 0.0, 1.0, log_ratio_error=0.1).meets(target)


def test_a_figure_that_is_not_a_number_meets_nothing():
    target = Target.of_ppl(0.01, 0.7)
    assert not Trial(0, 0.1, math.nan, 0.0, 1.0).meets(target)
    assert not Trial(0, 0.1, 0.0, math.nan, 1.0).meets(target)


@pytest.mark.parametrize(("budget", "margin"), [(0.0, 0.7), (-1.0, 0.7), (math.nan, 0.7), (0.01, 0.0), (0.01, 1.1)])
def test_a_target_that_makes_no_sense_is_refused(budget, margin):
    with pytest.raises(InputError):
        Target.of_ppl(budget, margin)


def test_no_sharing_is_refused():
    with pytest.raises(InputError):
        search_sharing([], [], Target.of_ppl(0.01, 0.7), lambda place: None)
