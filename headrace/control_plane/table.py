"""From policy, members and served shares to the routing table of one front-end. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.control_plane.rules import host_port
from headrace.control_plane.served import Row, Served, nested, rows
from headrace.policy import EngineSpec, Policy
from signals.replicas import MembershipView, Replica, ReplicaState
from xds_server.routing import (
    Endpoint,
    Engine,
    FrontendRouting,
    Health,
    HealthCheck,
    Listener,
    Model,
    OutlierDetection,
    RoutingTable,
    ShedAnswer,
    Split,
    TrafficClass,
)

KEEP_WARM = 32
"""Up to this many eligible engines of a key all have their clusters in every Envoy, so that a share can move
to any of them without waiting for a cluster to warm; beyond it only those in use and their fallbacks."""

_UNBOUNDED = 100_000
"""Breakers that no one Envoy reaches, for where the policy leaves them to the control plane."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Numbers that follow the plan: (front-end, key) -> engine -> per Envoy."""

    retries: Mapping[Row, Mapping[str, int]] = field(default_factory=dict)
    requests: Mapping[Row, Mapping[str, int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for the saved state."""
        return {"retries": nested(self.retries), "requests": nested(self.requests)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Limits:
        """Return what `to_json` wrote. Raises ValueError, KeyError, TypeError or AttributeError if it did
        not."""
        return cls(*(dict(_limits(document[name])) for name in ("retries", "requests")))


def _limits(document: Mapping[str, Any]) -> Iterator[tuple[Row, Mapping[str, int]]]:
    for row, engines in rows(document):
        yield row, {str(name): int(number) for name, number in engines.items()}


class Tables:
    """The routing tables of all front-ends. What front-ends share is made once, and what members do not
    change (the splits) once for as long as shares, limits and policy are the same."""

    def __init__(self, policy: Policy, served: Served, limits: Limits) -> None:
        self.inputs = (policy, served, limits)
        self._policy = policy
        self.members = MembershipView(-1, {})
        """Those that the tables show."""
        self._reached: dict[tuple[str, bool], _Reach] = {}
        self._splits = {
            frontend: tuple(
                _split(policy, served, limits, frontend, spec.model, spec.traffic_class)
                for spec in policy.key_specs.values()
            )
            for frontend in policy.frontends
        }
        self._used = {frontend: _used(splits, policy) for frontend, splits in self._splits.items()}
        self._common = RoutingTable(
            fleet=policy.fleet,
            listeners=_listeners(policy),
            classes=_classes(policy),
            match_order=policy.match_order,
            models=_models(policy),
            engines={},
            frontends={},
            answers=_answers(policy),
        )

    def look(self, members: MembershipView) -> frozenset[str]:
        """Take the members as they are now; returns the front-ends whose table differs from before."""
        self.members = members
        changed = set()
        for name, home in list(self._reached):
            spec = self._policy.engines[name]
            now = _Reach.of(self._policy, members, spec, home=home)
            if now != self._reached[name, home]:
                self._reached[name, home] = now
                changed.add(name)
        return frozenset(f for f, used in self._used.items() if not changed.isdisjoint(used))

    def of(self, frontend: str) -> RoutingTable:
        """Return everything that the Envoys of a front-end serve from."""
        reached = {name: self._reach(frontend, name) for name in self._used[frontend]}
        endpoints = {name: reach.endpoints for name, reach in reached.items()}
        return replace(
            self._common,
            engines={name: reach.engine for name, reach in reached.items()},
            frontends={frontend: FrontendRouting(frontend, self._splits[frontend], endpoints)},
        )

    def _reach(self, frontend: str, engine: str) -> _Reach:
        spec = self._policy.engines[engine]
        key = (engine, self._policy.frontends[frontend].region == spec.region)
        if (found := self._reached.get(key)) is None:
            found = self._reached[key] = _Reach.of(self._policy, self.members, spec, home=key[1])
        return found


def _used(splits: tuple[Split, ...], policy: Policy) -> tuple[str, ...]:
    """Engines that a front-end's requests may reach."""
    named = {
        name for split in splits for name in (*split.fallback, *split.fallback.values(), *dict(split.entries))
    }
    return tuple(sorted(named & policy.engines.keys()))


@dataclass(frozen=True, slots=True)
class _Reach:
    """One engine as a front-end sees it: those at home check its health, others may dial a gateway."""

    engine: Engine
    endpoints: tuple[Endpoint, ...]

    @classmethod
    def of(cls, policy: Policy, members: MembershipView, spec: EngineSpec, *, home: bool) -> _Reach:
        gateway = policy.regions[spec.region].gateway
        if gateway and not home:
            host, port = host_port(gateway)
            endpoints: tuple[Endpoint, ...] = (Endpoint(f"{spec.region}-gateway", host, port),)
            return cls(_engine(spec, home, dns=not _is_ip(host), gateway=True), endpoints)
        endpoints = tuple(
            endpoint(replica)
            for replica in members.engines.get(spec.name, ())
            if replica.member and replica.state is not ReplicaState.STARTING
        )
        pool = spec.members.dns or spec.members.gateway
        return cls(_engine(spec, home, dns=pool is not None and not _is_ip(host_port(pool)[0])), endpoints)


def endpoint(replica: Replica) -> Endpoint:
    """Return a replica as EDS shows it: DRAINING takes nothing new, a silent one stays as it was."""
    return Endpoint(
        replica=replica.key.replica_id,
        address=replica.address,
        port=replica.port,
        weight=max(1, round(100 * replica.part)),
        health=Health.HEALTHY if replica.ready else Health.DRAINING,
    )


def _engine(spec: EngineSpec, home: bool, *, dns: bool, gateway: bool = False) -> Engine:
    guard = spec.protection
    checked = guard.health_check.enabled and (home or guard.health_check.scope == "all")
    return Engine(
        name=spec.name,
        lb_policy=guard.hash.lb,
        ring_size=guard.hash.ring_size,
        maglev_table_size=guard.hash.maglev_table_size,
        hash_balance_factor=None if guard.hash.balance_factor == "none" else guard.hash.balance_factor,
        connect_timeout_s=guard.timeouts.connect_s,
        idle_timeout_s=guard.timeouts.idle_s,
        health_check=_health_check(spec) if checked else None,
        outlier_detection=_outliers(spec),
        max_requests=_UNBOUNDED if guard.breakers.max_requests == "auto" else guard.breakers.max_requests,
        panic_threshold_percent=guard.panic_threshold_percent,
        dns=dns,
        gateway=gateway,
    )


def _health_check(spec: EngineSpec) -> HealthCheck:
    check = spec.protection.health_check
    return HealthCheck(
        path=check.path,
        interval_s=check.interval_s,
        timeout_s=check.timeout_s,
        unhealthy_threshold=check.unhealthy_threshold,
        healthy_threshold=check.healthy_threshold,
    )


def _outliers(spec: EngineSpec) -> OutlierDetection | None:
    found = spec.protection.outlier_detection
    if not found.enabled:
        return None
    return OutlierDetection(
        consecutive_local_origin_failure=found.consecutive_local_origin_failure,
        consecutive_gateway_failure=found.consecutive_gateway_failure,
        consecutive_5xx=found.consecutive_5xx,
        base_ejection_time_s=found.base_ejection_time_s,
        max_ejection_time_s=found.max_ejection_time_s,
        max_ejection_percent=found.max_ejection_percent,
        interval_s=found.interval_s,
    )


def _is_ip(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def _split(policy: Policy, served: Served, limits: Limits, frontend: str, model: str, cls: str) -> Split:
    row = (frontend, f"{model}/{cls}")
    partition = served.partitions.get(row)
    entries = partition.entries if partition else ()
    fallback = _fallbacks(policy, served, row)
    # Limits outlive the plan they were made for: only those of clusters that are in this table count.
    first = {name for name, _ in entries} | fallback.keys()
    retries = {name: number for name, number in limits.retries.get(row, {}).items() if name in first}
    tried = first | set(fallback.values())
    requests = {name: number for name, number in limits.requests.get(row, {}).items() if name in tried}
    reason = served.reasons.get(row, "") or "no engine may serve this"
    return Split(model, cls, entries, fallback, retries, requests, reason)


def _fallbacks(policy: Policy, served: Served, row: Row) -> dict[str, str]:
    """engine -> where its failures go. Only eligible ones; a key's engines stay warm while they are few."""
    eligible = policy.eligible(*row).engines
    planned = {
        engine: other
        for engine, other in served.fallback.get(row, {}).items()
        if engine in eligible and other in eligible
    }
    if not policy.protection.retries.fallback or len(eligible) > KEEP_WARM:
        return planned if policy.protection.retries.fallback else {}
    nearest = sorted(eligible, key=lambda engine: (policy.network_ms(row[0], engine), engine))
    others = {engine: next((other for other in nearest if other != engine), engine) for engine in eligible}
    return {engine: planned.get(engine, other) for engine, other in others.items() if other != engine}


def _classes(policy: Policy) -> tuple[TrafficClass, ...]:
    return tuple(
        TrafficClass(name, item.match.header, item.match.value) if item.match else TrafficClass(name)
        for name, item in policy.classes.items()
    )


def _models(policy: Policy) -> tuple[Model, ...]:
    return tuple(
        Model(
            name=name,
            served_as=(*item.served_as, *item.aliases),
            adapters=tuple(item.adapters),
            session_keys=tuple(item.session_keys),
            max_request_bytes=int(item.max_request_mib * (1 << 20)),
            stream_idle_s=item.stream_idle_s,
            longest_generation_s=item.longest_generation_s,
            per_try_timeout_s=item.first_byte_timeout_s,
            same_engine_retries=policy.protection.retries.same_engine,
            retry_statuses=policy.protection.retries.statuses,
        )
        for name, item in policy.models.items()
    )


def _listeners(policy: Policy) -> tuple[Listener, ...]:
    return tuple(
        Listener(name, item.port, item.default_class, item.trust_headers, item.address)
        for name, item in policy.listeners.items()
    )


def _answers(policy: Policy) -> ShedAnswer:
    shedding = policy.protection.shedding
    return ShedAnswer(
        retry_after_shed_s=shedding.retry_after_shed_s,
        retry_after_overflow_s=shedding.retry_after_overflow_s,
        retry_after_unavailable_s=shedding.retry_after_unavailable_s,
    )
