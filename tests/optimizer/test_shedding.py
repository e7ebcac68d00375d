"""Traffic is refused last in priority, alike across front-ends, and only what must be."""

import pytest

from optimizer import SHED, Engine, Key, plan, replan
from tests.optimizer.fleets import RTT, queue_profile, talk

MODEL = "meta-llama/Llama-3.3-70B-Instruct"
GOLD, SILVER, BATCH = (f"{MODEL}/{name}" for name in ("gold", "silver", "batch"))
KEYS = {GOLD: Key(priority=100), SILVER: Key(priority=50), BATCH: Key(priority=1)}


def overloaded(gold=30.0, silver=30.0, batch=60.0, **changes):
    demand = {f: {GOLD: gold, SILVER: silver, BATCH: batch} for f in RTT}
    rows = {(f, k): frozenset("abc") for f in RTT for k in KEYS}
    return talk(**{"demand_rps": demand, "keys": KEYS, "eligible": rows, **changes})


def refused(result, key):
    return [result.shares[f][key].get(SHED, 0.0) for f in sorted(RTT)]


def test_the_lowest_priority_is_refused_first_and_alike_everywhere():
    result = plan(overloaded())
    capacity = sum(engine.capacity_rps for engine in result.engines.values())
    assert refused(result, GOLD) == refused(result, SILVER) == [0.0] * 3
    assert refused(result, BATCH) == pytest.approx([(360 - capacity) / 180] * 3, abs=1e-3)


def test_the_next_priority_follows_only_when_the_lowest_is_all_refused():
    result = plan(overloaded(gold=80.0, silver=80.0))
    assert refused(result, BATCH) == [1.0] * 3
    assert refused(result, GOLD) == [0.0] * 3
    assert refused(result, SILVER) == pytest.approx([refused(result, SILVER)[0]] * 3, abs=1e-3)


def test_what_was_refused_is_served_again_once_it_fits():
    crowded = plan(overloaded())
    calm = {f: {GOLD: 20.0, SILVER: 20.0, BATCH: 20.0} for f in RTT}
    found = replan(overloaded(demand_rps=calm, previous_shares=crowded.shares))
    assert found.decision.publish
    assert refused(found.plan, BATCH) == [0.0] * 3


def test_the_last_of_a_refusal_ends_though_others_have_nobody_to_serve_them():
    none_there = Engine(queue_profile(100.0), 0.0)
    problem = talk(
        demand_rps={"A": {GOLD: 50.0}, "B": {GOLD: 50.0}},
        keys=KEYS,
        network_ms={f: {"a": 1.0, "b": 1.0} for f in "AB"},
        engines={"a": none_there, "b": Engine(queue_profile(100.0))},
        eligible={("A", GOLD): frozenset("a"), ("B", GOLD): frozenset("ab")},
        previous_shares={"A": {GOLD: {"a": 1.0}}, "B": {GOLD: {"b": 0.993, SHED: 0.007}}},
    )
    found = replan(problem)
    assert found.decision.publish
    assert found.plan.shares["B"][GOLD] == {"b": 1.0}


def test_a_front_end_with_capacity_of_its_own_does_not_share_others_want():
    rows = {(f, k): frozenset("abc" if f == "C" else "ab") for f in RTT for k in KEYS}
    demand = {f: {GOLD: 30.0, SILVER: 20.0, BATCH: 20.0 if f == "C" else 70.0} for f in RTT}
    result = plan(overloaded(eligible=rows, demand_rps=demand))
    a, b, c = refused(result, BATCH)
    assert a == pytest.approx(b, abs=1e-3)
    assert a > 0.1
    assert c == 0.0


def test_all_that_fits_is_served():
    result = plan(overloaded())
    for engine in result.engines.values():
        assert engine.load_rps == pytest.approx(engine.capacity_rps, rel=1e-4)


def test_extra_work_of_moved_sessions_refuses_nobody():
    before = plan(talk()).shares
    # 299.9 of 300 work/s: the extra work of a move would not fit beside it.
    demand = {
        f: {k: 97 * 2.8 / 250 * rate for k, rate in row.items()} for f, row in talk().demand_rps.items()
    }
    result = plan(talk(demand_rps=demand, previous_shares=before))
    assert result.shed_rps < 1e-3


def test_work_decides_what_a_refused_request_is_worth():
    keys = {GOLD: Key(priority=1, work=dict.fromkeys("abc", 4.0)), BATCH: Key(priority=0)}
    demand = {f: {GOLD: 20.0, BATCH: 30.0} for f in RTT}
    rows = {(f, k): frozenset("abc") for f in RTT for k in keys}
    result = plan(talk(demand_rps=demand, keys=keys, eligible=rows))
    assert refused(result, GOLD) == [0.0] * 3
    assert min(refused(result, BATCH)) > 0


def test_six_priorities_keep_their_order():
    keys = {f"{MODEL}/c{i}": Key(priority=i) for i in range(6)}
    rows = {(f, k): frozenset("a") for f in RTT for k in keys}
    engines = {"a": Engine(queue_profile(100.0), max_utilization=0.9)}
    result = plan(
        talk(
            demand_rps={f: dict.fromkeys(keys, 10.0) for f in RTT}, keys=keys, eligible=rows, engines=engines
        )
    )
    lost = [refused(result, f"{MODEL}/c{i}") for i in range(6)]
    assert lost[:3] == [[1.0] * 3] * 3
    assert lost[4:] == [[0.0] * 3] * 2
