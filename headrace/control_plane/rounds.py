"""One planning round: from what is known to what is served next. Pure but for the solver's warm state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from headrace.control_plane.served import Row, Served
from headrace.policy import Policy
from headrace.problem import EngineState, PlanningRules
from optimizer import SHED, Decision, Outcome, Partition, Plan, Problem, ProblemError, Warm, decide, plan


class Result(StrEnum):
    """How a round ended (label of `headrace_plan_rounds_total`)."""

    PUBLISHED = "published"
    UNCHANGED = "unchanged"
    NOT_WORTH = "not_worth"
    GUARDED = "guarded"
    INFEASIBLE = "infeasible"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a round is planned from, all of one moment."""

    rules: PlanningRules
    demand_rps: Mapping[str, Mapping[str, float]]
    """front-end -> key -> first attempts per second."""
    network_ms: Mapping[str, Mapping[str, float]]
    """front-end -> engine -> measured round trip; the policy's value where absent."""
    engines: Mapping[str, EngineState]
    served: Served
    planning_policy: str | None = None
    """A planning policy by name instead of the policy file's."""


@dataclass(frozen=True, slots=True)
class Round:
    """The outcome: `served` is the input's own object unless something is to be published."""

    result: Result
    served: Served
    plan: Plan | None
    decision: Decision | None
    problem: Problem | None
    moved: float = 0.0
    """Fraction of all demand whose destination changes."""
    error: str = ""


def plan_round(inputs: Inputs, warm: Warm) -> Round:
    """Plan, judge and partition. Never raises for what the inputs hold: the last state stays."""
    planning = inputs.rules.policy.planning
    name = inputs.planning_policy or planning.policy
    try:
        problem = inputs.rules.problem(
            demand=inputs.demand_rps,
            network_ms=inputs.network_ms,
            engines=inputs.engines,
            previous_shares=inputs.served.shares() or None,
        )
        target = plan(problem, name, warm, planning.time_limit_s)
        decision = _decide(inputs, target, problem, name)
        step = _step(target, decision, inputs.rules.policy, name)
        if step is not None:
            target = plan(replace(problem, max_step=step), name, warm, planning.time_limit_s)
    except ProblemError as error:
        return Round(Result.INFEASIBLE, inputs.served, None, None, None, error=str(error))
    if not decision.publish:
        result = Result.UNCHANGED if decision.outcome is Outcome.UNCHANGED else Result.NOT_WORTH
        return Round(result, inputs.served, target, decision, problem)
    served = _serve(inputs, target)
    moved = moved_demand(inputs.served, served, inputs.demand_rps)
    return Round(
        Result.GUARDED if step is not None else Result.PUBLISHED, served, target, decision, problem, moved
    )


def _decide(inputs: Inputs, target: Plan, problem: Problem, name: str) -> Decision:
    """The publish rule. A baseline is served as it is, since it does not claim to be worth its movement."""
    decision = decide(inputs.served.shares(), target, problem)
    if name != "global" and decision.outcome is Outcome.NOT_WORTH:
        return replace(decision, outcome=Outcome.PUBLISH, reason=f"{name} is served as it is")
    return decision


def _step(target: Plan, decision: Decision, policy: Policy, name: str) -> float | None:
    """How much of a key may move in this round; None: all of it. Forced moves are exempt."""
    step = policy.planning.guards.max_step
    largest = max((part for row in target.moved.values() for part in row.values()), default=0.0)
    free = decision.outcome is not Outcome.PUBLISH or name != "global" or largest <= step
    return None if free else step


def _serve(inputs: Inputs, target: Plan) -> Served:
    partitions: dict[Row, Partition] = {}
    reasons: dict[Row, str] = {}
    for frontend, rows in target.shares.items():
        for key, shares in rows.items():
            row = (frontend, key)
            old = inputs.served.partitions.get(row)
            reason = target.unserved.get(frontend, {}).get(key, "")
            if reason:
                partitions[row], reasons[row] = _unserved(inputs.rules.policy, row, old), reason
            else:
                wanted = shares if inputs.rules.policy.protection.shedding.enabled else _unshed(shares)
                partitions[row] = old.relabel(wanted) if old else Partition.fresh(wanted)
    fallback = {
        (frontend, key): engines
        for frontend, rows in target.second_best.items()
        for key, engines in rows.items()
    }
    return Served(inputs.served.sequence + 1, partitions, fallback, reasons)


def _unshed(shares: Mapping[str, float]) -> Mapping[str, float]:
    """Where the policy sheds nothing, overload queues in the engines, divided as the rest is."""
    served = {name: share for name, share in shares.items() if name != SHED}
    total = sum(served.values())
    return {name: share / total for name, share in served.items()} if total else shares


def _unserved(policy: Policy, row: Row, old: Partition | None) -> Partition:
    """Nobody can serve the row now. Keep what was served where it is still allowed, so that the first
    replica to come back finds its sessions; an engine that is not eligible is never kept."""
    eligible = policy.eligible(*row).engines
    if old and old.entries and set(old.units) <= set(eligible):
        return old
    if not eligible:
        return Partition(())
    nearest = min(eligible, key=lambda engine: (policy.network_ms(row[0], engine), engine))
    return Partition.fresh({nearest: 1.0})


def moved_demand(old: Served, new: Served, demand_rps: Mapping[str, Mapping[str, float]]) -> float:
    """Fraction of all demand whose destination differs between two served states."""
    total = moved = 0.0
    for row, partition in new.partitions.items():
        rate = demand_rps.get(row[0], {}).get(row[1], 0.0)
        before = old.partitions.get(row)
        total += rate
        moved += rate * (partition.moved_from(before) if before and before.entries else 0.0)
    return moved / total if total else 0.0


def enforce(policy: Policy, served: Served) -> Served:
    """What may stay served under a policy: an engine that is no longer eligible loses its intervals at once,
    planned or not (residency fails closed). Rows that the policy does not know are dropped."""
    partitions: dict[Row, Partition] = {}
    reasons: dict[Row, str] = {}
    for frontend in policy.frontends:
        for key in policy.key_specs:
            row = (frontend, key)
            if old := served.partitions.get(row):
                eligible = policy.eligible(*row)
                partitions[row] = _allowed(old, frozenset(eligible.engines))
                if not partitions[row].entries:
                    reasons[row] = served.reasons.get(row, "") or "no engine is eligible"
    if partitions == served.partitions:
        return served
    return Served(served.sequence + 1, partitions, served.fallback, reasons)


def _allowed(old: Partition, eligible: frozenset[str]) -> Partition:
    kept = {name: share for name, share in old.shares.items() if name in eligible or name == SHED}
    if len(kept) == len(old.units):
        return old
    total = sum(share for name, share in kept.items() if name != SHED)
    if not total:
        return Partition(())
    room = 1.0 - kept.get(SHED, 0.0)
    return old.relabel({n: s if n == SHED else s * room / total for n, s in kept.items()})
