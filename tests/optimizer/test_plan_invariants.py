"""What holds for every plan, whatever the fleet."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from optimizer import POLICIES, SHED, UNITS, plan
from tests.optimizer.strategies import problems

few = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking a fleet takes minutes
)


def engine_loads(problem, shares):
    loads = dict.fromkeys(problem.engines, 0.0)
    for f, k in problem.rows:
        for name, share in shares[f][k].items():
            if name != SHED:
                loads[name] += share * problem.demand_rps[f][k] * problem.keys[k].work.get(name, 1.0)
    return loads


@given(problems())
@few
def test_shares_are_whole_units_that_sum_to_one(problem):
    for name in POLICIES:
        shares = plan(problem, name).shares
        assert sorted((f, k) for f, rows in shares.items() for k in rows) == problem.rows
        for f, k in problem.rows:
            units = [share * UNITS for share in shares[f][k].values()]
            assert all(unit == int(unit) > 0 for unit in units)
            assert sum(units) == UNITS


@given(problems())
@few
def test_no_policy_ever_uses_a_pair_that_is_not_eligible(problem):
    for name in POLICIES:
        shares = plan(problem, name).shares
        for f, k in problem.rows:
            assert set(shares[f][k]) - {SHED} <= problem.eligible[f, k]


@given(problems())
@few
def test_the_global_plan_keeps_every_capacity_and_largest_share(problem):
    result = plan(problem)
    assert result.feasible
    for name, load in engine_loads(problem, result.shares).items():
        assert load <= problem.engines[name].capacity_rps * (1 + 1e-6) + 1e-9
    for f, k in problem.rows:
        for name, share in result.shares[f][k].items():
            if name != SHED:
                assert share <= problem.engines[name].max_share + 2 / UNITS


@given(problems())
@few
def test_the_bound_is_below_the_objective_and_the_gap_small(problem):
    result = plan(problem)
    assert result.exact
    slack = 1e-6 * abs(result.objective_ms) + 1e-6
    assert result.lower_bound_ms <= result.objective_ms + slack or result.shed_rps > 0
    assert 0 <= result.gap <= 0.005


@given(problems(previous=False))
@few
def test_no_baseline_beats_the_global_plan_where_both_are_feasible(problem):
    best = plan(problem)
    for name in POLICIES:
        other = plan(problem, name)
        if other.feasible and other.shed_rps <= best.shed_rps + 1e-9:
            assert best.objective_ms <= other.objective_ms * (1 + 1e-3) + 0.02


@given(problems())
@few
def test_nothing_is_refused_while_an_eligible_engine_has_room(problem):
    result = plan(problem)
    loads = engine_loads(problem, result.shares)
    for f, k in problem.rows:
        if result.shares[f][k].get(SHED, 0.0) * problem.demand_rps[f][k] > 1e-3:
            for name in problem.eligible[f, k]:
                engine = problem.engines[name]
                full = loads[name] >= engine.capacity_rps * 0.999 - 1e-3
                assert full or result.shares[f][k].get(name, 0.0) >= engine.max_share - 1e-3


@given(problems())
@few
def test_the_retry_engine_is_another_eligible_one(problem):
    result = plan(problem)
    for f, rows in result.second_best.items():
        for k, row in rows.items():
            for engine, other in row.items():
                assert other != engine
                assert {engine, other} <= problem.eligible[f, k]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_answers_to_its_name(policy):
    from tests.optimizer.fleets import talk

    assert plan(talk(), policy).policy == policy
