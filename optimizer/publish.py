"""The publish rule: traffic moves only when it pays (DESIGN plan page, "Churn")."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from optimizer.evaluate import Cost, evaluate
from optimizer.layout import Round, build_rounds
from optimizer.plan import Decision, Outcome, Plan
from optimizer.problem import SHED, Problem, Shares
from optimizer.shedding import shed_prices

Array = npt.NDArray[np.float64]

DEFAULT_GAIN = 0.0075

SHED_STEP = 0.01
"""Refusing less by up to this part of what is served is not yet a gain, unless nothing need be refused."""


def decide(
    previous: Plan | Shares | None,
    candidate: Plan | Shares,
    problem: Problem,
    min_gain: float = DEFAULT_GAIN,
) -> Decision:
    """Whether a candidate should replace what is published.

    Publish when f(previous) − f(candidate) − churn > h·f(previous), f the cost on the true curves and
    h = max(min_gain, problem.max_gap); at once when the previous shares cannot stay. While refusing traffic,
    noise of the demand within the engines' head-room and `SHED_STEP` moves nothing.

    Judge the full target, never a plan clipped by a step limit: judged on the clipped step it deadlocks.
    """
    old = previous.shares if isinstance(previous, Plan) else previous
    new = candidate.shares if isinstance(candidate, Plan) else candidate
    if not old:
        return Decision(Outcome.FORCED, 0.0, 0.0, 0.0, "nothing was published before")
    if _same(old, new):
        return Decision(Outcome.UNCHANGED, 0.0, 0.0, 0.0, "the same shares")
    if isinstance(candidate, Plan) and candidate.policy != "global":
        return Decision(Outcome.PUBLISH, 0.0, 0.0, 0.0, f"policy {candidate.policy} says so")
    rounds, _ = build_rounds(problem)
    if not all(is_complete(old, round_) for round_ in rounds):
        return Decision(Outcome.FORCED, 0.0, 0.0, 0.0, "a front-end and key has no published shares")
    before, after = (_cost(rounds, shares) for shares in (old, new))
    if not all(cost.overload <= 0.0 for cost in before):
        return Decision(
            Outcome.FORCED,
            0.0,
            0.0,
            0.0,
            "the published shares use a lost engine or break a capacity",
        )
    demand = sum(float(round_.demand.sum()) for round_ in rounds) or 1.0
    f_old, f_new = (sum(cost.latency + cost.shed for cost in costs) / demand for costs in (before, after))
    latency = sum(cost.latency for cost in before) / demand
    churn = sum(cost.churn for cost in after) / demand
    threshold = max(min_gain, problem.max_gap) * latency
    gain = f_old - f_new - _small_change(rounds, old, new) / demand
    outcome = Outcome.PUBLISH if gain - churn > threshold else Outcome.NOT_WORTH
    verb = "exceeds" if outcome is Outcome.PUBLISH else "does not exceed"
    reason = f"gain {gain:.4g} ms − churn {churn:.4g} ms {verb} {threshold:.4g} ms"
    return Decision(outcome, gain, churn, threshold, reason)


def _small_change(rounds: list[Round], old: Shares, new: Shares) -> float:
    """Price of refusing a little less than before, ms·requests/s: no reason to move everybody's sessions."""
    total = 0.0
    for round_ in rounds:
        (_, before, _), (_, after, _) = flow_of(round_, old), flow_of(round_, new)
        # What nobody is there to serve is refused whatever is planned.
        before, after = (np.where(round_.servable, part, 0.0) for part in (before, after))
        saved, refused = float(before.sum() - after.sum()), float(after.sum())
        served = float(round_.demand[round_.servable].sum() - before.sum())
        if refused > 0.0 and 0.0 < saved <= SHED_STEP * served:
            total += float((before - after) @ shed_prices(round_))
    return total


def _same(old: Shares, new: Shares) -> bool:
    return _plain(old) == _plain(new)


def _plain(shares: Shares) -> dict[tuple[str, str, str], float]:
    return {
        (f, k, name): share
        for f, rows in shares.items()
        for k, row in rows.items()
        for name, share in row.items()
        if share > 0
    }


def is_complete(shares: Shares, round_: Round) -> bool:
    """Whether every row of a component that anybody can serve has shares."""
    rows = zip(round_.layout.rows, round_.servable, strict=True)
    return all(shares.get(f, {}).get(k) for (f, k), servable in rows if servable)


def _cost(rounds: list[Round], shares: Shares) -> list[Cost]:
    costs = []
    for round_ in rounds:
        x, shed, foreign = flow_of(round_, shares)
        cost = evaluate(round_, x, shed, shed_prices(round_))
        costs.append(cost if not foreign else _broken(cost))
    return costs


def flow_of(round_: Round, shares: Shares) -> tuple[Array, Array, bool]:
    """A component's flow and refused traffic under given shares, and whether a share has no engine here.

    A row that nobody can serve is refused whatever its shares say: they wait for its engines to come back.
    """
    layout = round_.layout
    index = {name: j for j, name in enumerate(layout.engines)}
    x, shed = np.zeros(layout.mask.shape), np.zeros(len(layout.rows))
    foreign = False
    for i, (frontend, key) in enumerate(layout.rows):
        if not round_.servable[i]:
            shed[i] = round_.demand[i]
            continue
        row: Mapping[str, float] = shares.get(frontend, {}).get(key, {})
        total = sum(row.values()) or 1.0
        for name, share in row.items():
            rate = share / total * round_.demand[i]
            if name == SHED:
                shed[i] += rate
            elif name in index:
                x[i, index[name]] += rate
            else:
                foreign |= share > 0
    return x, shed, foreign


def _broken(cost: Cost) -> Cost:
    return dataclasses.replace(cost, feasible=False, overload=math.inf)
