"""What membership and Envoys' counters say, in the shape that planning takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.policy import Policy
from headrace.problem import EngineState
from signals.demand import DemandView
from signals.replicas import MembershipView


def demand_rps(policy: Policy, view: DemandView) -> dict[str, dict[str, float]]:
    """front-end -> key -> req/s for every row of the policy; what was never seen counts as none."""
    return {
        frontend: {
            key: round(point.rps, 9) if (point := view.demand.get((frontend, key))) else 0.0
            for key in policy.key_specs
        }
        for frontend in policy.frontends
    }


def engine_states(policy: Policy, members: MembershipView) -> dict[str, EngineState]:
    """engine -> ready replicas and penalty."""
    return {name: EngineState(float(members.ready_count(name))) for name in policy.engines}


def evidence(view: DemandView) -> dict[str, tuple[float, float]]:
    """engine -> (connect failures, requests sent), all Envoys together, absolute."""
    totals: dict[str, tuple[float, float]] = {}
    for (_, engine), seen in view.engines.items():
        failures, sent = totals.get(engine, (0.0, 0.0))
        totals[engine] = (failures + seen.connect_failures_total, sent + seen.sent_total)
    return totals


def without_replicas(policy: Policy, members: MembershipView) -> frozenset[str]:
    """Engines that should serve and have no ready replica."""
    return frozenset(
        name
        for name, spec in policy.engines.items()
        if spec.state == "active" and not members.ready_count(name)
    )


def state_file(
    policy: Policy,
    demand: Mapping[str, Mapping[str, float]],
    engines: Mapping[str, EngineState],
    shares: Mapping[str, Mapping[str, Mapping[str, float]]],
) -> dict[str, object]:
    """The live fleet as the state file of `headrace plan`."""
    return {
        "demand_rps": {frontend: dict(row) for frontend, row in demand.items()},
        "network_ms": {
            frontend: {engine: policy.network_ms(frontend, engine) for engine in policy.engines}
            for frontend in policy.frontends
        },
        "engines": {
            name: {"ready_replicas": state.ready_replicas, "penalty": state.penalty}
            for name, state in engines.items()
        },
        "previous_shares": {f: {k: dict(r) for k, r in rows.items()} for f, rows in shares.items()},
    }
