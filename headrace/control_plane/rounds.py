"""One planning round: from what is known to what is served next. Pure but for the solver's warm state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from headrace.control_plane.enforce import allowed, enforce, nearest
from headrace.control_plane.exploration import explored_shares
from headrace.control_plane.served import Row, Served
from headrace.problem import EngineState, PlanningRules
from optimizer import (
    SHED,
    Decision,
    Observed,
    Outcome,
    Partition,
    Plan,
    Problem,
    ProblemError,
    Replan,
    Shares,
    Warm,
    replan,
)


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
    held_s: float = 0.0
    """For how long the shares have been served as they are."""
    stepwise: bool = True
    """Whether `guards.max_step` bounds what moves in this round."""
    unknown: frozenset[str] = frozenset()
    """Engines that have never served, to be tried with a trickle where they may be."""
    observed: Mapping[str, Observed] | None = None
    """engine -> what was measured there; only policies that steer by it are given any."""


@dataclass(frozen=True, slots=True)
class Round:
    """The outcome of one round."""

    result: Result
    base: Served
    """What was served when the round was planned."""
    served: Served
    """What to serve now: `base` itself unless something is to be published."""
    plan: Plan | None
    """None when the round failed, or when last round's prices showed that no plan could be worth it."""
    decision: Decision | None
    problem: Problem | None
    moved: float = 0.0
    """Fraction of all demand whose destination changes."""
    error: str = ""


def plan_round(inputs: Inputs, warm: Warm, on_stage: Callable[[str], None] = lambda stage: None) -> Round:
    """Plan, judge and partition. Never raises for what the inputs hold: the last state stays.

    `on_stage` is told when `solve` and `partition` begin.
    """
    on_stage("solve")
    name = inputs.planning_policy or inputs.rules.policy.planning.policy
    base = inputs.served
    try:
        under_way = warm.unfinished, warm.whole
        ends = warm.clock() + inputs.rules.policy.planning.time_limit_s
        problem, found = _replanned(inputs, name, warm, ends)
        if name == "global" and _begins_to_refuse(inputs, found):
            assert found.plan is not None
            warm.unfinished, warm.whole = under_way
            problem, found = _replanned(inputs, name, warm, ends, refusing=found.plan.shares)
    except ProblemError as error:
        return Round(Result.INFEASIBLE, base, base, None, None, None, error=str(error))
    on_stage("partition")
    decision = _verdict(found.decision, name)
    if found.plan is None or not decision.publish:
        result = Result.UNCHANGED if decision.outcome is Outcome.UNCHANGED else Result.NOT_WORTH
        served = _explored(inputs, problem) if name == "global" else base
        result = result if served is base else Result.PUBLISHED
        return Round(result, base, served, found.plan, decision, problem, _moved(inputs, served))
    served = _serve(inputs, problem, found.plan)
    if served is base:
        return Round(Result.UNCHANGED, base, base, found.plan, decision, problem)
    result = Result.GUARDED if warm.unfinished else Result.PUBLISHED
    return Round(result, base, served, found.plan, decision, problem, _moved(inputs, served))


def _replanned(
    inputs: Inputs, name: str, warm: Warm, ends: float, refusing: Shares | None = None
) -> tuple[Problem, Replan]:
    planning = inputs.rules.policy.planning
    problem = inputs.rules.problem(
        demand=inputs.demand_rps,
        network_ms=inputs.network_ms,
        engines=inputs.engines,
        previous_shares=inputs.served.shares() or None,
        refusing=refusing,
        observed=inputs.observed,
    )
    found = replan(
        problem,
        name,
        warm,
        max_step=planning.guards.max_step if inputs.stepwise and name == "global" else None,
        time_limit_s=max(0.0, ends - warm.clock()),
        held_s=inputs.held_s,
    )
    return problem, found


def _begins_to_refuse(inputs: Inputs, found: Replan) -> bool:
    """Whether what is to be published refuses something that engines without a reserve could serve."""
    if found.plan is None or not found.decision.publish:
        return False
    rules, now = inputs.rules, inputs.served.shares()
    return not rules.reserved(found.plan.shares, inputs.engines) <= rules.reserved(now, inputs.engines)


def _moved(inputs: Inputs, served: Served) -> float:
    return moved_demand(inputs.served, served, inputs.demand_rps)


def _verdict(decision: Decision, name: str) -> Decision:
    """A baseline is served as it is, since it does not claim to be worth its movement."""
    if name != "global" and decision.outcome is Outcome.NOT_WORTH:
        return replace(decision, outcome=Outcome.PUBLISH, reason=f"{name} is served as it is")
    return decision


def _explored(inputs: Inputs, problem: Problem) -> Served:
    """What is served, but with every unknown engine tried; the input's own object when there is none."""
    now = inputs.served
    tried = _tried(inputs, problem, now.shares())
    if not tried:
        return now
    partitions, fallback = dict(now.partitions), dict(now.fallback)
    for row, shares in tried.items():
        partitions[row] = now.partitions[row].relabel(shares)
        fallback[row] = with_fallback(now.fallback.get(row, {}), shares)
    return Served(now.sequence + 1, partitions, fallback, now.reasons)


def _tried(inputs: Inputs, problem: Problem, shares: Shares) -> dict[Row, Mapping[str, float]]:
    """The rows in which an unknown engine is tried, with their shares."""
    part = inputs.rules.policy.planning.learning.explore
    tried = explored_shares(problem, shares, inputs.unknown, part)
    return {(frontend, key): row for frontend, rows in tried.items() for key, row in rows.items()}


def with_fallback(planned: Mapping[str, str], shares: Mapping[str, float]) -> dict[str, str]:
    """Fallbacks of a row in which an engine is tried: what fails there goes where most is served."""
    best = max((name for name in shares if name != SHED), key=lambda name: shares[name])
    return dict.fromkeys(sorted(shares.keys() - {best, SHED}), best) | dict(planned)


def _serve(inputs: Inputs, problem: Problem, target: Plan) -> Served:
    """What a plan gives to serve: the input's own object when nothing differs."""
    tried = _tried(inputs, problem, target.shares) if target.policy == "global" else {}
    partitions: dict[Row, Partition] = {}
    reasons: dict[Row, str] = {}
    for frontend, rows in target.shares.items():
        for key, shares in rows.items():
            row = (frontend, key)
            reason = target.unserved.get(frontend, {}).get(key, "")
            partitions[row] = _partition(inputs, row, tried.get(row, shares), served=not reason)
            if reason and not partitions[row].entries:
                reasons[row] = reason
    fallback = {
        (frontend, key): engines
        for frontend, rows in target.second_best.items()
        for key, engines in rows.items()
    }
    for row, shares in tried.items():
        fallback[row] = with_fallback(fallback.get(row, {}), shares)
    now = inputs.served
    if (partitions, fallback, reasons) == (now.partitions, now.fallback, now.reasons):
        return now
    return Served(now.sequence + 1, partitions, fallback, reasons)


def _partition(inputs: Inputs, row: Row, shares: Mapping[str, float], *, served: bool) -> Partition:
    """A row's partition for new shares.

    A row that nobody can serve now keeps what it had, so that the first replica to come back finds its
    sessions; an engine that is not eligible is never kept. Where the policy sheds nothing, overload queues
    in the engines, divided as the rest is.
    """
    policy = inputs.rules.policy
    old = inputs.served.partitions.get(row) or Partition(())
    ready = {name for name, state in inputs.engines.items() if state.ready_replicas > 0}
    if not served:
        kept = allowed(old, policy.eligible(*row).engines)
        return kept if kept.entries else nearest(policy, row, ready)
    if not policy.protection.shedding.enabled and SHED in shares:
        total = sum(share for name, share in shares.items() if name != SHED)
        if not total:
            return nearest(policy, row, ready)
        shares = {name: share / total for name, share in shares.items() if name != SHED}
    return old.relabel(shares) if old.entries else Partition.fresh(shares)


def moved_demand(old: Served, new: Served, demand_rps: Mapping[str, Mapping[str, float]]) -> float:
    """Fraction of all demand whose destination differs between two served states."""
    total = moved = 0.0
    for row, partition in new.partitions.items():
        rate = demand_rps.get(row[0], {}).get(row[1], 0.0)
        before = old.partitions.get(row)
        total += rate
        moved += rate * (partition.moved_from(before) if before and before.entries else 0.0)
    return moved / total if total else 0.0


def moves_under(rules: PlanningRules, inputs: Inputs) -> float:
    """Fraction of all demand that the plan under other rules would move, however many rounds it takes."""
    policy = rules.policy
    demand = {
        frontend: {key: inputs.demand_rps.get(frontend, {}).get(key, 0.0) for key in policy.key_specs}
        for frontend in policy.frontends
    }
    ready = {name for name, state in inputs.engines.items() if state.ready_replicas > 0}
    edited = replace(
        inputs,
        rules=rules,
        demand_rps=demand,
        network_ms={},
        engines={
            name: _as_learned_for(inputs.rules, rules, name, state)
            for name, state in inputs.engines.items()
            if name in policy.engines
        },
        served=enforce(policy, inputs.served, ready),
        held_s=0.0,
        stepwise=False,
        unknown=frozenset(),
        observed=None,
    )
    return moved_demand(inputs.served, plan_round(edited, Warm()).served, demand)


def _as_learned_for(old: PlanningRules, new: PlanningRules, engine: str, state: EngineState) -> EngineState:
    """What is known of an engine under other rules: what was learned of another profile is void."""
    before = old.engines.get(engine)
    if before is not None and before.profile == new.engines[engine].profile:
        return state
    return replace(state, tbot_factor=1.0, load_factor=1.0, ttft_offset_ms=0.0)
