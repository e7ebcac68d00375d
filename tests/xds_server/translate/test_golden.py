"""What is rendered, as text: a change of behaviour shows as a difference of these files.

HEADRACE_WRITE_GOLDEN=1 writes them anew.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment
from envoy_data_plane.envoy.config.listener.v3 import Listener
from envoy_data_plane.envoy.config.route.v3 import RouteConfiguration
from envoy_data_plane.envoy.extensions.clusters.composite.v3 import ClusterConfig
from envoy_data_plane.envoy.service.runtime.v3 import Runtime

from tests.xds_server.translate.tables import LARGE, SMALL, table
from xds_server.resource_types import CDS, EDS, LDS, RDS, RTDS, ResourceType
from xds_server.translate import names, translate

MESSAGES = {
    LDS: Listener,
    RDS: RouteConfiguration,
    CDS: Cluster,
    EDS: ClusterLoadAssignment,
    RTDS: Runtime,
}
EXTENSIONS = (ClusterConfig,)
"""Decoded inside the messages; importing them is enough."""
GOLDEN = Path(__file__).parent / "golden"
RENDERED = {
    "listener": (LDS, "internal"),
    "routes": (RDS, names.ROUTES),
    "member": (CDS, "interactive/home"),
    "member-maglev": (CDS, "batch/away"),
    "member-gateway": (CDS, "interactive/pool"),
    "composite": (CDS, names.composite(LARGE, "interactive", "home")),
    "composite-gateway": (CDS, names.composite(SMALL, "interactive", "pool")),
    "shed": (CDS, names.shed(LARGE, "interactive")),
    "assignment": (EDS, "interactive/home"),
    "assignment-shed": (EDS, names.shed(LARGE, "interactive")),
    "runtime": (RTDS, names.RUNTIME_LAYER),
}


@pytest.mark.parametrize("name", RENDERED)
def test_what_is_rendered_is_what_was_reviewed(name: str) -> None:
    type_, resource = RENDERED[name]
    text = _text(type_, resource)
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("HEADRACE_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def _text(type_: ResourceType, name: str) -> str:
    body = translate(table(), "us-east").of_type(type_.url)[name].body
    return yaml.safe_dump(MESSAGES[type_].parse(body).to_dict(), width=100, allow_unicode=True)
