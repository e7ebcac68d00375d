"""Who may connect: fleet, front-end, Envoy version and, by policy, the name in its certificate."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from xds_server.protocol.wire import Node

Version = tuple[int, int, int]


class Reason(StrEnum):
    """Why a stream was refused; the label of `headrace_xds_refused_total`."""

    NODE = "node"
    FLEET = "fleet"
    FRONTEND = "frontend"
    VERSION = "version"
    CERTIFICATE = "certificate"
    PROTOCOL = "protocol"
    NOT_READY = "not_ready"
    TOO_MANY = "too_many"


class Rejection(Exception):
    """A stream that is not served. `status` is the name of a grpc status code."""

    def __init__(self, reason: Reason, status: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason.value
        self.status = status


@dataclass(frozen=True, slots=True)
class Admission:
    """The rules. Everything that is not allowed is refused."""

    fleet: str = ""
    """Value that node metadata `fleet` must have; empty admits any."""
    certificate_names: Mapping[str, Collection[str]] | None = None
    """front-end -> names (SAN) of which the client certificate must carry one; None: not checked. A
    front-end that is missing here admits no one."""
    known_bad: Mapping[Version, str] = field(default_factory=lambda: dict(KNOWN_BAD))
    """Envoy version -> what is wrong with it. (1, 38, 0) stands for that patch only."""
    tested: Collection[tuple[int, int]] = ((1, 40),)
    """Minor versions that the tests run against; others are admitted with a warning."""

    def admit(
        self,
        node: Node | None,
        frontends: Collection[str],
        ready: Collection[str],
        certificate_names: Collection[str] | None,
    ) -> tuple[Node, str]:
        """Returns the node and a warning, or "". Raises Rejection."""
        if node is None or not node.id:
            raise Rejection(Reason.NODE, "INVALID_ARGUMENT", "the first request must carry node.id")
        if self.fleet and node.fleet != self.fleet:
            text = f"node metadata 'fleet' is {node.fleet!r}, this control plane serves fleet {self.fleet!r}"
            raise Rejection(Reason.FLEET, "FAILED_PRECONDITION", text)
        if node.cluster not in frontends:
            raise self.unknown_frontend(node.cluster, frontends)
        self._check_certificate(node, certificate_names)
        warning = self._check_version(node)
        if node.cluster not in ready:
            text = f"front-end {node.cluster!r} has no configuration yet"
            raise Rejection(Reason.NOT_READY, "UNAVAILABLE", text)
        return node, warning

    def unknown_frontend(self, name: str, frontends: Collection[str]) -> Rejection:
        """The rejection of a node whose `cluster` is not a front-end."""
        known = ", ".join(sorted(frontends)[:20]) or "none"
        text = f"node.cluster is {name!r}, which is not a front-end of this fleet; known: {known}"
        return Rejection(Reason.FRONTEND, "NOT_FOUND", text)

    def _check_certificate(self, node: Node, presented: Collection[str] | None) -> None:
        if self.certificate_names is None:
            return
        allowed = self.certificate_names.get(node.cluster, ())
        if not set(allowed) & set(presented or ()):
            text = f"the client certificate is not one of front-end {node.cluster!r}"
            raise Rejection(Reason.CERTIFICATE, "PERMISSION_DENIED", text)

    def _check_version(self, node: Node) -> str:
        if node.agent != "envoy" or node.build is None:
            return ""
        version = ".".join(map(str, node.build))
        if why := self.known_bad.get(node.build):
            text = f"Envoy {version} is known to be bad: {why}"
            raise Rejection(Reason.VERSION, "FAILED_PRECONDITION", text)
        if node.build[:2] not in self.tested:
            tested = ", ".join(f"{major}.{minor}" for major, minor in sorted(self.tested))
            return f"Envoy {version} has not been tested with this control plane; tested: {tested}"
        return ""


KNOWN_BAD: Mapping[Version, str] = {
    (1, 38, 0): "ring hash does not see endpoints that arrive after the cluster",
}
