"""Every share and every zero has one line whose arithmetic can be done again."""

import re

import pytest

from optimizer import SHED, Engine, engine_price_range, explain, plan, replica_value
from tests.optimizer.fleets import CAPACITY, DEMAND, KEY, queue_profile, talk

BEFORE = {f: {KEY: {"a": 0.5, "b": 0.3, "c": 0.2}} for f in DEMAND}


@pytest.mark.parametrize("before", [None, BEFORE], ids=["fresh", "with history"])
def test_every_pair_is_explained_and_the_inequality_of_its_kind_holds(before):
    problem = talk(previous_shares=before)
    reasons = explain(problem, plan(problem))
    assert len(reasons) == 9
    for reason in reasons:
        assert reason.cost_ms == pytest.approx(
            reason.network_ms + reason.idle_ms + reason.work * reason.engine_price_ms
        )
        cost, row, churn = reason.cost_ms, reason.row_price_ms, reason.churn_ms
        holds = {
            "more": cost + churn == pytest.approx(row, abs=0.05),
            "some": cost == pytest.approx(row, abs=0.05),
            "kept": row - churn - 0.05 <= cost <= row + 0.05,
            "none": cost + churn >= row - 0.05,
        }
        assert holds[reason.relation], reason.text


def test_the_sum_can_be_read_off_the_line():
    problem = talk()
    for reason in explain(problem, plan(problem)):
        network, idle, work, price, cost = map(
            float,
            re.search(
                r"([\d.]+) network \+ ([\d.]+) idle \+ ([\d.]+) × ([\d.]+) price = ([\d.]+) ms", reason.text
            ).groups(),
        )
        assert network + idle + work * price == pytest.approx(cost, abs=0.2)


def test_refused_and_unserved_traffic_is_explained():
    short = talk(demand_rps={f: {KEY: 2 * row[KEY]} for f, row in DEMAND.items()})
    assert any(r.destination == SHED and "full" in r.text for r in explain(short, plan(short)))
    dead = talk(engines={name: Engine(queue_profile(c), 0.0) for name, c in CAPACITY.items()})
    assert all(r.relation == "unserved" for r in explain(dead, plan(dead)))


def test_one_row_can_be_asked_for():
    problem = talk()
    assert {r.frontend for r in explain(problem, plan(problem), "B", KEY)} == {"B"}


def test_a_price_is_the_change_of_the_optimum_on_either_side():
    problem = talk()
    result = plan(problem)
    for name in "abc":
        low, high = engine_price_range(problem, name)
        assert low - 1 <= result.engines[name].price_ms <= high + 1


def test_one_more_replica_saves_what_planning_with_it_saves():
    problem = talk()
    value = replica_value(problem, plan(problem), "c")
    more = {**problem.engines, "c": Engine(queue_profile(80.0), 2.0, max_utilization=0.97)}
    assert value.saves_ms == pytest.approx(
        plan(problem).objective_ms - plan(talk(engines=more)).objective_ms, rel=1e-6
    )
