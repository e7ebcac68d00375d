"""EDS: the replicas of an engine, and the empty assignments that refuse what is shed.

Every member cluster has an assignment of its own name (a second cluster with another's service name asks
for nothing and warms for 15 s). The members of one engine differ in the name only, so the replicas are
encoded once and the name is put before them: a protobuf message is the concatenation of its fields.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from envoy_data_plane.envoy.config.core.v3 import HealthStatus

from xds_server import views
from xds_server.routing import Endpoint, Health

_STATUS = {
    Health.HEALTHY: HealthStatus.HEALTHY,
    Health.DRAINING: HealthStatus.DRAINING,
    Health.UNHEALTHY: HealthStatus.UNHEALTHY,
}

_EVERYTHING = {"numerator": 100}
"""Per cent, the denominator when none is named."""


def replicas(engine: str, endpoints: Iterable[Endpoint], *, hostnames: bool = False) -> bytes:
    """Encode the assignment of an engine's replicas without its cluster name, sorted by replica.

    Of two replicas with one address the first is kept: Envoy would drop the other without a word.
    `hostnames` makes Envoy send an endpoint's address as `Host` (gateways found by DNS).
    """
    by_address: dict[tuple[str, int], Endpoint] = {}
    for endpoint in sorted(endpoints, key=lambda e: (e.replica, e.address, e.port)):
        by_address.setdefault((endpoint.address, endpoint.port), endpoint)
    found = [_lb_endpoint(engine, endpoint, hostnames) for endpoint in by_address.values()]
    if not found:
        return b""
    # Envoy needs neither name nor weight of the one locality, gRPC clients refuse it without.
    place = {"locality": {"sub_zone": engine}, "load_balancing_weight": {"value": 1}}
    return views.encode("ClusterLoadAssignment", {"endpoints": [{**place, "lb_endpoints": found}]})


def named(cluster: str, encoded_replicas: bytes) -> bytes:
    """Encode the assignment of one cluster from its name and already encoded replicas."""
    return views.encode("ClusterLoadAssignment", {"cluster_name": cluster}) + encoded_replicas


def refusal(cluster: str) -> bytes:
    """Encode the assignment of a cluster that drops every request: the shed part of a demand."""
    policy = {"drop_overloads": [{"category": "shed", "drop_percentage": _EVERYTHING}]}
    return views.encode("ClusterLoadAssignment", {"cluster_name": cluster, "policy": policy})


def _lb_endpoint(engine: str, endpoint: Endpoint, hostnames: bool) -> dict[str, Any]:
    """Describe one endpoint; its place on the hash ring follows from the replica's name, not its address."""
    place = {"hash_key": endpoint.replica}
    who = {"engine": engine, "replica": endpoint.replica}
    address = {"address": endpoint.address, "port_value": endpoint.port}
    return {
        "endpoint": {
            "address": {"socket_address": address},
            "hostname": endpoint.address if hostnames else "",
        },
        "health_status": int(_STATUS[endpoint.health]),
        "metadata": {"filter_metadata": {"envoy.lb": _struct(place), "headrace": _struct(who)}},
        "load_balancing_weight": {"value": endpoint.weight},
    }


def _struct(texts: dict[str, str]) -> dict[str, Any]:
    return {"fields": {key: {"string_value": value} for key, value in texts.items()}}
