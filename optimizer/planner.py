"""`plan`: from a problem to shares, with what they cost and a certificate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimizer.component import Flow
from optimizer.errors import ProblemError
from optimizer.evaluate import Cost, evaluate, loads
from optimizer.integers import merge_small, round_shares
from optimizer.layout import Round, build_rounds
from optimizer.plan import EnginePlan, Plan
from optimizer.policies import POLICIES
from optimizer.problem import SHED, UNITS, Problem
from optimizer.shedding import shed_prices
from optimizer.step import stepped
from optimizer.warm import Warm

Array = npt.NDArray[np.float64]
Nested = dict[str, dict[str, dict[str, float]]]


def plan(
    problem: Problem,
    policy: str = "global",
    warm: Warm | None = None,
    time_limit_s: float | None = None,
) -> Plan:
    """Plan one round.

    Args:
        problem: what to plan.
        policy: a name in `POLICIES`.
        warm: state of earlier rounds, changed in place; it saves time and does not change the result.
        time_limit_s: stop then with the best feasible plan found (`exact` is False).

    Raises:
        ProblemError: an unknown policy.
    """
    if policy not in POLICIES:
        raise ProblemError("policy", f"{policy!r}; expected one of {', '.join(sorted(POLICIES))}")
    warm = Warm() if warm is None else warm
    start = warm.clock()
    warm.tidy()
    deadline = math.inf if time_limit_s is None else start + time_limit_s
    rounds, orphans = build_rounds(problem, warm.layouts)
    flows = [POLICIES[policy](r, problem, warm, deadline) for r in rounds]
    if policy == "global":
        flows = [merge_small(flow.round, flow) for flow in flows]
    if problem.max_step is not None:
        flows = [stepped(flow.round, flow, problem.max_step) for flow in flows]
    parts = [_publishable(flow) for flow in flows]
    result = _assemble(problem, policy, parts, orphans)
    return result.with_time((warm.clock() - start) * 1e3)


@dataclass(frozen=True)
class Part:
    """A planned component: integer shares and their cost."""

    round: Round
    flow: Flow
    units: npt.NDArray[np.int64]
    """[R, E + 1], the last column shed; rows sum to `UNITS`."""
    cost: Cost
    load: Array

    @property
    def x(self) -> Array:
        """[R, E] published flow, requests/s."""
        flow: Array = self.units[:, :-1] / UNITS * self.round.demand[:, None]
        return flow


def _publishable(flow: Flow) -> Part:
    round_ = flow.round
    units = round_shares(round_, flow)
    part = units / UNITS * round_.demand[:, None]
    cost = evaluate(round_, part[:, :-1], part[:, -1], shed_prices(round_))
    return Part(round_, flow, units, cost, loads(round_, part[:, :-1]))


def _assemble(problem: Problem, policy: str, parts: list[Part], orphans: list[tuple[str, str]]) -> Plan:
    shares: Nested = {}
    moved: dict[str, dict[str, float]] = {}
    prices: dict[str, dict[str, float]] = {}
    unserved: dict[str, dict[str, str]] = {}
    second: dict[str, dict[str, dict[str, str]]] = {}
    engines: dict[str, EnginePlan] = {}
    for frontend, key in orphans:
        shares.setdefault(frontend, {})[key] = {SHED: 1.0}
        unserved.setdefault(frontend, {})[key] = "no engine is eligible"
    for part in parts:
        layout = part.round.layout
        names = np.array([*layout.engines, SHED])
        for i, (frontend, key) in enumerate(layout.rows):
            used = np.flatnonzero(part.units[i])
            shares.setdefault(frontend, {})[key] = {
                str(names[j]): int(part.units[i, j]) / UNITS for j in used.tolist()
            }
            prices.setdefault(frontend, {})[key] = _row_price(part, i)
            if not part.round.usable[i].any():
                unserved.setdefault(frontend, {})[key] = "every eligible engine has zero capacity"
        second_row = _two_cheapest(part)
        for i, (frontend, key) in enumerate(layout.rows):
            second.setdefault(frontend, {})[key] = _second_best(part, i, second_row)
        ttft, tbot = part.round.latency(part.load)
        for j, name in enumerate(layout.engines):
            engines[name] = EnginePlan(
                float(part.load[j]),
                float(part.round.capacity[j]),
                float(part.flow.duals.engine[j]),
                float(ttft[j]),
                float(tbot[j]),
            )
    for name, spec in problem.engines.items():
        if name not in engines:  # nobody may use it
            idle = spec.profile.ttft_ms(0.0), spec.profile.tbot_ms(0.0)
            engines[name] = EnginePlan(0.0, spec.capacity_rps, 0.0, *idle)
    engines = dict(sorted(engines.items()))
    for frontend, rows in shares.items():
        for key, row in rows.items():
            moved.setdefault(frontend, {})[key] = moved_fraction(row, _previous(problem, frontend, key))
    return _total(
        problem,
        policy,
        parts,
        _sorted(shares),
        engines,
        moved,
        prices,
        unserved,
        second,
    )


def _row_price(part: Part, i: int) -> float:
    """Price of one more request/s of a row: with nothing to keep there, its first move is free."""
    duals = part.flow.duals
    return float(duals.row[i] + (duals.free[i] if part.round.free[i] >= 1.0 else 0.0))


def _two_cheapest(part: Part) -> tuple[npt.NDArray[np.intp], Array]:
    """[R, 2] the cheapest and the second cheapest usable engine of every row at the prices; their costs."""
    layout, price = part.round.layout, part.flow.duals.engine
    cost = np.where(part.round.usable, layout.cost + layout.work * price, np.inf)
    count = min(2, cost.shape[1])
    best = np.argpartition(cost, count - 1, axis=1)[:, :count]
    order = np.argsort(np.take_along_axis(cost, best, axis=1), axis=1, kind="stable")
    best = np.take_along_axis(best, order, axis=1)
    return best, np.take_along_axis(cost, best, axis=1)


def _second_best(part: Part, i: int, cheapest: tuple[npt.NDArray[np.intp], Array]) -> dict[str, str]:
    """engine -> the cheapest other usable engine, for every engine with a share."""
    names, (best, cost) = part.round.layout.engines, cheapest
    out = {}
    for j in np.flatnonzero(part.units[i, :-1]).tolist():
        rank = 1 if best[i, 0] == j else 0
        if rank < best.shape[1] and math.isfinite(cost[i, rank]):
            out[names[j]] = names[best[i, rank]]
    return out


def moved_fraction(new: Mapping[str, float], old: Mapping[str, float] | None) -> float:
    """Total variation between two shares; 0 when there was nothing before."""
    if not old:
        return 0.0
    total = sum(old.values())
    return sum(max(0.0, share - old.get(name, 0.0) / total) for name, share in new.items())


def _previous(problem: Problem, frontend: str, key: str) -> Mapping[str, float] | None:
    return (problem.previous_shares or {}).get(frontend, {}).get(key)


def _sorted(shares: Nested) -> Nested:
    return {f: {k: rows[k] for k in sorted(rows)} for f, rows in sorted(shares.items())}


def _total(
    problem: Problem,
    policy: str,
    parts: list[Part],
    shares: Nested,
    engines: dict[str, EnginePlan],
    moved: dict[str, dict[str, float]],
    prices: dict[str, dict[str, float]],
    unserved: dict[str, dict[str, str]],
    second: dict[str, dict[str, dict[str, str]]],
) -> Plan:
    demand = sum(float(part.round.demand.sum()) for part in parts) or 1.0
    objective = sum(part.cost.total for part in parts)
    latency = sum(part.cost.latency for part in parts)
    bound = sum(max(part.flow.bound, 0.0) for part in parts)
    served = sum(part.cost.served_rps for part in parts)
    orphaned = sum(problem.demand_rps[f][k] for f, rows in unserved.items() for k in rows)
    gap = max(0.0, objective - bound) / latency if latency > 0 else 0.0
    return Plan(
        policy=policy,
        shares=shares,
        engines=engines,
        objective_ms=objective / demand,
        lower_bound_ms=bound / demand,
        gap=gap,
        e2e_ms=sum(part.cost.true_latency for part in parts) / served if served > 0 else math.nan,
        shed_rps=sum(float(part.units[:, -1] @ part.round.demand) / UNITS for part in parts) + orphaned,
        feasible=all(part.cost.feasible for part in parts),
        exact=all(part.flow.exact for part in parts),
        moved=moved,
        solve_ms=0.0,
        second_best=second,
        prices=prices,
        unserved=unserved,
        notes=tuple(sorted({note for part in parts for note in part.flow.notes})),
        moves_free=problem.moves_free,
        work_free=frozenset(
            row for part in parts if not part.round.layout.kappa.any() for row in part.round.layout.rows
        ),
    )
