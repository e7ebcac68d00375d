"""Fast correction of demand: with hysteresis, and only where capacity breaks."""

import pytest

from headrace.control_plane.surge import SETTLE_S, Surges, fallen, overloads
from optimizer import Engine, Key, Problem, Profile, plan

KEY = "acme/chat-3.1/interactive"


def rows(rps: float) -> dict[str, dict[str, float]]:
    return {"west": {KEY: rps}}


def test_a_large_row_surges_from_a_quarter_above_the_smoothed_demand():
    surges = Surges()
    surges.update(rows(400), rows(480), 0.0)
    assert surges.demand(rows(400), rows(480)) == rows(400)
    surges.update(rows(400), rows(510), 0.0)
    assert surges.demand(rows(400), rows(510)) == rows(510)


def test_what_noise_explains_is_no_surge_however_large_its_part():
    surges = Surges()
    surges.update(rows(16), rows(31), 0.0)
    assert not surges.any
    surges.update(rows(16), rows(33), 0.0)
    assert surges.any


def test_a_surge_lasts_until_the_estimates_nearly_agree():
    surges = Surges()
    surges.update(rows(100), rows(150), 0.0)
    surges.update(rows(105), rows(120), 0.0)
    assert surges.any
    surges.update(rows(116), rows(120), 0.0)
    assert not surges.any


def test_smoothing_begins_anew_once_a_surge_and_the_fast_estimate_counts_until_it_has_settled():
    surges = Surges()
    surges.update(rows(100), rows(150), 0.0)
    assert surges.begin_anew(0.0) == {("west", KEY)}
    surges.update(rows(130), rows(140), 1.0)
    assert not surges.begin_anew(1.0)
    assert surges.demand(rows(130), rows(140)) == rows(140)
    surges.update(rows(180), rows(185), SETTLE_S)
    assert not surges.any


def test_all_that_grows_surges_while_an_engine_is_clearly_beyond_its_capacity():
    surges = Surges()
    surges.update(rows(8), rows(11), 0.0)
    assert not surges.any
    surges.update(rows(8), rows(11), 1.0, beyond=True)
    assert surges.demand(rows(8), rows(11)) == rows(11)
    surges.update(rows(8), rows(8.2), 2.0, beyond=True)
    assert not surges.any


def test_demand_has_fallen_when_noise_does_not_explain_it():
    latest = {("west", KEY): 75.0}
    assert fallen(rows(100), rows(70), latest) == {("west", KEY): 70.0}
    assert not fallen(rows(100), rows(85), latest)
    assert not fallen(rows(12), rows(8), latest)


def test_what_came_last_says_how_far_demand_has_fallen():
    assert fallen(rows(100), rows(70), {("west", KEY): 50.0}) == {("west", KEY): 50.0}


def test_small_rows_of_one_model_have_fallen_when_their_sum_has():
    names = [f"edge-{i}" for i in range(8)]
    before, now = ({name: {KEY: rps} for name in names} for rps in (12.0, 8.0))
    latest = {(name, KEY): 6.0 for name in names}
    assert fallen(before, now, latest) == {row: pytest.approx(6.0) for row in latest}


def test_a_row_that_did_not_fall_keeps_what_it_asks_for():
    before = {"west": {KEY: 150.0}, "east": {KEY: 150.0}}
    now = {"west": {KEY: 12.0}, "east": {KEY: 150.0}}
    found = fallen(before, now, {("west", KEY): 0.0, ("east", KEY): 150.0})
    assert found["east", KEY] == pytest.approx(150.0, rel=0.1)
    assert found["west", KEY] < 15.0


def test_rows_of_another_model_tell_nothing_about_a_fall():
    other = "acme/coder/interactive"
    before = {"west": {KEY: 12.0, other: 100.0}}
    now = {"west": {KEY: 8.0, other: 60.0}}
    latest = {("west", KEY): 8.0, ("west", other): 60.0}
    assert fallen(before, now, latest).keys() == {("west", other)}


def test_a_row_that_the_policy_no_longer_has_is_no_fall():
    assert not fallen(rows(100), rows(95), {("west", KEY): 95.0, ("east", KEY): 5.0})


def test_a_surge_never_lowers_what_is_planned_for():
    surges = Surges()
    surges.update(rows(100), rows(150), 0.0)
    assert surges.demand(rows(100), rows(90)) == rows(100)


def test_only_engines_beyond_their_effective_capacity_are_overloaded():
    profile = Profile.parametric(capacity_rps=100, lambda_max_rps=120, t0_ms=10, ttft_base_ms=50)
    problem = Problem(
        demand_rps=rows(50),
        network_ms={"west": {"gpu": 1.0}},
        engines={"gpu": Engine(profile, ready_replicas=1, max_utilization=0.9)},
        keys={KEY: Key()},
        eligible={("west", KEY): frozenset({"gpu"})},
    )
    found = plan(problem)
    assert overloads(found.shares, problem, rows(89)) == []
    assert overloads(found.shares, problem, rows(91)) == ["gpu"]
    assert overloads(found.shares, problem, rows(120), sigmas=4.0) == []
    assert overloads(found.shares, problem, rows(140), sigmas=4.0) == ["gpu"]
