"""What the policy says to the core packages, in their own words. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from headrace.policy import EngineSpec, Policy
from signals.admission import Admission, EngineRule
from signals.demand import EnvoyNames
from signals.replicas import StaticMember
from xds_server.translate import names


def admission(policy: Policy, *, insecure_dev: bool) -> Admission:
    """Return who may report which engine. Engines whose members are not reported take no reports."""
    return Admission(
        fleet=policy.fleet,
        engines={name: _engine_rule(policy, spec) for name, spec in reported(policy)},
        insecure_dev=insecure_dev,
    )


def reported(policy: Policy) -> Iterator[tuple[str, EngineSpec]]:
    """Yield the engines whose replicas announce themselves and that are not switched off."""
    return (
        (name, spec) for name, spec in policy.engines.items() if spec.members.reported and spec.state != "off"
    )


def _engine_rule(policy: Policy, spec: EngineSpec) -> EngineRule:
    model = policy.models[spec.model]
    return EngineRule(
        region=spec.region,
        clusters=frozenset(spec.clusters),
        served_models=frozenset({*model.served_as, *model.aliases}),
        cidrs=tuple(ipaddress.ip_network(cidr) for cidr in policy.regions[spec.region].replica_cidrs),
        capabilities=spec.capabilities,
    )


def static_members(policy: Policy) -> list[StaticMember]:
    """Return the members that the policy itself names: static lists, DNS names, gateways."""
    return [
        member
        for name, spec in policy.engines.items()
        if spec.state != "off"
        for member in _static_of(name, spec)
    ]


def _static_of(name: str, spec: EngineSpec) -> Iterator[StaticMember]:
    members = spec.members
    for text in members.static or ():
        yield StaticMember(name, *host_port(text))
    pool = members.gateway or members.dns
    if pool:
        yield StaticMember(name, *host_port(pool), count=members.replicas or 1)


def host_port(text: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`; the policy has checked the form."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def envoy_names(policy: Policy) -> EnvoyNames:
    """Return what the names in Envoy's counters stand for under this policy."""
    pairs = policy.keys()
    by_model: dict[str, list[str]] = {}
    for name, spec in policy.engines.items():
        by_model.setdefault(spec.model, []).append(name)
    return EnvoyNames(
        keys={f"{names.spelled(model)}/{cls}": f"{model}/{cls}" for model, cls in pairs},
        composites={
            names.composite(model, cls, engine): (f"{model}/{cls}", engine)
            for model, cls in pairs
            for engine in by_model.get(model, ())
        },
        members={
            names.member(cls, engine): engine for model, cls in pairs for engine in by_model.get(model, ())
        },
    )
