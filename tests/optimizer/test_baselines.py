"""The other policies do what their names say, and the feedback loop is as stable as theory says."""

import numpy as np
import pytest

from optimizer import Engine, Observed, Tuning, Warm, plan
from tests.optimizer.fleets import DEMAND, KEY, queue_profile, talk

ALONE = {"A": {f"e{i}": 1.0 for i in range(8)}}


def test_nearest_sends_all_home_and_overloads_b():
    result = plan(talk(), "nearest")
    assert result.shares["B"][KEY] == {"b": 1.0}
    assert not result.feasible


def test_round_robin_and_capacity_weighted_split_as_named():
    assert plan(talk(), "round_robin").shares["A"][KEY]["a"] == pytest.approx(1 / 3, abs=1e-5)
    assert plan(talk(), "capacity_weighted").shares["A"][KEY]["c"] == pytest.approx(80 / 280, abs=1e-5)


def test_waterfall_fills_the_nearest_to_its_limit_and_spills():
    result = plan(talk(max_utilization=0.95), "waterfall")
    assert result.engines["b"].load_rps == pytest.approx(95, rel=1e-4)
    assert result.feasible


def test_local_ignores_what_the_others_send():
    result = plan(talk(), "local")
    assert result.objective_ms > 1.5 * plan(talk()).objective_ms


def test_dgd_reaches_the_optimum():
    warm, problem = Warm(), talk()
    for _ in range(120):
        problem = talk(previous_shares=plan(problem, "dgd", warm).shares)
    assert plan(problem, "dgd", warm).objective_ms == pytest.approx(plan(talk()).objective_ms, rel=2e-3)


def test_local_view_costs_nothing_when_load_is_low():
    demand = {f: {KEY: 0.1 * row[KEY]} for f, row in DEMAND.items()}
    best = plan(talk(demand_rps=demand)).objective_ms
    for name in ("nearest", "local", "waterfall"):
        assert plan(talk(demand_rps=demand), name).objective_ms == pytest.approx(best, rel=1e-3)


def swing(loop_gain, delay, alpha=1.0, rounds=400, load=0.8):
    """Late ÷ early spread of eight equal engines' shares under `feedback`, from a small disturbance."""
    gain = loop_gain * (1 - load) / load
    tuning = Tuning(feedback_gain=gain, feedback_ewma=alpha)
    engines = {name: Engine(queue_profile(100.0), max_utilization=0.97) for name in ALONE["A"]}
    shares = {name: 1 / 8 + (0.0005 if i % 2 else -0.0005) for i, name in enumerate(ALONE["A"])}
    warm, history, spread = Warm(), [], []
    profile = queue_profile(100.0)
    for _ in range(rounds):
        loads = {name: 800 * load * share for name, share in shares.items()}
        # The relative slope ρ/(1 − ρ) of the theory is that of 1/(1 − ρ): the idle part is left out.
        seen = {name: Observed(80 / (1 - at / 100), at) for name, at in loads.items()}
        history.append(seen)
        observed = history[max(0, len(history) - 1 - delay)]
        problem = talk(
            demand_rps={"A": {KEY: 800 * load}},
            network_ms=ALONE,
            engines=engines,
            eligible={("A", KEY): frozenset(ALONE["A"])},
            previous_shares={"A": {KEY: shares}},
            observed=observed,
            tuning=tuning,
        )
        shares = dict(plan(problem, "feedback", warm).shares["A"][KEY])
        spread.append(max(shares.values()) - min(shares.values()))
        if spread[-1] > 0.05:
            return float("inf")
    assert profile.capacity_rps == 100
    return float(np.mean(spread[-40:]) / np.mean(spread[:40]))


@pytest.mark.parametrize(
    ("delay", "alpha", "limit"),
    [(1, 1.0, 1.0), (2, 1.0, 0.618), (5, 1.0, 0.285), (2, 0.3, 0.537), (5, 0.3, 0.239)],
)
def test_feedback_is_calm_below_its_stability_limit_and_oscillates_above(delay, alpha, limit):
    """x ← x − G·x(t − d) is stable iff G < 2·sin(π/(2(2d + 1))); smoothing narrows it (optimizer docs)."""
    assert swing(0.85 * limit, delay, alpha, 250) < 0.7
    assert swing(1.2 * limit, delay, alpha, 250) > 1.5
