"""Why a share is what it is: one line a (front-end, key, engine), whose arithmetic can be done again.

With c = network + idle + work·price of the engine and π the price of one more request/s of the row, every
optimum satisfies: more than before: c + churn = π; some: c = π; kept whole: π − churn ≤ c ≤ π; none and had
none: c + churn ≥ π (DESIGN plan page, "Prices and explanations").
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from optimizer.plan import Plan
from optimizer.planner import plan
from optimizer.problem import SHED, Problem
from optimizer.warm import Warm

EVEN = 1e-4
"""Shares that differ by less are the same (rounding and merged small shares)."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One share, with the numbers it follows from; times in ms."""

    frontend: str
    key: str
    destination: str
    share: float
    before: float | None
    """Share that was published; None when nothing was."""
    network_ms: float
    idle_ms: float
    work: float
    engine_price_ms: float
    cost_ms: float
    """network + idle + work × engine price."""
    row_price_ms: float
    churn_ms: float
    """γ + κ × engine price: what a move there costs; 0 when it is free."""
    relation: str
    """How `cost` and the row's price compare: more, some, kept, none, shed, unserved or policy."""
    text: str


def explain(
    problem: Problem, result: Plan, frontend: str | None = None, key: str | None = None
) -> tuple[Reason, ...]:
    """A reason for every share and every zero of a plan, of one front-end and key or of all."""
    reasons: list[Reason] = []
    for f, k in problem.rows:
        if frontend in (None, f) and key in (None, k):
            reasons += _row(problem, result, f, k)
    return tuple(reasons)


def _row(problem: Problem, result: Plan, f: str, k: str) -> list[Reason]:
    shares = result.shares.get(f, {}).get(k, {})
    unserved = result.unserved.get(f, {}).get(k)
    out = []
    if unserved:
        return [_plain(f, k, SHED, 1.0, "unserved", f"{f} {k}: nothing can serve it: {unserved}")]
    for engine in sorted(problem.eligible.get((f, k), ())):
        out.append(_engine(problem, result, f, k, engine, shares.get(engine, 0.0)))
    refused = shares.get(SHED, 0.0)
    if refused > 0:
        text = (
            f"{f} {k} refuses {refused:.2%}: what it may use is full, and rows of its priority"
            f" ({problem.keys[k].priority}) are refused alike, after all of lower priority"
        )
        out.append(_plain(f, k, SHED, refused, "shed", text, result.prices.get(f, {}).get(k, 0.0)))
    return out


def _plain(f: str, k: str, name: str, share: float, relation: str, text: str, price: float = 0.0) -> Reason:
    return Reason(f, k, name, share, None, 0.0, 0.0, 0.0, 0.0, 0.0, price, 0.0, relation, text)


def _engine(problem: Problem, result: Plan, f: str, k: str, engine: str, share: float) -> Reason:
    spec, key = problem.engines[engine], problem.keys[k]
    idle = spec.profile.ttft_ms(0.0) + key.output_tokens * spec.profile.tbot_ms(0.0)
    network, work = problem.network_ms[f][engine], key.work.get(engine, 1.0)
    price, row_price = result.engines[engine].price_ms, result.prices.get(f, {}).get(k, 0.0)
    cost = network + idle + work * price
    before = _before(problem, f, k)
    had = None if before is None else before.get(engine, 0.0)
    sticky = key.has_session and before is not None and (f, k) not in result.moves_free
    churn = key.gamma_ms + key.kappa * price if sticky else 0.0
    sum_ = f"{network:.1f} network + {idle:.1f} idle + {work:.3g} × {price:.1f} price = {cost:.1f} ms"
    if result.policy != "global":
        relation, why = "policy", f"as policy {result.policy} says"
    elif spec.capacity_rps <= 0:
        relation, why = "none", "it has no capacity now"
    else:
        relation, why = _relation(share, had, cost, row_price, churn, spec.max_share)
    text = f"{f} {k} → {engine} {share:.2%}: {sum_}; {why}"
    return Reason(
        f, k, engine, share, had, network, idle, work, price, cost, row_price, churn, relation, text
    )


def _before(problem: Problem, f: str, k: str) -> dict[str, float] | None:
    shares = (problem.previous_shares or {}).get(f, {}).get(k)
    return dict(shares) if shares else None


def _relation(
    share: float, had: float | None, cost: float, row: float, churn: float, limit: float
) -> tuple[str, str]:
    kept = had or 0.0
    if share >= limit - EVEN and limit < 1.0:
        return "limited", f"at its largest share, {limit:.0%}; the row's price is {row:.1f} ms"
    if share > kept + EVEN:
        move = f" + {churn:.1f} to move" if churn else ""
        return "more", f"{cost:.1f}{move} = {row:.1f} ms, the price of one more request here"
    if share > EVEN and share >= kept - EVEN and had is not None:
        return "kept", f"kept whole: between {row - churn:.1f} and {row:.1f} ms, moving would not pay"
    if share > EVEN:
        return "some", f"{cost:.1f} = {row:.1f} ms, the price of one more request here"
    return "none", f"with {churn:.1f} to move {cost + churn - row:.1f} ms dearer than the row's {row:.1f} ms"


@dataclass(frozen=True, slots=True)
class ReplicaValue:
    """What one more replica of an engine would be worth."""

    engine: str
    price_ms: float
    """Price of one unit of work/s there."""
    saves_ms: float
    """Drop of the objective, per request of demand."""


def replica_value(problem: Problem, result: Plan, engine: str, warm: Warm | None = None) -> ReplicaValue:
    """Plan again with one more ready replica of `engine` and compare, from scratch in both cases."""
    fresh = dataclasses.replace(problem, previous_shares=None)
    spec = problem.engines[engine]
    more = dataclasses.replace(spec, ready_replicas=spec.ready_replicas + 1)
    wider = dataclasses.replace(fresh, engines={**problem.engines, engine: more})
    saved = plan(fresh, warm=warm).objective_ms - plan(wider, warm=warm).objective_ms
    return ReplicaValue(engine, result.engines[engine].price_ms, saved)
