"""Who may report what: frozen rules that the policy fills, and the check of a hello against them.

A rule that is not met is a refusal, with the result label of `headrace_reports_total` and a reason that says
what was expected.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from signals.identity import IdentityRule, Proof, Refused
from signals.messages import Hello

MAX_STRING_BYTES = 256
MAX_LIST = 1024

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_METADATA = frozenset(map(ipaddress.ip_address, ("169.254.169.254", "fd00:ec2::254", "100.100.100.200")))
"""Instance metadata services: an Envoy that sends requests there hands out credentials."""


@dataclass(frozen=True, slots=True)
class EngineRule:
    """What reports for one engine must agree with."""

    region: str
    clusters: frozenset[str] = frozenset()
    """Clusters that may hold it. Empty: one cluster, the first that reports."""
    served_models: frozenset[str] = frozenset()
    """Names the engine must answer to."""
    cidrs: tuple[Network, ...] = ()
    """Where its replicas may be. Empty: nowhere, except on loopback in insecure development mode."""
    capabilities: frozenset[str] = frozenset()
    max_replicas: int = 1000


@dataclass(frozen=True, slots=True)
class Admission:
    """The rules of the fleet in force; replaced as a whole on a policy reload."""

    fleet: str
    engines: Mapping[str, EngineRule] = field(default_factory=dict)
    insecure_dev: bool = False
    """Everything is loopback: replica addresses must be, and need no CIDR and no identity."""
    identity: IdentityRule | None = None
    """What proves an engine's name. None: nothing does, so nothing is taken beyond `insecure_dev`."""
    own_addresses: frozenset[Address] = frozenset()
    """The control plane's own; never an endpoint (unless everything is loopback)."""

    def check(self, hello: Hello, proof: Proof) -> EngineRule:
        """The rule of the hello's engine; Refused when anything disagrees with it."""
        _check_form(hello)
        if hello.fleet != self.fleet:
            raise Refused("fleet", f"this is fleet {self.fleet!r}, not {hello.fleet!r}")
        rule = self.engines.get(hello.engine)
        if rule is None:
            raise Refused("unknown_engine", f"no engine {hello.engine!r} takes reports by the policy")
        if not self.insecure_dev:
            (self.identity or IdentityRule()).check(hello.engine, hello.region, hello.cluster, proof)
        if hello.region != rule.region:
            raise Refused("conflict", f"{hello.engine} is in region {rule.region!r}, not {hello.region!r}")
        if rule.clusters and hello.cluster not in rule.clusters:
            raise Refused("conflict", f"{hello.engine} is in {_listed(rule.clusters)}, not {hello.cluster!r}")
        self._check_told(hello, rule)
        self._check_address(hello.address, rule)
        return rule

    def _check_told(self, hello: Hello, rule: EngineRule) -> None:
        """What the reporter leaves empty it does not claim, and it passes."""
        if hello.served_models and (missing := rule.served_models - set(hello.served_models)):
            raise Refused("model", f"{hello.engine} must answer to {_listed(missing)}")
        if hello.capabilities and (missing := rule.capabilities - set(hello.capabilities)):
            raise Refused("model", f"{hello.engine} must be capable of {_listed(missing)}")

    def _check_address(self, text: str, rule: EngineRule) -> None:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            raise Refused("address", f"{text!r} is not an IP literal") from None
        if address.version == 6 and address.ipv4_mapped:
            raise Refused("address", f"{text} must be written as {address.ipv4_mapped}")
        if self.insecure_dev:
            if not address.is_loopback:
                raise Refused(
                    "address", f"{text} is not loopback: insecure development mode takes nothing else"
                )
        elif _is_special(address):
            raise Refused("address", f"{text} is never the address of an engine")
        elif address in self.own_addresses:
            raise Refused("address", f"{text} is the control plane's own")
        elif not any(address in network for network in rule.cidrs):
            raise Refused(
                "address", f"{text} is outside {_listed(map(str, rule.cidrs)) or 'every CIDR (none given)'}"
            )


def _check_form(hello: Hello) -> None:
    texts = [
        *(hello.fleet, hello.engine, hello.region, hello.cluster, hello.replica_id, hello.address),
        *(hello.agent_version, hello.engine_kind, hello.engine_version),
        *hello.served_models,
        *hello.capabilities,
    ]
    if any(len(text) > MAX_STRING_BYTES or len(text.encode()) > MAX_STRING_BYTES for text in texts):
        raise Refused("too_large", f"a string is longer than {MAX_STRING_BYTES} bytes")
    if len(hello.served_models) > MAX_LIST or len(hello.capabilities) > MAX_LIST:
        raise Refused("too_large", f"a list has more than {MAX_LIST} entries")
    for name in ("fleet", "engine", "region", "replica_id", "address", "incarnation"):
        if not getattr(hello, name):
            raise Refused("invalid", f"hello.{name} is required")
    if not 0 < hello.port < 65536:
        raise Refused("invalid", f"hello.port must be 1..65535, not {hello.port}")


def _is_special(address: Address) -> bool:
    return (
        address in _METADATA
        or address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or address.is_reserved
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
