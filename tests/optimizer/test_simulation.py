"""The closed loop: the same draw for all, and what theory says of each policy."""

import dataclasses

import pytest

from optimizer import ProblemError
from optimizer.simulation import Event, Retries, Scenario, simulate
from tests.optimizer.fleets import DEMAND, KEY, talk

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


def test_after_a_step_global_settles_without_turning_back():
    half = talk(demand_rps={**DEMAND, "B": {KEY: 60.0}})
    step = Scenario(
        "step", half, duration_s=580, warm_up_s=120, events=(Event(300, frontend="B", demand_factor=2),)
    )
    trace = simulate(step, "global")
    assert trace.metrics.overshoot < 0.005
    assert trace.metrics.reversals_per_hour == 0
    assert trace.metrics.settled_s < 6 * step.demand_window_s


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


def test_noise_moves_next_to_nothing():
    noisy = Scenario(
        "noise",
        talk(demand_rps={f: {KEY: 0.8 * r[KEY]} for f, r in DEMAND.items()}),
        duration_s=900,
        warm_up_s=300,
        dispersion=4,
    )
    assert simulate(noisy, "global").metrics.moved_per_minute <= 0.01


def test_a_scenario_that_names_what_is_not_there_is_refused():
    with pytest.raises(ProblemError, match="ghost"):
        dataclasses.replace(STEADY, events=(Event(0, engine="ghost"),))
