"""Where the control plane listens and what it reads."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Address:
    """A host and port to bind; port 0 binds a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `host:port`. Raises ValueError saying what was expected."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"{text!r}: expected HOST:PORT")
        return cls(host.strip("[]") or "0.0.0.0", int(port))

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """What `headrace serve` was started with."""

    policy: Path
    state_dir: Path | None = None
    insecure_dev: bool = False
    """Plaintext and no identities: only while everything is on loopback."""
    xds: Address = Address("127.0.0.1", 18000)
    reports: Address = Address("127.0.0.1", 7401)
    metrics: Address = Address("127.0.0.1", 7402)
    admin: Address = Address("127.0.0.1", 7403)
    csds: Address | None = None
    """Client status over gRPC (CSDS), for Envoy's tools; on loopback. None: not served."""
    expose_admin: bool = False
    """Let the admin port, which has no authentication, listen beyond loopback."""
    startup_wait_s: float = 35.0
    """Without saved state: how long to wait for every engine to report before Envoys are served. Above the
    longest back-off of reporters, 30 s."""
    load_report_interval_s: float = 60.0
    """How often Envoys send load reports, which are large and only a cross-check."""
    accept_policy: bool = False
    """Put the policy file in force at once, although another one was when the state was saved."""
    planning_policy: str | None = None
    """A planning policy by name instead of the one in the policy file (comparison)."""

    def check(self) -> None:
        """Raise ValueError when what is reachable from outside would not be protected."""
        if not self.admin.loopback and not self.expose_admin:
            raise ValueError(
                f"--admin {self.admin}: the admin port has no authentication; expected a loopback address"
            )
        if self.csds and not self.csds.loopback:
            raise ValueError(f"--csds {self.csds}: the port has no authentication; expected loopback")
        if self.insecure_dev:
            outside = [text for text in (self.xds, self.reports) if not text.loopback]
            if outside:
                raise ValueError(f"--insecure-dev with {outside[0]}: expected loopback addresses only")
