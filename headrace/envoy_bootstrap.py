"""The bootstrap of a front-end's Envoy: `envoy/bootstrap.yaml` with values filled in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from string import Template

from headrace.policy.schema import Overload

IDENTITY_FILE, AUTHORITY_FILE = "identity.json", "authority.json"
"""Files beside a bootstrap with TLS, in which Envoy finds where its certificates are (file SDS)."""
_TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3"


@dataclass(frozen=True, slots=True)
class ClientTls:
    """PEM files on Envoy's own disk; their content is in no bootstrap and passes through no control plane.

    Envoy watches their folders and reads them again when something is renamed into one, so a certificate is
    rotated without a restart (a rename, or the symlink swap of a mounted Secret; not a write in place). A
    certificate and a key that do not fit each other are not taken: the last good pair stays until they do.
    """

    cert: Path
    """Certificate that names the front-end, as the policy's `security.xds.identity` says."""
    key: Path
    """Its key; in another folder than `cert` it has to be in place first, as only that one is watched."""
    ca: Path
    """Authority of the control plane's certificate."""
    server_name: str
    """DNS name that the control plane's certificate must carry."""

    def transport_socket(self, folder: Path) -> dict[str, object]:
        """Return Envoy's transport socket; `folder` holds what `secrets` gives."""
        san = {"san_type": "DNS", "matcher": {"exact": self.server_name}}
        return {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": f"{_TLS}.UpstreamTlsContext",
                "sni": self.server_name,
                "common_tls_context": {
                    "alpn_protocols": ["h2"],
                    "tls_certificate_sds_secret_configs": [_by_file("identity", folder / IDENTITY_FILE)],
                    # What is trusted for what stands here; the file names the authority alone.
                    "combined_validation_context": {
                        "default_validation_context": {"match_typed_subject_alt_names": [san]},
                        "validation_context_sds_secret_config": _by_file(
                            "authority", folder / AUTHORITY_FILE
                        ),
                    },
                },
            },
        }

    def secrets(self) -> dict[str, str]:
        """File name -> content of the SDS resources that the transport socket reads: paths, no secrets."""
        identity = {
            "certificate_chain": {"filename": str(self.cert)},
            "private_key": {"filename": str(self.key)},
            "watched_directory": {"path": str(self.cert.parent)},
        }
        authority = {
            "trusted_ca": {"filename": str(self.ca)},
            "watched_directory": {"path": str(self.ca.parent)},
        }
        return {
            IDENTITY_FILE: _secret("identity", {"tls_certificate": identity}),
            AUTHORITY_FILE: _secret("authority", {"validation_context": authority}),
        }


def _by_file(name: str, file: Path) -> dict[str, object]:
    source = {"path_config_source": {"path": str(file)}, "resource_api_version": "V3"}
    return {"name": name, "sds_config": source}


def _secret(name: str, content: dict[str, object]) -> str:
    return json.dumps({"resources": [{"@type": f"{_TLS}.Secret", "name": name, **content}]}, indent=1)


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
    overload: Overload = field(default_factory=Overload)
    """What this Envoy takes at most; read when it starts."""
    tls: ClientTls | None = None
    """How the control plane is dialled; None = plaintext, which only a development one takes."""

    def write(self, folder: Path) -> Path:
        """Write the bootstrap, and with TLS the files that name the certificates, into an existing folder;
        returns the bootstrap's path. Raises as `render` does."""
        folder = folder.absolute()
        path = folder / "bootstrap.yaml"
        path.write_text(self.render(folder))
        for name, content in (self.tls.secrets() if self.tls else {}).items():
            (folder / name).write_text(content)
        return path

    def render(self, folder: Path) -> str:
        """Return the bootstrap as YAML, for an Envoy that finds the files of `tls` in `folder`.

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
            "max_connections": self.overload.max_connections,
            "max_heap_bytes": self.overload.max_heap_mib << 20,
            "transport_socket": self.tls.transport_socket(folder) if self.tls else None,
        }
        template = Template(files("headrace").joinpath("bootstrap.yaml").read_text())
        return template.substitute({name: json.dumps(value) for name, value in values.items()})


def _endpoint(host: str, port: int) -> dict[str, object]:
    return {"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}}
