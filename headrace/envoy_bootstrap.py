"""The bootstrap of a front-end's Envoy: `envoy/bootstrap.yaml` with values filled in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template


@dataclass(frozen=True, slots=True)
class ClientTls:
    """PEM files on Envoy's own disk; their content is never in a bootstrap."""

    cert: Path
    """Certificate that names the front-end, as the policy's `security.xds.identity` says."""
    key: Path
    ca: Path
    """Authority of the control plane's certificate."""
    server_name: str
    """DNS name that the control plane's certificate must carry."""

    def transport_socket(self) -> dict[str, object]:
        """Return Envoy's transport socket."""
        certificate = {
            "certificate_chain": {"filename": str(self.cert)},
            "private_key": {"filename": str(self.key)},
        }
        san = {"san_type": "DNS", "matcher": {"exact": self.server_name}}
        return {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                "sni": self.server_name,
                "common_tls_context": {
                    "alpn_protocols": ["h2"],
                    "tls_certificates": [certificate],
                    "validation_context": {
                        "trusted_ca": {"filename": str(self.ca)},
                        "match_typed_subject_alt_names": [san],
                    },
                },
            },
        }


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
    tls: ClientTls | None = None
    """How the control plane is dialled; None = plaintext, which only a development one takes."""

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
            "transport_socket": self.tls.transport_socket() if self.tls else None,
        }
        template = Template(files("headrace").joinpath("bootstrap.yaml").read_text())
        return template.substitute({name: json.dumps(value) for name, value in values.items()})


def _endpoint(host: str, port: int) -> dict[str, object]:
    return {"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}}
