"""The plan does not depend on where the solver starts, nor on which solver answers."""

import dataclasses
import itertools

import numpy as np
import pytest

import optimizer.lp
from optimizer import Engine, Key, Profile, Warm, plan
from tests.optimizer.fleets import DEMAND, KEY, queue_profile, talk


def fleet(seed, previous=None):
    """Twelve equal engines in four places: many plans cost nearly the same."""
    rng = np.random.default_rng(seed)
    engines = {f"e{i:02d}": Engine(queue_profile(20.0), max_utilization=0.9) for i in range(12)}
    frontends = [f"f{i}" for i in range(6)]
    network = {
        f: {e: 1.0 + 40 * ((i + j) % 4) for j, e in enumerate(engines)} for i, f in enumerate(frontends)
    }
    return talk(
        demand_rps={f: {KEY: float(rng.uniform(10, 40))} for f in frontends},
        network_ms=network,
        engines=engines,
        eligible={(f, KEY): frozenset(engines) for f in frontends},
        previous_shares=previous,
    )


@pytest.mark.parametrize("seed", range(4))
def test_any_warm_start_gives_the_same_integers(seed):
    problem = fleet(seed, previous=plan(fleet(seed + 50)).shares)
    cold = plan(problem)
    for other in range(3):
        warm = Warm()
        plan(fleet(100 + other), warm=warm)
        assert plan(problem, warm=warm).shares == cold.shares


def test_the_order_in_which_things_are_written_does_not_matter():
    problem = fleet(1)
    turned = dataclasses.replace(
        problem,
        demand_rps=dict(reversed(problem.demand_rps.items())),
        network_ms={f: dict(reversed(row.items())) for f, row in reversed(problem.network_ms.items())},
        engines=dict(reversed(problem.engines.items())),
    )
    assert plan(turned).shares == plan(problem).shares


def test_without_highs_cbc_gives_the_same_plan(monkeypatch):
    expected = plan(talk())
    monkeypatch.setattr(optimizer.lp, "highspy", None)
    result = plan(talk())
    assert result.objective_ms == pytest.approx(expected.objective_ms, rel=1e-6)
    assert any("cbc" in note for note in result.notes)


def test_without_time_there_is_still_a_plan_with_its_gap():
    ticks = itertools.count()
    result = plan(talk(), warm=Warm(clock=lambda: float(next(ticks))), time_limit_s=1e-9)
    assert not result.exact
    for f in DEMAND:
        assert sum(result.shares[f][KEY].values()) == 1.0


def test_whenever_the_time_is_over_nothing_is_refused_that_fits():
    """An engine can carry a third of its sessions only: two thirds must move, at a price."""
    profile = Profile.parametric(capacity_rps=50, lambda_max_rps=60, t0_ms=20, ttft_base_ms=30)
    problem = talk(
        demand_rps={"A": {KEY: 150.0}, "B": {KEY: 80.0}, "C": {KEY: 80.0}},
        engines={name: Engine(profile, 4.0, penalty=0.3 if name == "a" else 1.0) for name in "abc"},
        previous_shares={f: {KEY: {f.lower(): 1.0}} for f in DEMAND},
        keys={KEY: Key(output_tokens=8)},
    )
    exact = []
    for looks in range(2, 12):
        clock = iter([0.0] * looks)
        result = plan(problem, warm=Warm(clock=lambda clock=clock: next(clock, 1e9)), time_limit_s=1.0)
        exact.append(result.exact)
        assert result.shed_rps == 0.0
        assert result.shares["B"][KEY] == {"b": 1.0}
    assert exact[:2] == [False, False]
    assert exact[-1]


def test_a_solver_that_always_fails_leaves_shares_by_capacity(monkeypatch):
    def fail(self, deadline=0.0):
        return optimizer.lp.Solution(optimizer.lp.Status.NONE, np.zeros(0), np.zeros(0), "cbc")

    monkeypatch.setattr(optimizer.lp.Model, "solve", fail)
    result = plan(talk())
    assert result.shares["A"][KEY]["a"] == pytest.approx(100 / 280, abs=1e-5)
    assert "every solver failed" in result.notes


def test_an_unknown_status_is_cured_by_a_cold_start(monkeypatch):
    real, seen = optimizer.lp.Model._highs, []

    def flaky(self, rung, left):
        seen.append(rung)
        solution = real(self, rung, left)
        broken = rung == "warm" and len(seen) == 1
        return dataclasses.replace(solution, status=optimizer.lp.Status.NONE) if broken else solution

    monkeypatch.setattr(optimizer.lp.Model, "_highs", flaky)
    result = plan(talk())
    assert result.exact
    assert seen[:2] == ["warm", "cold"]
    assert any("cold" in note for note in result.notes)


def test_planning_writes_nothing_to_standard_output(capfd):
    plan(talk())
    assert capfd.readouterr().out == ""
