"""Every share and every zero has one line whose arithmetic can be done again."""

import dataclasses
import re

import pytest

from optimizer import SHED, Engine, Key, Profile, engine_price_range, explain, plan, replica_value
from tests.optimizer.fleets import CAPACITY, DEMAND, KEY, flat_profile, queue_profile, talk

BATCH = "meta-llama/Llama-3.3-70B-Instruct/batch"
BEFORE = {f: {KEY: {"a": 0.5, "b": 0.3, "c": 0.2}} for f in DEMAND}
TWICE = {f: {KEY: 2 * row[KEY]} for f, row in DEMAND.items()}
PARTLY = {("A", KEY): frozenset("a"), ("B", KEY): frozenset("ab"), ("C", KEY): frozenset("bc")}
CALM = {f: {KEY: 20.0} for f in DEMAND}


def engines(**changes):
    """The engines of the talk; changes by name."""
    fields = {name: Engine(queue_profile(c), max_utilization=0.97) for name, c in CAPACITY.items()}
    return {name: dataclasses.replace(e, **changes.get(name, {})) for name, e in fields.items()}


FLEETS = {
    "fresh": {},
    "with history": {"previous_shares": BEFORE},
    "partly eligible": {"eligible": PARTLY, "demand_rps": {"A": {KEY: 60}, "B": {KEY: 70}, "C": {KEY: 50}}},
    "partly eligible, with history": {"eligible": PARTLY, "demand_rps": CALM, "previous_shares": BEFORE},
    "engine lost": {
        "engines": engines(b={"ready_replicas": 0.0}),
        "demand_rps": CALM,
        "previous_shares": BEFORE,
    },
    "largest shares": {"engines": engines(a={"max_share": 0.6}, b={"max_share": 0.6}, c={"max_share": 0.6})},
    "largest share, with history": {"engines": engines(c={"max_share": 0.4}), "previous_shares": BEFORE},
    "refusing": {"demand_rps": TWICE},
    "refusing, with history": {"demand_rps": TWICE, "previous_shares": BEFORE},
    "refusing, partly eligible": {"demand_rps": TWICE, "eligible": PARTLY},
    "no demand": {"demand_rps": {**CALM, "A": {KEY: 0.0}}, "previous_shares": BEFORE},
}
"""What differs from the fleet of the talk."""

SUM = re.compile(r"([\d.]+) network \+ ([\d.]+) idle \+ ([\d.e-]+) × ([\d.]+) price = ([\d.]+) ms")
DIFFERENCE = re.compile(r"; (?:with ([\d.]+) to move )?([\d.]+) ms (dearer|cheaper) than the row's ([\d.]+)")
EQUATION = re.compile(r"; ([\d.]+)(?: \+ ([\d.]+) to move)? = ([\d.]+) ms")
BETWEEN = re.compile(r"between ([\d.]+) and ([\d.]+) ms")


def numbers(match):
    return [float(group) for group in match.groups(default="0") if re.match(r"[\d.]", group)]


def check_line(reason):
    """Do the arithmetic of one line again, from its text alone; a tenth is the last digit shown."""
    network, idle, work, price, cost = numbers(SUM.search(reason.text))
    assert network + idle + work * price == pytest.approx(cost, abs=0.16)
    if found := DIFFERENCE.search(reason.text):
        move, away, row = numbers(found)
        signed = away if found[3] == "dearer" else -away
        assert cost + move - row == pytest.approx(signed, abs=0.21)
    elif found := EQUATION.search(reason.text):
        left, move, row = numbers(found)
        assert left == cost
        assert left + move == pytest.approx(row, abs=0.21)
    elif found := BETWEEN.search(reason.text):
        low, high = numbers(found)
        assert low - 0.11 <= cost <= high + 0.11
    else:
        assert reason.relation in ("full", "settled", "merged")


@pytest.mark.parametrize("changes", FLEETS.values(), ids=FLEETS)
def test_every_pair_is_explained_and_the_inequality_of_its_kind_holds(changes):
    problem = talk(**changes)
    result = plan(problem)
    reasons = explain(problem, result)
    told = {(r.frontend, r.destination) for r in reasons if r.destination != SHED}
    assert told == {(f, e) for f in DEMAND for e in CAPACITY}
    for reason in reasons:
        if reason.relation in ("barred", "empty", "shed"):
            continue
        check_line(reason)
        cost, row, churn = reason.cost_ms, reason.row_price_ms, reason.churn_ms
        holds = {
            "more": cost + churn == pytest.approx(row, abs=0.05),
            "some": cost == pytest.approx(row, abs=0.05),
            "kept": row - churn - 0.05 <= cost <= row + 0.05,
            "taken": row - churn - 0.05 <= cost <= row + 0.05,
            "limited": cost <= row + 0.05,
            "none": cost + churn >= row - 0.05,
            "left": cost >= row - 0.05,
            "settled": problem.demand_rps[reason.frontend][KEY] == 0,
        }
        assert holds[reason.relation], reason.text
        costs = {r.destination: r.cost_ms for r in reasons if r.frontend == reason.frontend and r.cost_ms}
        others = [ms for name, ms in costs.items() if name != reason.destination]
        if reason.share > 0 and others and reason.relation != "settled":
            assert reason.runner_up_ms == pytest.approx(min(others), abs=0.02)
            assert f"runner-up {reason.runner_up} at {costs[reason.runner_up]:.1f} ms" in reason.text


def test_an_engine_that_may_not_serve_a_row_has_a_line_with_the_rule():
    problem = talk(eligible=PARTLY)
    result = plan(problem)
    (line,) = [r for r in explain(problem, result, "A", KEY) if r.destination == "b"]
    assert (line.relation, line.share) == ("barred", 0.0)
    assert line.text.endswith("→ b 0%: may not serve it: not eligible")
    named = explain(problem, result, "A", KEY, barred={("A", KEY): {"b": "residency: us only"}})
    assert [r.text.partition(": ")[2] for r in named if r.relation == "barred"] == [
        "may not serve it: residency: us only"
    ]


def test_an_engine_at_its_largest_share_says_what_it_saves_and_the_limit():
    problem = talk(**FLEETS["largest shares"])
    limited = [r for r in explain(problem, plan(problem)) if r.relation == "limited"]
    assert {(r.frontend, r.destination) for r in limited} == {("A", "a"), ("B", "b"), ("C", "c")}
    assert all("at its largest share, 60.00%" in r.text for r in limited)


def test_an_engine_without_replicas_says_so_in_its_line():
    problem = talk(**FLEETS["engine lost"])
    line = next(r for r in explain(problem, plan(problem), "A", KEY) if r.destination == "b")
    assert line.relation == "empty"
    assert "no capacity now: 0 ready replicas × 97.00 work/s = 0" in line.text


REFUSED = re.compile(r"refuses ([\d.]+)%: ([\d.]+) of ([\d.]+) requests/s")
ACCOUNT = re.compile(
    r"carry ([\d.]+) work/s of higher priority \+ ([\d.]+) of its own \(\d+\) \+ ([\d.]+) of lower"
    r" = ([\d.]+) of ([\d.]+)"
)
ALIKE = re.compile(r"its priority there are refused ([\d.]+)% to ([\d.]+)%")
PRICED = re.compile(r"one more would cost ([\d.]+) ms at least and refusing it is priced at ([\d.]+),")


def refusals(problem):
    lines = [r for r in explain(problem, plan(problem)) if r.relation == "shed"]
    assert lines
    return lines


def check_refusal(reason, full=True):
    """The arithmetic of a line about refused traffic, from its text."""
    percent, refused, demand = numbers(REFUSED.search(reason.text))
    assert refused / demand == pytest.approx(percent / 100, abs=1e-4)
    higher, own, lower, carried, capacity = numbers(ACCOUNT.search(reason.text))
    assert higher + own + lower == pytest.approx(carried, abs=0.021)
    assert (carried == pytest.approx(capacity, rel=1e-3)) == full
    assert lower == 0.0
    cost, refusing = numbers(PRICED.search(reason.text))
    assert cost < refusing


@pytest.mark.parametrize("name", [name for name in FLEETS if name.startswith("refusing")])
def test_refused_traffic_is_accounted_for_by_engines_that_are_full(name):
    for reason in refusals(talk(**FLEETS[name])):
        check_refusal(reason)
        percent, _, _ = numbers(REFUSED.search(reason.text))
        least, _ = numbers(ALIKE.search(reason.text))
        assert least == pytest.approx(percent, abs=0.1)


def test_refused_traffic_of_a_lower_priority_gives_way_to_the_higher():
    rows = [(f, k) for f in DEMAND for k in (KEY, BATCH)]
    problem = talk(
        demand_rps={f: {KEY: 100.0, BATCH: 80.0} for f in DEMAND},
        keys={KEY: Key(priority=10), BATCH: Key()},
        eligible={row: frozenset(CAPACITY) for row in rows},
    )
    for reason in refusals(problem):
        check_refusal(reason)
        higher, own, *_ = numbers(ACCOUNT.search(reason.text))
        assert (higher > 0, own > 0) == ((True, False) if reason.key == BATCH else (False, True))
    full = [r for r in explain(problem, plan(problem)) if r.relation == "full"]
    assert {r.key for r in full} == {BATCH}
    assert all("no room: 97.00 of 97.00" in r.text for r in full if r.destination == "a")


def test_traffic_refused_for_a_largest_share_names_the_engine_that_has_room():
    problem = talk(
        demand_rps={"A": {KEY: 50.0}},
        eligible={("A", KEY): frozenset("a")},
        engines=engines(a={"max_share": 0.6}),
    )
    (reason,) = refusals(problem)
    check_refusal(reason, full=False)
    assert "a may have 60.00% of it at most" in reason.text


def test_unserved_traffic_is_explained_with_every_engine():
    dead = talk(engines={name: Engine(queue_profile(c), 0.0) for name, c in CAPACITY.items()})
    reasons = explain(dead, plan(dead))
    assert {r.relation for r in reasons} == {"unserved", "empty"}
    assert len(reasons) == 3 + 9


def test_one_row_can_be_asked_for():
    problem = talk()
    assert {r.frontend for r in explain(problem, plan(problem), "B", KEY)} == {"B"}


def test_a_price_is_the_change_of_the_optimum_on_either_side():
    problem = talk()
    result = plan(problem)
    for name in "abc":
        low, high = engine_price_range(problem, name)
        assert low - 1 <= result.engines[name].price_ms <= high + 1


def knee_profile(capacity):
    """120 ms up to half of the capacity, then steeper than any distance of the talk."""
    return Profile.parametric(
        capacity_rps=capacity,
        lambda_max_rps=10 * capacity,
        ttft_base_ms=120,
        ttft_knee_rps=capacity / 2,
        ttft_slope=90,
    )


@pytest.mark.parametrize(
    ("profile", "home"), [(flat_profile, 97.0), (knee_profile, 50.0)], ids=["at its capacity", "at a kink"]
)
def test_a_price_that_is_not_unique_has_a_range_from_less_load_to_going_elsewhere(profile, home):
    problem = talk(profile=profile, demand_rps={"A": {KEY: home}, "B": {KEY: 20.0}, "C": {KEY: 20.0}})
    price = plan(problem).engines["a"].price_ms
    low, high = engine_price_range(problem, "a")
    assert low == pytest.approx(0.0, abs=1.0)
    assert high == pytest.approx(98.0 - 1.0, abs=0.02)
    assert low - 0.1 <= price <= high + 0.1
    more = talk(profile=profile, demand_rps={"A": {KEY: home + 1}, "B": {KEY: 20.0}, "C": {KEY: 20.0}})
    assert engine_price_range(more, "a") == pytest.approx((high, high), abs=0.02)


def test_where_traffic_is_refused_the_price_goes_up_to_that_of_refusing_more():
    problem = talk(demand_rps=TWICE)
    result = plan(problem)
    line = next(r for r in explain(problem, result, "A", KEY) if r.relation == "shed")
    _, refusing = numbers(PRICED.search(line.text))
    for name in CAPACITY:
        low, high = engine_price_range(problem, name)
        assert low <= result.engines[name].price_ms <= high
    low, high = engine_price_range(problem, "a")
    network, idle = 1.0, 120.0
    assert network + idle + high == pytest.approx(refusing, rel=1e-3)


def test_one_more_replica_saves_what_planning_with_it_saves():
    problem = talk()
    value = replica_value(problem, plan(problem), "c")
    more = {**problem.engines, "c": Engine(queue_profile(80.0), 2.0, max_utilization=0.97)}
    assert value.saves_ms == pytest.approx(
        plan(problem).objective_ms - plan(talk(engines=more)).objective_ms, rel=1e-6
    )
