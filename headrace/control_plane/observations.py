"""What membership and Envoys' counters say, in the shape that planning takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.policy import Policy
from headrace.problem import EngineState
from signals.demand import DemandView
from signals.replicas import MembershipView, Presence

_LEAST_PENALTY = 1e-3


def demand_rps(policy: Policy, view: DemandView) -> dict[str, dict[str, float]]:
    """front-end -> key -> req/s for every row of the policy; what was never seen counts as none."""
    return {
        frontend: {
            key: round(point.rps, 9) if (point := view.demand.get((frontend, key))) else 0.0
            for key in policy.key_specs
        }
        for frontend in policy.frontends
    }


def engine_states(
    policy: Policy, members: MembershipView, penalties: Mapping[str, float]
) -> dict[str, EngineState]:
    """engine -> ready replicas and penalty: the engine's own, times the mean of its replicas'."""
    return {
        name: EngineState(
            float(members.ready_count(name)),
            max(_LEAST_PENALTY, penalties.get(name, 1.0) * _replica_penalty(members, name)),
        )
        for name in policy.engines
    }


def _replica_penalty(members: MembershipView, engine: str) -> float:
    ready = [replica for replica in members.engines.get(engine, ()) if replica.ready]
    total = sum(replica.count for replica in ready)
    return sum(replica.count * replica.penalty for replica in ready) / total if total else 1.0


def all_silent(members: MembershipView) -> bool:
    """Whether there are reporting replicas and not one is heard: then it is the reporting that failed."""
    known = [replica for found in members.engines.values() for replica in found]
    reporters = [replica for replica in known if replica.presence is not Presence.CONFIGURED]
    return bool(reporters) and all(replica.presence is Presence.SILENT for replica in reporters)


def evidence(view: DemandView) -> dict[str, tuple[float, float]]:
    """engine -> (connect failures, requests sent) since its Envoys were first heard of, all together."""
    totals: dict[str, tuple[float, float]] = {}
    for (_, engine), seen in view.engines.items():
        failures, sent = totals.get(engine, (0.0, 0.0))
        totals[engine] = (failures + seen.connect_failures_heard, sent + seen.sent_heard)
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
