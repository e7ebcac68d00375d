"""What membership and Envoys' counters say, in the shape that planning takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from headrace.control_plane.served import Served
from headrace.policy import Policy
from headrace.problem import EngineState
from optimizer import SHED, Correction
from signals.demand import DemandView
from signals.replicas import MembershipView, Presence

_LEAST_PENALTY = 1e-3
_NEUTRAL = Correction()
_ALWAYS = ("ready_replicas", "penalty")
"""What the state file says of every engine."""


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
    policy: Policy,
    members: MembershipView,
    penalties: Mapping[str, float],
    corrections: Mapping[str, Correction] | None = None,
) -> dict[str, EngineState]:
    """engine -> ready replicas, new ones in part; its own penalty times the mean of its replicas'; and how
    its profile is corrected."""
    found = {}
    for name in policy.engines:
        ready, penalty = _replicas(members, name)
        correction = (corrections or {}).get(name, _NEUTRAL)
        found[name] = EngineState(
            ready,
            max(_LEAST_PENALTY, penalties.get(name, 1.0) * penalty),
            tbot_factor=correction.tbot_factor,
            load_factor=correction.load_factor,
            ttft_offset_ms=correction.ttft_offset_ms,
        )
    return found


def _replicas(members: MembershipView, engine: str) -> tuple[float, float]:
    """An engine's ready replicas, a ramping one in part, and the mean of their penalties."""
    ready = [replica for replica in members.engines.get(engine, ()) if replica.ready]
    total = sum(replica.count * replica.ramp for replica in ready)
    healthy = sum(replica.count * replica.part for replica in ready)
    return total, healthy / total if total else 1.0


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


def short_of_capacity(policy: Policy, served: Served) -> frozenset[str]:
    """Engines of the models of which anything is shed."""
    models = {
        key.rpartition("/")[0]
        for (_, key), partition in served.partitions.items()
        if any(name == SHED for name, _ in partition.entries)
    }
    return frozenset(name for name, spec in policy.engines.items() if spec.model in models)


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
            name: {
                field: value
                for field, value in asdict(state).items()
                if field in _ALWAYS or not state.correction.neutral
            }
            for name, state in engines.items()
        },
        "previous_shares": {f: {k: dict(r) for k, r in rows.items()} for f, rows in shares.items()},
    }
