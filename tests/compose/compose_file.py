"""docker-compose.yml as data, and its command lines fitted to one machine's loopback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
_TLS = ("--ca=", "--cert=", "--key=", "--tls-")
CONFIG = "/etc/headrace"
"""Where containers find the policy."""


def services() -> Mapping[str, Any]:
    """The services by name, anchors resolved."""
    found: Mapping[str, Any] = yaml.safe_load(FILE.read_text())["services"]
    return found


def image_command(service: Mapping[str, Any]) -> list[str]:
    """What the container runs after `headrace`: the image's entry point, then the service's command."""
    entry_point = ["envoy"] if service["image"] == "headrace-envoy" else []
    return [*entry_point, *service["command"]]


@dataclass
class Loopback:
    """What stands in for container names, ports and mounted folders, filled in as processes start."""

    config: Path
    """A copy of the mounted folder."""
    state: Path
    addresses: dict[str, str] = field(default_factory=dict)
    """`host:port` as the file writes it -> where that is here."""

    def command(self, service: Mapping[str, Any]) -> list[str]:
        """The service's command line for this machine.

        Certificates go, since replicas on loopback are taken in development mode only.
        """
        arguments = [argument for argument in image_command(service) if not argument.startswith(_TLS)]
        return [self._argument(argument) for argument in arguments]

    def _argument(self, argument: str) -> str:
        for there, here in self.addresses.items():
            argument = argument.replace(there, here)
        return argument.replace(CONFIG, str(self.config)).replace("/var/lib/headrace", str(self.state))
