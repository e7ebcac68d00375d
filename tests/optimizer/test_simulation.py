"""The closed loop: the same draw for all, and what theory says of each policy."""

import dataclasses
import math

import pytest

from optimizer import ProblemError, Tuning
from optimizer.simulation import Event, Retries, Scenario, reversals, simulate
from tests.optimizer.fleets import CAPACITY, DEMAND, KEY, talk

STEADY = Scenario("steady", talk(), duration_s=300, warm_up_s=150)


def test_the_talks_fleet_settles_at_the_optimum():
    metrics = simulate(STEADY, "global").metrics
    assert metrics.ttft_mean_ms == pytest.approx(817.1, rel=1e-3)
    assert metrics.moved_per_minute == 0
    assert metrics.refused == metrics.failed == 0


def test_the_same_seed_gives_the_same_run_and_another_another():
    noisy = dataclasses.replace(STEADY, dispersion=4.0)
    first, second, other = (
        simulate(dataclasses.replace(noisy, seed=seed), "waterfall").e2e_ms.tolist() for seed in (1, 1, 2)
    )
    assert first == second
    assert other != first


def step(**changes):
    """S3's first step: demand at B doubles at 300 s, which is beyond what its engine can do."""
    half = talk(demand_rps={**DEMAND, "B": {KEY: 60.0}}, max_utilization=0.95)
    doubled = Event(300, frontend="B", demand_factor=2)
    scenario = Scenario("step", half, duration_s=580, warm_up_s=120, report_delay_s=10, events=(doubled,))
    return dataclasses.replace(scenario, **changes)


def test_after_a_step_global_settles_without_turning_back():
    metrics = simulate(step(), "global").metrics
    assert metrics.overshoot < 0.005
    assert metrics.reversals_per_hour == 0


def test_a_surge_is_settled_within_a_planning_period_after_report_delay_and_demand_window():
    surge = step(surges=True)
    metrics = simulate(surge, "global").metrics
    assert metrics.settled_s <= surge.report_delay_s + surge.demand_window_s + surge.interval_s
    assert metrics.reversals_per_hour == 0


def test_a_step_that_is_no_surge_is_settled_when_an_exponential_average_is_within_what_is_visible():
    """Its time constant is half of the window: it has 86 % of a step after the window, 98 % after two."""
    slow = step()
    metrics = simulate(slow, "global").metrics
    assert metrics.settled_s <= slow.report_delay_s + 2 * slow.demand_window_s + slow.interval_s


def turns(loop_gain, rounds=120):
    """Turning points of `feedback`'s shares in the first and second half of S3's peak, without smoothing.

    One engine is 1 % slower for ten seconds: the demand of any front-end alone loads all engines alike. With
    engines that follow at once, S3's delays make d = 2: what is seen is three publications old. At equal
    utilisation u the loop gain is gain · u·ℓ′/ℓ with ℓ = 120 + 80·u/(1 − u).
    """
    u = sum(row[KEY] for row in DEMAND.values()) / sum(CAPACITY.values())
    slope = 80 * u / (1 - u) ** 2 / (120 + 80 * u / (1 - u))
    peak = Scenario(
        "peak",
        talk(),
        duration_s=5 * rounds,
        warm_up_s=0,
        report_delay_s=10,
        settling_s=0.1,
        events=(Event(50, 60, engine="a", slow=1.01),),
        tuning=Tuning(feedback_gain=loop_gain / slope, feedback_ewma=1.0),
    )
    share = simulate(peak, "feedback").fleet_share
    return reversals(share[: rounds // 2]), reversals(share[rounds // 2 :])


def test_feedback_is_calm_below_its_stability_limit_and_oscillates_above():
    limit = 2 * math.sin(math.pi / 10)  # d = 2
    assert turns(0.85 * limit)[1] == 0
    assert turns(1.2 * limit)[1] > 10


def test_a_lost_engine_fails_only_what_its_detection_delay_lets_through():
    half = talk(demand_rps={f: {KEY: 0.5 * row[KEY]} for f, row in DEMAND.items()})
    lost = Scenario(
        "lost", half, duration_s=400, warm_up_s=60, events=(Event(200, 300, engine="a", lost=True),)
    )
    assert simulate(lost, "global").metrics.failed < 0.01


def test_a_retry_budget_bounds_the_attempts():
    storm = Scenario(
        "storm",
        talk(),
        duration_s=300,
        warm_up_s=60,
        events=(Event(100, 200, failing=0.5),),
        retries=Retries(3, 0.1),
    )
    free = dataclasses.replace(storm, retries=Retries(3, None))
    assert simulate(storm, "capacity_weighted").metrics.amplification <= 1.11
    assert simulate(free, "capacity_weighted").metrics.amplification > 1.2


def test_noise_moves_next_to_nothing_when_demand_is_averaged_over_a_minute():
    noisy = Scenario(
        "noise",
        talk(demand_rps={f: {KEY: 0.8 * r[KEY]} for f, r in DEMAND.items()}),
        duration_s=900,
        warm_up_s=300,
        dispersion=4,
        demand_window_s=60,
    )
    assert simulate(noisy, "global").metrics.moved_per_minute <= 0.01


def test_a_scenario_that_names_what_is_not_there_is_refused():
    with pytest.raises(ProblemError, match="ghost"):
        dataclasses.replace(STEADY, events=(Event(0, engine="ghost"),))
