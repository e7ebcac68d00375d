"""What the policy says to the core packages, in their own words. Pure."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator
from typing import Literal

from headrace.control_plane.config import ServeConfig
from headrace.policy import EngineSpec, Policy
from signals.admission import Admission, EngineRule
from signals.demand import EnvoyNames
from signals.identity import IdentityRule
from signals.replicas import Replica, StaticMember
from signals.tls import TlsFiles
from xds_server.identity import Admission as EnvoyAdmission
from xds_server.translate import names


def admission(policy: Policy, config: ServeConfig) -> Admission:
    """Return who may report which engine. Engines whose members are not reported take no reports."""
    return Admission(
        fleet=policy.fleet,
        engines={name: _engine_rule(policy, spec) for name, spec in reported(policy)},
        insecure_dev=config.insecure_dev,
        own_addresses=frozenset(_own(config)),
        identity=_identity(policy),
    )


def _own(config: ServeConfig) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The addresses that the control plane was told to listen on, where they are told."""
    for address in (config.xds, config.reports, config.metrics, config.admin):
        with contextlib.suppress(ValueError):
            yield ipaddress.ip_address(address.host)


def _identity(policy: Policy) -> IdentityRule | None:
    """What proves an engine's name; None without a `security.reports` section."""
    reports = policy.security.reports
    if reports is None:
        return None
    return IdentityRule(template=reports.identity or "", tokens=policy.report_tokens())


def envoy_admission(policy: Policy, config: ServeConfig) -> EnvoyAdmission:
    """Return which Envoys may connect: those of the fleet whose certificate names their front-end."""
    names = {name: certificate_names(policy, config, name) for name in policy.frontends}
    known = {name: allowed for name, allowed in names.items() if allowed is not None}
    return EnvoyAdmission(fleet=policy.fleet, certificate_names=known or None)


def certificate_names(policy: Policy, config: ServeConfig, frontend: str) -> tuple[str, ...] | None:
    """Return the names of which a front-end's certificate must carry one; None in development mode."""
    xds = policy.security.xds
    if config.insecure_dev or xds is None:
        return None
    return (xds.identity.replace("{frontend}", frontend),)


def tls_files(policy: Policy, port: Literal["reports", "xds"]) -> TlsFiles | None:
    """Return the files of one port's TLS; None where the policy names none."""
    section = getattr(policy.security, port)
    if section is None:
        return None
    ca = policy.secret_path(port, "client_ca") if section.client_ca else None
    return TlsFiles(policy.secret_path(port, "cert"), policy.secret_path(port, "key"), ca)


def misfit(admission: Admission, replica: Replica) -> str:
    """Return why a replica that was admitted may not stay under other rules; empty when it may."""
    rule = admission.engines.get(replica.key.engine)
    if rule is None:
        return "its engine takes no reports by the policy"
    if rule.clusters and replica.key.cluster not in rule.clusters:
        return f"cluster {replica.key.cluster!r} is not one of the engine's"
    address = ipaddress.ip_address(replica.address)
    if not admission.insecure_dev and not any(address in network for network in rule.cidrs):
        return f"{address} is outside the region's replica_cidrs"
    return ""


def check_security(policy: Policy, config: ServeConfig) -> None:
    """Raise ValueError when a port that is not for development would be open to anybody."""
    if config.insecure_dev:
        return
    for port in ("xds", "reports"):
        if getattr(policy.security, port) is None:
            raise ValueError(
                f"security.{port} is missing: expected certificate, key and who may connect "
                "(or --insecure-dev, on loopback)"
            )


def identity_changes(old: Policy, new: Policy) -> list[str]:
    """Return which proofs of identity an edit changes: whoever could connect might not, or others may."""
    changes = []
    for port in ("reports", "xds"):
        before, after = getattr(old.security, port), getattr(new.security, port)
        if before is not None and after is not None:
            changes += [
                f"security.{port}.{name} changes"
                for name in ("identity", "client_ca")
                if getattr(before, name) != getattr(after, name)
            ]
    return changes


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
        sheds={names.shed(model, cls): f"{model}/{cls}" for model, cls in pairs},
    )
