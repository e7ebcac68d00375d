"""Traffic moves only when it pays, and as little as it can."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from optimizer import SHED, Engine, Key, Outcome, Warm, decide, explain, plan, replan
from optimizer.evaluate import evaluate
from optimizer.layout import build_rounds
from optimizer.publish import flow_of
from optimizer.replan import WHOLE
from optimizer.shedding import shed_prices
from tests.optimizer.fleets import DEMAND, KEY, RTT, queue_profile, talk
from tests.optimizer.strategies import problems

few = settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking a fleet takes minutes
)

AWAY = {f: {KEY: {"c": 1.0}} if f == "C" else {KEY: {"a": 0.6, "b": 0.4}} for f in DEMAND}


def two_regions(home_replicas=1.0, previous=None, load=0.3):
    """One front-end, its engine at 1 ms and another region's at 80 ms."""
    return talk(
        demand_rps={"A": {KEY: 100 * load}},
        network_ms={"A": {"a": 1.0, "b": 80.0}},
        engines={
            "a": Engine(queue_profile(100.0), home_replicas),
            "b": Engine(queue_profile(100.0)),
        },
        eligible={("A", KEY): frozenset("ab")},
        previous_shares=previous,
    )


def follow(problem, rounds, warm=None, **options):
    """Replan again and again on the same input; the moved fractions."""
    warm, moved = warm or Warm(), []
    shares = problem.previous_shares
    for _ in range(rounds):
        result = replan(dataclasses.replace(problem, previous_shares=shares), warm=warm, **options)
        if result.decision.publish:
            moved.append(max(m for rows in result.plan.moved.values() for m in rows.values()))
            shares = result.plan.shares
        else:
            moved.append(0.0)
    return moved, shares


def test_constant_input_never_moves_twice():
    moved, _ = follow(talk(previous_shares=AWAY), 8)
    assert moved[0] > 0
    assert moved[1:] == [0.0] * 7


def test_a_home_engine_that_comes_back_gets_all_its_traffic_back():
    away = plan(two_regions(home_replicas=0.0))
    assert away.shares["A"][KEY] == {"b": 1.0}
    for load in (0.1, 0.2):
        _, shares = follow(two_regions(previous=away.shares, load=load), 5)
        assert shares["A"][KEY] == {"a": 1.0}


def test_a_move_of_a_large_part_of_an_engine_is_planned_whole_and_certified():
    found = plan(two_regions(previous={"A": {KEY: {"b": 1.0}}}, load=0.6))
    assert found.shares["A"][KEY]["a"] == pytest.approx(0.599, abs=1e-3)
    assert found.exact
    assert found.gap < 1e-3


def two_homes(lost=False, previous=None):
    """Two front-ends, an engine near each; `lost`: A's is gone. Loaded so that moves have a price."""
    return talk(
        demand_rps={"A": {KEY: 40.0}, "B": {KEY: 40.0}},
        network_ms={"A": {"a": 1.0, "b": 41.0}, "B": {"a": 41.0, "b": 1.0}},
        engines={
            "a": Engine(queue_profile(100.0), 0.0 if lost else 1.0),
            "b": Engine(queue_profile(100.0)),
        },
        eligible={(f, KEY): frozenset("ab") for f in "AB"},
        previous_shares=previous,
    )


def test_all_traffic_goes_home_in_steps_and_no_other_moves_aside_meanwhile():
    away = plan(two_homes(lost=True)).shares
    warm, shares, way = Warm(), away, []
    for _ in range(5):
        found = replan(two_homes(previous=shares), warm=warm, max_step=0.3)
        if found.decision.publish:
            shares = found.plan.shares
            way.append((shares["A"][KEY]["a"], shares["B"][KEY]))
    assert [home for home, _ in way] == pytest.approx([0.3, 0.6, 0.9, 1.0], abs=1e-5)
    assert all(other == {"b": 1.0} for _, other in way)


def test_a_row_that_moves_altogether_is_explained_without_a_price_of_moving():
    away = plan(two_homes(lost=True)).shares
    back = two_homes(previous=away)
    found = replan(back).plan
    (reason,) = [r for r in explain(back, found, "A", KEY) if r.destination == "a"]
    assert reason.relation == "more"
    assert reason.churn_ms == 0.0
    assert reason.cost_ms == pytest.approx(reason.row_price_ms, abs=0.02)


def test_a_move_that_gains_less_than_the_threshold_is_not_published():
    best = plan(talk())
    near = {f: {k: dict(row) for k, row in rows.items()} for f, rows in best.shares.items()}
    near["B"][KEY] = {"b": 0.75, "c": 0.25}
    verdict = decide(near, best, talk(previous_shares=near))
    assert verdict.outcome is Outcome.NOT_WORTH
    assert verdict.gain_ms - verdict.churn_ms <= verdict.threshold_ms


def test_losing_an_engine_is_published_at_once_and_its_moves_are_free():
    before = plan(talk(demand_rps={**DEMAND, "B": {KEY: 40.0}}))
    lost = talk(
        demand_rps={**DEMAND, "B": {KEY: 40.0}},
        engines={**talk().engines, "b": Engine(queue_profile(100.0), 0.0)},
        previous_shares=before.shares,
    )
    result = replan(lost)
    assert result.decision.outcome is Outcome.FORCED
    assert "b" not in result.plan.shares["B"][KEY]
    free = plan(dataclasses.replace(lost, previous_shares=None))
    assert result.plan.objective_ms == pytest.approx(free.objective_ms, rel=5e-3)


def test_an_engine_over_its_capacity_is_relieved_at_once():
    nearest = plan(talk(), "nearest")
    assert replan(talk(previous_shares=nearest.shares)).decision.outcome is Outcome.FORCED


def test_moving_is_dearer_when_the_price_is_higher():
    def moved(gamma):
        keys = {KEY: Key(gamma_ms=gamma, kappa=0.0)}
        return plan(talk(keys=keys, previous_shares=AWAY)).moved["A"][KEY]

    steps = [moved(gamma) for gamma in (0.0, 50.0, 5000.0)]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[-1]


def test_traffic_without_sessions_moves_free_of_charge():
    free = plan(talk(keys={KEY: Key(has_session=False)}, previous_shares=AWAY))
    assert free.objective_ms == pytest.approx(plan(talk()).objective_ms, rel=1e-6)


def test_a_step_limit_bounds_the_move_but_never_refuses_traffic():
    before = plan(talk(demand_rps={**DEMAND, "B": {KEY: 60.0}}))
    limited = replan(talk(previous_shares=before.shares), max_step=0.05)
    assert limited.decision.publish
    assert limited.plan.shed_rps == 0
    assert limited.plan.feasible


def test_steps_reach_the_target_instead_of_stopping_short():
    far = {f: {KEY: {"a": 0.36, "b": 0.36, "c": 0.28}} for f in DEMAND}
    cheap = {KEY: Key(gamma_ms=1.0, kappa=0.0)}
    moved, shares = follow(talk(keys=cheap, previous_shares=far), 30, max_step=0.05)
    assert max(moved) <= 0.0501
    assert decide(shares, plan(talk()), talk(previous_shares=shares)).gain_ms <= 0.006 * 817.1


def test_a_plan_that_has_held_for_long_gives_way_to_the_optimum():
    far = {f: {KEY: {"a": 0.36, "b": 0.36, "c": 0.28}} for f in DEMAND}
    _, early = follow(talk(previous_shares=far), 3)
    _, late = follow(talk(previous_shares=far), 3, held_s=36_000)
    best = plan(talk())
    gains = [decide(shares, best, talk(previous_shares=shares)).gain_ms for shares in (early, late)]
    assert gains[0] > 0.05 * best.objective_ms
    assert gains[1] < 0.01 * best.objective_ms


def test_noise_in_a_quiet_fleet_moves_nothing_and_solves_nothing():
    rng, warm = np.random.default_rng(1), Warm()
    shares = plan(talk(), warm=warm).shares
    for _ in range(10):
        noise = {
            f: {KEY: rate * float(np.exp(rng.normal(0, 0.002)))}
            for f, rate in ((f, r[KEY]) for f, r in DEMAND.items())
        }
        result = replan(talk(demand_rps=noise, previous_shares=shares), warm=warm)
        assert not result.decision.publish
        assert result.plan is None


def test_the_price_check_never_hides_a_gain_that_the_program_would_publish():
    rng, warm = np.random.default_rng(2), Warm()
    shares = plan(talk(), warm=warm).shares
    for _ in range(30):
        noise = {f: {KEY: row[KEY] * float(np.exp(rng.normal(0, 0.05)))} for f, row in DEMAND.items()}
        problem = talk(demand_rps=noise, previous_shares=shares)
        result = replan(problem, warm=warm)
        if result.plan is None:
            assert not decide(shares, plan(problem), problem).publish


def test_small_leftovers_do_not_pile_up():
    rng, warm = np.random.default_rng(4), Warm()
    shares = plan(talk(), warm=warm).shares
    for _ in range(20):
        noise = {f: {KEY: row[KEY] * float(np.exp(rng.normal(0, 0.1)))} for f, row in DEMAND.items()}
        shares = plan(talk(demand_rps=noise, previous_shares=shares), warm=warm).shares
    assert sum(len(row) for rows in shares.values() for row in rows.values()) <= 3 * len(RTT)


def with_a_model_that_nobody_serves(demand, shares):
    """The talk's fleet beside another model whose only engine has no replica; its row keeps its shares."""
    base = talk()
    other = "meta-llama/Llama-3.1-8B-Instruct/interactive"
    return dataclasses.replace(
        base,
        demand_rps={f: {**demand[f], other: 0.0} for f in DEMAND},
        engines={**base.engines, "gone": Engine(queue_profile(10.0), 0.0)},
        network_ms={f: {**row, "gone": 1.0} for f, row in base.network_ms.items()},
        keys={**base.keys, other: Key()},
        eligible={**base.eligible, **{(f, other): frozenset({"gone"}) for f in DEMAND}},
        previous_shares={f: {**shares[f], other: {"gone": 1.0}} for f in DEMAND},
    )


def test_a_model_that_nobody_serves_moves_nobody_else():
    rng, warm, shares = np.random.default_rng(3), Warm(), plan(talk()).shares
    outcomes = []
    for _ in range(8):
        noise = {
            f: {KEY: rate * rng.normal(1.0, 0.005)} for f, rate in ((f, r[KEY]) for f, r in DEMAND.items())
        }
        found = replan(with_a_model_that_nobody_serves(noise, shares), warm=warm, max_step=0.2)
        outcomes.append(found.decision.publish)
        if found.decision.publish:
            shares = {f: {KEY: found.plan.shares[f][KEY]} for f in DEMAND}
    assert not any(outcomes[1:])
    assert not warm.unfinished
    assert not warm.whole


def paid_ms(problem, old, new):
    """Price of what moves between engines, ms per request; leaving refusal is free."""
    paid = total = 0.0
    for f, k in problem.rows:
        before, after = old[f][k], new[f][k]
        arrived = sum(max(0.0, share - before.get(e, 0.0)) for e, share in after.items() if e != SHED)
        served = max(0.0, before.get(SHED, 0.0) - after.get(SHED, 0.0))
        rate = problem.demand_rps[f][k]
        paid += rate * problem.keys[k].gamma_ms * max(0.0, arrived - served)
        total += rate
    return paid / max(total, 1e-12)


def cost_ms(problem, shares):
    """What shares cost on the true curves without movement, ms per request."""
    total = 0.0
    for round_ in build_rounds(problem)[0]:
        x, refused, _ = flow_of(round_, shares)
        cost = evaluate(round_, x, refused, shed_prices(round_))
        total += cost.latency + cost.shed
    return total / max(sum(map(sum, (row.values() for row in problem.demand_rps.values()))), 1e-12)


def with_sessions(problem, demand, shares):
    """The problem where every move between engines has a price."""
    keys = {
        name: dataclasses.replace(key, has_session=True, gamma_ms=5.0) for name, key in problem.keys.items()
    }
    return dataclasses.replace(problem, keys=keys, demand_rps=demand, previous_shares=shares)


@given(problems())
@few
def test_on_constant_input_no_round_but_the_first_moves_anything(problem):
    warm, shares = Warm(), problem.previous_shares
    for number in range(4):
        result = replan(dataclasses.replace(problem, previous_shares=shares), warm=warm)
        assert not (number and result.decision.publish), result.decision
        shares = result.plan.shares if result.decision.publish else shares


def movement_and_bound(problem, factors):
    """(what moves cost, the most that the inputs' variation pays for), ms per request, over rounds of demand.

    γ·ΣM ≤ f₁(w₀) − f_T(w_T) + Σ (fₜ(wₜ₋₁) − fₜ₋₁(wₜ₋₁)): gains pay for every move, and they sum up to that.
    A row that moves by more than `WHOLE` moves altogether, so of movement that part is paid at least. Rounds
    in which something must move are left out; a plan's gap is 0.1 % of the cost at most.
    """
    warm, shares, last = Warm(), plan(problem).shares, None
    paid = bound = 0.0
    for drawn in factors:
        each = iter(drawn)
        demand = {f: {k: rps * next(each) for k, rps in row.items()} for f, row in problem.demand_rps.items()}
        now = with_sessions(problem, demand, shares)
        result = replan(now, warm=warm)
        new = result.plan.shares if result.decision.publish else shares
        kept, cost = cost_ms(now, shares), cost_ms(now, new)
        if result.decision.outcome is Outcome.FORCED or not np.isfinite(kept):
            bound, last, shares = bound - (last or 0.0), None, new  # the sum ends here and begins again
            continue
        bound += kept - (last or 0.0)
        if result.decision.publish:
            paid += WHOLE * paid_ms(now, shares, new)
            bound += 1e-3 * kept
        shares, last = new, cost
    return paid, bound - (last or 0.0)


eight = st.lists(st.floats(0.3, 1.5), min_size=8, max_size=8)


@given(problems(previous=False), st.lists(eight, min_size=2, max_size=6))
@few
def test_movement_is_bounded_by_what_the_inputs_change(problem, factors):
    paid, bound = movement_and_bound(problem, factors)
    assert paid <= bound + 1e-6


def test_movement_under_noise_is_bounded_by_what_the_inputs_change():
    half = talk(demand_rps={f: {KEY: 0.5 * row[KEY]} for f, row in DEMAND.items()})
    factors = np.exp(np.random.default_rng(3).normal(0, 0.08, (25, 3)))
    paid, bound = movement_and_bound(half, factors.tolist())
    assert 0.0 < paid <= bound
