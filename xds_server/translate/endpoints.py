"""EDS: the replicas of an engine, and the empty assignments that refuse what is shed.

Every member cluster has an assignment of its own name (a second cluster with another's service name asks
for nothing and warms for 15 s). The members of one engine differ in the name only, so the replicas are
encoded once and the name is put before them: a protobuf message is the concatenation of its fields.
"""

from __future__ import annotations

from collections.abc import Iterable

from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    HealthStatus,
    Locality,
    Metadata,
    SocketAddress,
)
from envoy_data_plane.envoy.config.endpoint.v3 import (
    ClusterLoadAssignment,
    ClusterLoadAssignmentPolicy,
    ClusterLoadAssignmentPolicyDropOverload,
    LbEndpoint,
    LocalityLbEndpoints,
)
from envoy_data_plane.envoy.config.endpoint.v3 import Endpoint as EnvoyEndpoint
from envoy_data_plane.envoy.type.v3 import FractionalPercent, FractionalPercentDenominatorType
from envoy_data_plane.google.protobuf import Struct, Value

from xds_server.routing import Endpoint, Health

_STATUS = {
    Health.HEALTHY: HealthStatus.HEALTHY,
    Health.DRAINING: HealthStatus.DRAINING,
    Health.UNHEALTHY: HealthStatus.UNHEALTHY,
}


def replicas(engine: str, endpoints: Iterable[Endpoint], *, hostnames: bool = False) -> ClusterLoadAssignment:
    """Build the assignment of an engine's replicas without its cluster name, sorted by replica.

    Of two replicas with one address the first is kept: Envoy would drop the other without a word.
    `hostnames` makes Envoy send an endpoint's address as `Host` (gateways found by DNS).
    """
    by_address: dict[tuple[str, int], Endpoint] = {}
    for endpoint in sorted(endpoints, key=lambda e: (e.replica, e.address, e.port)):
        by_address.setdefault((endpoint.address, endpoint.port), endpoint)
    found = [_lb_endpoint(engine, endpoint, hostnames) for endpoint in by_address.values()]
    # One locality an engine: clients other than Envoy refuse endpoints without one.
    place = LocalityLbEndpoints(locality=Locality(zone=engine), lb_endpoints=found)
    return ClusterLoadAssignment(endpoints=[place] if found else [])


def named(cluster: str, encoded_replicas: bytes) -> bytes:
    """Encode the assignment of one cluster from its name and already encoded replicas."""
    return bytes(ClusterLoadAssignment(cluster_name=cluster)) + encoded_replicas


def refusal(cluster: str) -> ClusterLoadAssignment:
    """Build the assignment of a cluster that drops every request: the shed part of a demand."""
    everything = FractionalPercent(numerator=100, denominator=FractionalPercentDenominatorType.HUNDRED)
    drop = ClusterLoadAssignmentPolicyDropOverload(category="shed", drop_percentage=everything)
    return ClusterLoadAssignment(
        cluster_name=cluster, policy=ClusterLoadAssignmentPolicy(drop_overloads=[drop])
    )


def _lb_endpoint(engine: str, endpoint: Endpoint, hostnames: bool) -> LbEndpoint:
    """Build one endpoint; its place on the hash ring follows from the replica's name, not its address."""
    address = SocketAddress(address=endpoint.address, port_value=endpoint.port)
    who = {"engine": _text(engine), "replica": _text(endpoint.replica)}
    return LbEndpoint(
        endpoint=EnvoyEndpoint(
            address=Address(socket_address=address), hostname=endpoint.address if hostnames else ""
        ),
        health_status=_STATUS[endpoint.health],
        metadata=Metadata(
            filter_metadata={
                "envoy.lb": Struct(fields={"hash_key": _text(endpoint.replica)}),
                "headrace": Struct(fields=who),
            }
        ),
        load_balancing_weight=endpoint.weight,
    )


def _text(value: str) -> Value:
    return Value(string_value=value)
