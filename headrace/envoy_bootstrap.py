"""The bootstrap of a front-end's Envoy: `envoy/bootstrap.yaml` with values filled in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """What differs from one Envoy to the next."""

    frontend: str
    """Its front-end: Envoys of one front-end share their weights."""
    fleet: str
    xds: Sequence[tuple[str, int]]
    """(host, port) of every control plane; Envoy holds a stream to one of them."""
    node_id: str
    """The instance, unique in the fleet."""
    admin_port: int = 0
    """On 127.0.0.1; 0 binds an ephemeral port."""
    flush_interval_s: float = 5.0
    """How often counters are sent to the control plane."""
    max_connections: int = 50_000
    """Client connections beyond this are refused."""

    def render(self) -> str:
        """Return the bootstrap as YAML.

        Values are written as JSON, which is YAML too, so that no value can change the document's shape.
        Raises ValueError when there is no control plane to dial.
        """
        if not self.xds:
            raise ValueError("xds: expected at least one host:port of a control plane")
        values = {
            "node_id": self.node_id,
            "frontend": self.frontend,
            "fleet": self.fleet,
            "admin_port": self.admin_port,
            "xds_endpoints": [{"lb_endpoints": [_endpoint(host, port) for host, port in self.xds]}],
            "flush_interval": f"{self.flush_interval_s:g}s",
            "max_connections": self.max_connections,
        }
        template = Template(files("headrace").joinpath("bootstrap.yaml").read_text())
        return template.substitute({name: json.dumps(value) for name, value in values.items()})


def _endpoint(host: str, port: int) -> dict[str, object]:
    return {"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}}
