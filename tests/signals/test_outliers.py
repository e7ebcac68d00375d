"""Outlier penalties on the pure core."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.outliers import Cause, Hold, OutlierDetector, OutlierSettings

SETTINGS = OutlierSettings()


class Run:
    """A detector that is fed once a second."""

    def __init__(self) -> None:
        self.detector: OutlierDetector[str] = OutlierDetector()
        self.now = 0.0

    def feed(self, seconds: int, **residuals: float | None) -> list[dict[str, float]]:
        history = []
        for _ in range(seconds):
            self.now += 1.0
            for unit, residual in residuals.items():
                if residual is not None:
                    self.detector.observe(unit, "group", residual, self.now)
            self.detector.update(self.now)
            history.append({unit: found.value for unit, found in self.detector.penalties(self.now).items()})
        return history

    def value(self, unit: str) -> float:
        return self.detector.penalties(self.now)[unit].value


@pytest.fixture
def run() -> Run:
    return Run()


def test_a_slow_unit_is_penalised_after_the_dwell_and_down_to_the_floor(run):
    run.feed(9, a=3.0, b=1.0, c=1.0)
    assert run.value("a") == 1.0
    run.feed(3, a=3.0, b=1.0, c=1.0)
    assert run.value("a") == 0.5
    run.feed(200, a=3.0, b=1.0, c=1.0)
    assert run.value("a") == SETTINGS.floor
    assert (run.value("b"), run.value("c")) == (1.0, 1.0)
    assert run.detector.penalties(run.now)["a"].cause is Cause.SLOW


def test_it_returns_gradually_and_without_overshoot(run):
    run.feed(60, a=3.0, b=1.0, c=1.0)
    low = run.value("a")
    history = [values["a"] for values in run.feed(200, a=1.0, b=1.0, c=1.0)]
    assert history == sorted(history)
    assert max(b - a for a, b in zip([low, *history], history, strict=False)) <= SETTINGS.step + 1e-9
    assert history[-1] == 1.0
    assert run.detector.penalties(run.now)["a"].cause is Cause.NONE


def test_between_the_thresholds_nothing_changes(run):
    run.feed(30, a=3.0, b=1.0, c=1.0)
    run.feed(10, a=1.6, b=1.0, c=1.0)  # the smoothed residual follows
    low = run.value("a")
    run.feed(100, a=1.6, b=1.0, c=1.0)
    assert run.value("a") == low
    run.feed(100, a=1.6, b=1.6, c=1.0)
    assert run.value("b") == 1.0


def test_a_short_spike_does_nothing(run):
    run.feed(20, a=1.0, b=1.0, c=1.0)
    run.feed(8, a=4.0, b=1.0, c=1.0)
    run.feed(20, a=1.0, b=1.0, c=1.0)
    assert run.value("a") == 1.0


def test_a_flapping_unit_is_not_moved_back_and_forth(run):
    history = []
    for _ in range(20):
        history += run.feed(5, a=3.0, b=1.0, c=1.0) + run.feed(5, a=1.0, b=1.0, c=1.0)
    moves = [b["a"] - a["a"] for a, b in pairwise(history) if a["a"] != b["a"]]
    reversals = sum(one * two < 0 for one, two in pairwise(moves))
    assert reversals == 0


def test_when_all_are_slow_it_is_the_prediction_and_nobody_is_penalised(run):
    run.feed(100, a=3.0, b=3.1, c=2.9, d=3.0)
    assert {run.value(unit) for unit in "abcd"} == {1.0}


def test_never_more_than_half_of_a_group(run):
    run.feed(100, a=9.0, b=8.0, c=1.0, d=1.0)
    run.feed(100, a=9.0, b=8.0, c=1.0, d=1.0)
    for unit in "cd":
        run.detector.fail(unit, "group", run.now)
    assert [run.value(unit) < 1 for unit in "abcd"] == [True, True, False, False]


def test_a_unit_alone_in_its_group_is_never_penalised(run):
    run.feed(100, a=9.0)
    run.detector.fail("a", "group", run.now)
    assert run.value("a") == 1.0


def test_a_hard_failure_acts_at_once_and_is_forgiven_step_by_step(run):
    run.feed(5, a=1.0, b=1.0)
    run.detector.fail("a", "group", run.now)
    assert run.value("a") == SETTINGS.floor
    run.feed(15, a=1.0, b=1.0)
    assert SETTINGS.floor < run.value("a") < 1.0
    run.feed(200, a=1.0, b=1.0)
    assert run.value("a") == 1.0


def test_a_good_residual_from_before_a_hard_failure_gives_nothing_back(run):
    run.feed(20, a=1.0, b=1.0)
    run.detector.fail("a", "group", run.now)
    run.feed(50, a=None, b=1.0)
    assert run.value("a") == SETTINGS.floor
    run.feed(20, a=None, b=1.0)
    assert run.value("a") > SETTINGS.floor


def test_units_of_which_nothing_was_observed_are_of_the_group(run):
    run.detector.know({"a": "group", "b": "group", "c": "group"}, run.now)
    run.detector.fail("a", "group", run.now)
    assert run.value("a") == SETTINGS.floor


def test_without_residuals_a_penalty_is_not_for_ever(run):
    run.feed(60, a=3.0, b=1.0, c=1.0)
    run.feed(59, b=1.0, c=1.0)
    low = run.value("a")
    assert low < 0.5
    run.feed(15 * 60, b=1.0, c=1.0)
    assert run.value("a") == 1.0


def test_a_hold_by_hand_overrides_until_it_expires(run):
    run.feed(5, a=1.0, b=1.0)
    run.detector.hold("a", "group", Hold(0.2, "kernel update", until=run.now + 30), run.now)
    assert run.value("a") == 0.2
    found = run.detector.penalties(run.now)["a"]
    assert (found.cause, found.explanation) == (Cause.HELD, "held at 0.2 by hand: kernel update")
    run.feed(31, a=1.0, b=1.0)
    assert run.value("a") == 1.0


def test_a_release_by_hand_takes_everything_off(run):
    run.feed(60, a=3.0, b=1.0, c=1.0)
    run.detector.hold("a", "group", Hold(0.0, "drain", until=math.inf), run.now)
    run.detector.release("a")
    assert run.value("a") == 1.0


@pytest.mark.parametrize(("penalty", "reason"), [(0.5, ""), (1.5, "x"), (-0.1, "x"), (math.nan, "x")])
def test_a_hold_needs_a_reason_and_a_fraction(run, penalty, reason):
    with pytest.raises(ValueError):
        run.detector.hold("a", "group", Hold(penalty, reason, until=1.0), 0.0)


def test_penalties_survive_a_restart(run):
    run.feed(60, a=3.0, b=1.0, c=1.0)
    run.detector.hold("b", "group", Hold(0.3, "by hand", until=run.now + 100), run.now)
    again: OutlierDetector[str] = OutlierDetector()
    again.restore(run.detector.save(run.now), now=5.0)
    assert again.penalties(5.0)["a"].value == run.value("a")
    assert again.penalties(104.0)["b"].value == 0.3
    assert again.penalties(106.0)["b"].value == 1.0
    assert "c" not in again.penalties(5.0)


def test_units_that_left_are_forgotten(run):
    run.feed(60, a=3.0, b=1.0, c=1.0)
    run.detector.retain({"b", "c"})
    assert set(run.detector.penalties(run.now)) == {"b", "c"}


def test_the_explanation_says_how_slow(run):
    run.feed(60, a=3.0, b=1.0, c=1.0)
    assert "3.00 times the prediction" in run.detector.penalties(run.now)["a"].explanation


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcd"),
            st.floats(allow_nan=True, allow_infinity=True),
            st.floats(0.1, 30.0),
            st.booleans(),
        ),
        max_size=60,
    )
)
def test_whatever_comes_penalties_stay_in_bounds_and_half_of_the_group_stays_whole(steps):
    detector: OutlierDetector[str] = OutlierDetector()
    for unit in "abcd":
        detector.observe(unit, "group", 1.0, 0.0)
    now = 0.0
    for unit, residual, pause, fails in steps:
        now += pause
        detector.observe(unit, "group", residual, now)
        if fails:
            detector.fail(unit, "group", now)
        detector.update(now)
        values = [found.value for found in detector.penalties(now).values()]
        assert all(SETTINGS.floor <= value <= 1.0 for value in values)
        assert sum(value < 1.0 for value in values) <= 2
