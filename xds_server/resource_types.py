"""The one table of resource types; everything that treats all types iterates it.

A new type is one more row here: services, rollout, status and tests follow.
"""

from __future__ import annotations

from dataclasses import dataclass

_PREFIX = "type.googleapis.com/envoy."


@dataclass(frozen=True, slots=True)
class ResourceType:
    """What the protocol has to know about one type of resource."""

    name: str
    """Short name, as used in logs and metrics: `cds`, `eds`, ..."""
    url: str
    full_state: bool
    """In SotW every response carries all resources of the type, and absence means deletion (CDS, LDS);
    an empty first request is then a wildcard. Other types are partial and cannot signal deletion."""
    answers_nothing: bool
    """In SotW a first request for names that do not exist is answered with an empty response, so that the
    client can finish its start. Not for RDS: a listener without routes must not open."""
    service: str
    """Full name of the single-type gRPC service."""
    method: str
    """Suffix of its methods: `Stream<method>` (SotW) and `Delta<method>`."""


CDS = ResourceType(
    "cds",
    _PREFIX + "config.cluster.v3.Cluster",
    True,
    True,
    "envoy.service.cluster.v3.ClusterDiscoveryService",
    "Clusters",
)
EDS = ResourceType(
    "eds",
    _PREFIX + "config.endpoint.v3.ClusterLoadAssignment",
    False,
    True,
    "envoy.service.endpoint.v3.EndpointDiscoveryService",
    "Endpoints",
)
LDS = ResourceType(
    "lds",
    _PREFIX + "config.listener.v3.Listener",
    True,
    True,
    "envoy.service.listener.v3.ListenerDiscoveryService",
    "Listeners",
)
RDS = ResourceType(
    "rds",
    _PREFIX + "config.route.v3.RouteConfiguration",
    False,
    False,
    "envoy.service.route.v3.RouteDiscoveryService",
    "Routes",
)
RTDS = ResourceType(
    "rtds",
    _PREFIX + "service.runtime.v3.Runtime",
    False,
    True,
    "envoy.service.runtime.v3.RuntimeDiscoveryService",
    "Runtime",
)

TYPES: tuple[ResourceType, ...] = (CDS, EDS, LDS, RDS, RTDS)
"""All types, in the order in which responses leave a stream (make before break: clusters, their endpoints,
listeners, routes)."""

BY_URL: dict[str, ResourceType] = {type_.url: type_ for type_ in TYPES}
