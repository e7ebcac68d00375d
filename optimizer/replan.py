"""One round of the planning loop: is a new plan worth anything, which one, and is it to be published?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimizer.bound import Shed
from optimizer.evaluate import evaluate
from optimizer.layout import Round, build_rounds
from optimizer.plan import Decision, Outcome, Plan
from optimizer.planner import plan
from optimizer.problem import Problem
from optimizer.publish import DEFAULT_GAIN, decide, flow_of, is_complete
from optimizer.shedding import shed_prices
from optimizer.warm import Row, Warm

EXPECTED_HOLD_S = 300.0
"""Time over which the prices of the policy spread the cost of a move."""

MOST_HALVINGS = 6

LEAST_TIME_S = 0.05
"""What every plan of a round may take, however late it is."""

WHOLE = 0.2
"""A row that moves by more than this moves as if moving cost nothing."""


@dataclass(frozen=True, slots=True)
class Replan:
    """The outcome of a round."""

    decision: Decision
    plan: Plan | None
    """What to publish, or the candidate that was not worth it; None when no program had to be solved."""


def replan(
    problem: Problem,
    policy: str = "global",
    warm: Warm | None = None,
    *,
    min_gain: float = DEFAULT_GAIN,
    max_step: float | None = None,
    time_limit_s: float | None = None,
    held_s: float = 0.0,
) -> Replan:
    """Plan against `problem.previous_shares`, which are what is published, for `held_s` seconds now.

    First last round's prices bound what any plan could gain; below the threshold nothing is solved. Else the
    full target is planned and judged; if it is worth publishing but moves more than `max_step` of a row, the
    published plan is a step of that size towards it, capacity permitting (`step`).

    The price of a move (γ, κ) is its one-time cost spread over the time that a plan is expected to hold. A
    plan that has held for long is expected to hold as long again: the price falls accordingly, so that a
    fleet whose inputs stand still ends at its optimum and not one move's price beside it. A row that moves by
    more than `WHOLE` moves altogether: else the price of the last few requests leaves it in two places, for
    a gain that no later round would find worth a publication.
    """
    warm = Warm() if warm is None else warm
    ends = math.inf if time_limit_s is None else warm.clock() + time_limit_s

    def best(asked: Problem) -> Plan:
        """One of the round's plans, in what is left of its time."""
        left_s = None if math.isinf(ends) else max(LEAST_TIME_S, ends - warm.clock())
        return plan(asked, policy, warm, left_s)

    if problem.max_step is not None:
        problem = dataclasses.replace(problem, max_step=None)
    problem = patient(problem, held_s)
    if problem.moves_free != warm.whole:
        problem = dataclasses.replace(problem, moves_free=warm.whole)
    if warm.unfinished:  # a move that was worth starting is worth finishing
        min_gain, problem = 0.0, dataclasses.replace(problem, max_gap=0.0)
    if policy == "global":
        quiet = quiet_decision(problem, warm, min_gain)
        if quiet is not None:
            warm.unfinished, warm.whole = False, frozenset()
            return Replan(quiet, None)
    target = best(problem)
    decision = decide(problem.previous_shares, target, problem, min_gain)
    if policy == "global" and decision.publish and (whole := warm.whole | _moving(target)) != warm.whole:
        problem = dataclasses.replace(problem, moves_free=whole)
        target = best(problem)
    warm.unfinished = decision.publish and max_step is not None and largest_move(target) > max_step
    warm.whole = problem.moves_free if warm.unfinished else frozenset()
    if warm.unfinished:
        target = best(dataclasses.replace(problem, max_step=max_step))
    return Replan(decision, target)


def _moving(target: Plan) -> frozenset[Row]:
    """Rows of which a plan moves so much that the rest is to follow."""
    return frozenset(row for row, moved in _moves(target) if moved > WHOLE)


def _moves(target: Plan) -> Iterator[tuple[Row, float]]:
    """What a plan moves of each row; one that nobody can serve has nothing to move."""
    for frontend, rows in target.moved.items():
        unserved = target.unserved.get(frontend, {})
        yield from (((frontend, key), moved) for key, moved in rows.items() if key not in unserved)


def patient(problem: Problem, held_s: float) -> Problem:
    """The problem with movement as cheap as a plan of that age makes it, in steps of a factor of two."""
    halvings = min(MOST_HALVINGS, int(math.log2(max(1.0, held_s / EXPECTED_HOLD_S))))
    if halvings == 0:
        return problem
    part = 0.5**halvings
    keys = {
        name: dataclasses.replace(key, gamma_ms=key.gamma_ms * part, kappa=key.kappa * part)
        for name, key in problem.keys.items()
    }
    return dataclasses.replace(problem, keys=keys)


def largest_move(plan_: Plan) -> float:
    """Largest fraction of any row that a plan moves."""
    return max((moved for _, moved in _moves(plan_)), default=0.0)


def quiet_decision(problem: Problem, warm: Warm, min_gain: float = DEFAULT_GAIN) -> Decision | None:
    """The verdict to keep what is published, when last round's prices prove that nothing gains enough.

    None when they do not, when something must move, or when there are no prices yet.
    """
    shares = problem.previous_shares
    if not shares:
        return None
    rounds, _ = build_rounds(problem, warm.layouts)
    cost = bound = latency = demand = 0.0
    for round_ in rounds:
        component = warm.known(round_.layout)
        if component is None or not is_complete(shares, round_):
            return None
        x, refused, foreign = flow_of(round_, shares)
        prices = shed_prices(round_)
        kept = evaluate(round_, x, refused, prices)
        if foreign or kept.overload > 0.0:
            return None
        least = component.bound(round_, Shed(_unservable(round_), prices))
        if least is None:
            return None
        cost += kept.total
        bound += least
        latency += kept.latency
        demand += float(round_.demand.sum())
    demand = demand or 1.0
    gain, threshold = (cost - bound) / demand, max(min_gain, problem.max_gap) * latency / demand
    if gain > threshold:
        return None
    reason = f"no plan gains more than {gain:.4g} ms, which does not exceed {threshold:.4g} ms"
    return Decision(Outcome.NOT_WORTH, gain, 0.0, threshold, reason)


def _unservable(round_: Round) -> npt.NDArray[np.float64]:
    return np.where(round_.servable, 0.0, round_.demand)
