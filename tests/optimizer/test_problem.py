"""Bad input is refused by the name of the field; odd input gives a defined result."""

import math

import pytest

from optimizer import SHED, Engine, Key, Problem, ProblemError, Profile, plan
from tests.optimizer.fleets import CAPACITY, DEMAND, KEY, RTT, queue_profile, talk


def engine(**changes):
    return {**talk().engines, "b": Engine(queue_profile(100.0), **{"max_utilization": 0.9, **changes})}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"demand_rps": {"A": {KEY: math.nan}}}, "demand_rps[A]"),
        ({"demand_rps": {"A": {KEY: -1.0}}}, "demand_rps[A]"),
        ({"demand_rps": {"A": {"nobody/knows": 1.0}}}, "demand_rps[A][nobody/knows]"),
        ({"network_ms": {**RTT, "A": {"a": math.inf, "b": 1, "c": 1}}}, "network_ms[A][a]"),
        ({"network_ms": {**RTT, "A": {"a": 1.0}}}, "network_ms[A][b]"),
        ({"engines": engine(penalty=0.0)}, "engines[b].penalty"),
        ({"engines": engine(penalty=1.5)}, "engines[b].penalty"),
        ({"engines": engine(ready_replicas=-1)}, "engines[b].ready_replicas"),
        ({"engines": engine(max_utilization=0.99)}, "engines[b]"),
        ({"engines": {**talk().engines, SHED: Engine(queue_profile(1.0))}}, "engines"),
        ({"keys": {KEY: Key(kappa=math.nan)}}, "keys[" + KEY + "].kappa"),
        ({"keys": {KEY: Key(work={"a": 0.0})}}, "work[a]"),
        ({"eligible": {("A", KEY): frozenset(["ghost"])}}, "eligible[A"),
        ({"previous_shares": {"A": {KEY: {"a": 0.4}}}}, "previous_shares[A]"),
        ({"max_step": 0.0}, "max_step"),
    ],
)
def test_an_invalid_value_is_refused_with_its_field(changes, field):
    with pytest.raises(ProblemError) as refused:
        talk(**changes)
    assert field in str(refused.value)


def test_an_unknown_policy_is_refused_with_the_known_ones():
    with pytest.raises(ProblemError, match="waterfall"):
        plan(talk(), "magic")


def test_a_fleet_without_engines_refuses_everything_and_says_why():
    result = plan(talk(engines={}, eligible={}))
    assert result.shares["A"][KEY] == {SHED: 1.0}
    assert "no engine" in result.unserved["A"][KEY]


def test_without_any_capacity_every_row_is_unserved_not_an_error():
    result = plan(talk(engines={name: Engine(queue_profile(c), 0.0) for name, c in CAPACITY.items()}))
    assert result.shares["B"][KEY] == {SHED: 1.0}
    assert "zero capacity" in result.unserved["B"][KEY]


def test_zero_demand_still_gets_shares():
    result = plan(talk(demand_rps={f: {KEY: 0.0} for f in DEMAND}))
    assert result.shares["A"][KEY] == {"a": 1.0}


def test_one_row_without_demand_keeps_its_previous_shares():
    before = {f: {KEY: {"a": 0.5, "b": 0.5}} for f in DEMAND}
    result = plan(talk(demand_rps={**DEMAND, "C": {KEY: 0.0}}, previous_shares=before))
    assert result.moved["C"][KEY] == 0.0


def test_where_nobody_asks_for_anything_the_shares_that_stay_have_no_gap():
    before = {f: {KEY: {"a": 0.5, "b": 0.25, "c": 0.25}} for f in DEMAND}
    result = plan(talk(demand_rps={f: {KEY: 0.0} for f in DEMAND}, previous_shares=before))
    assert set(result.moved["B"].values()) == {0.0}
    assert result.gap < 1e-3


def test_an_engine_nobody_may_use_is_reported_idle():
    result = plan(talk(eligible={(f, KEY): frozenset("ab") for f in DEMAND}))
    assert result.engines["c"].load_rps == 0.0
    assert result.engines["c"].capacity_rps > 0


@pytest.mark.parametrize("rate", [1e-9, 1e9])
def test_extreme_demand_gives_a_defined_plan(rate):
    result = plan(talk(demand_rps={**DEMAND, "A": {KEY: rate}}))
    assert result.feasible
    assert sum(result.shares["A"][KEY].values()) == 1.0


def test_tiny_previous_shares_are_accepted():
    before = {f: {KEY: {"a": 1.0 - 1e-9, "b": 1e-9}} for f in DEMAND}
    assert plan(talk(previous_shares=before)).feasible


def test_one_engine_and_one_front_end_are_a_fleet():
    result = plan(
        Problem(
            demand_rps={"A": {KEY: 10.0}},
            network_ms={"A": {"a": 1.0}},
            engines={"a": Engine(queue_profile(100.0), max_utilization=0.9)},
            keys={KEY: Key()},
            eligible={("A", KEY): frozenset("a")},
        )
    )
    assert result.shares == {"A": {KEY: {"a": 1.0}}}
    assert result.second_best["A"][KEY] == {}


def test_models_on_different_engines_do_not_touch_each_other():
    other = "meta-llama/Llama-3.1-8B/batch"
    alone = plan(talk())
    both = plan(
        talk(
            demand_rps={f: {KEY: row[KEY], other: 5.0} for f, row in DEMAND.items()},
            network_ms={f: {**row, "d": 5.0} for f, row in RTT.items()},
            engines={**talk().engines, "d": Engine(queue_profile(100.0), max_utilization=0.9)},
            keys={KEY: Key(), other: Key()},
            eligible={
                **{(f, KEY): frozenset("abc") for f in DEMAND},
                **{(f, other): frozenset("d") for f in DEMAND},
            },
        )
    )
    assert {f: rows[KEY] for f, rows in both.shares.items()} == {
        f: rows[KEY] for f, rows in alone.shares.items()
    }


def test_a_plan_is_json_with_null_for_what_is_infinite():
    import json

    plain = json.loads(json.dumps(plan(talk(), "nearest").to_json(), allow_nan=False))
    assert plain["objective_ms"] is None
    assert plain["feasible"] is False
    assert set(plan(talk()).to_json()) >= {
        "objective_ms",
        "lower_bound_ms",
        "gap",
        "shares",
        "engines",
        "e2e_ms",
        "exact",
        "moved",
        "solve_ms",
    }


def test_a_slow_engine_is_slow_in_its_curve_and_in_its_capacity():
    healthy, ill = (
        plan(talk()),
        plan(talk(engines={**talk().engines, "c": Engine(queue_profile(80.0), penalty=0.5)})),
    )
    assert ill.engines["c"].capacity_rps == pytest.approx(0.5 * 0.9 * 80)
    assert ill.engines["c"].load_rps < 0.6 * healthy.engines["c"].load_rps


def test_a_profile_near_its_pole_is_refused():
    with pytest.raises(ProblemError, match="λmax"):
        talk(
            engines={
                "a": Engine(
                    Profile.parametric(capacity_rps=27.9, lambda_max_rps=28, t0_ms=9), max_utilization=1.0
                )
            },
            eligible={},
            demand_rps={},
        )
