"""Clusters: what they need (load assignment, composite members) and what Envoy refuses in them."""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt

from xds_server.inspection.endpoints import assignment_problems
from xds_server.inspection.reference import Reference
from xds_server.resource_types import CDS, EDS
from xds_server.views import View, decode

_EDS_TYPE = 3
COMPOSITE = "type.googleapis.com/envoy.extensions.clusters.composite.v3.ClusterConfig"
MAX_RING = 8 << 20
MAX_TABLE = 5_000_011


def references(view: View) -> Iterator[Reference]:
    """An EDS cluster needs its load assignment, a composite its members."""
    if _is_eds(view):
        yield Reference(EDS.url, view.eds_cluster_config.service_name or view.name)
    for member in _members(view):
        yield Reference(CDS.url, member)


def problems(view: View) -> Iterator[str]:
    """What Envoy would refuse."""
    if _is_eds(view) and not view.eds_cluster_config.HasField("eds_config"):
        yield "an EDS cluster needs eds_cluster_config.eds_config"
    if view.HasField("connect_timeout") and _seconds(view.connect_timeout) <= 0:
        yield "connect_timeout must be above 0"
    if not 0 <= view.common_lb_config.healthy_panic_threshold.value <= 100:
        yield "healthy_panic_threshold must be within 0..100"
    yield from _composite(view)
    yield from _hashing(view)
    if view.HasField("load_assignment"):
        yield from (f"load_assignment: {text}" for text in assignment_problems(view.load_assignment, True))


def _composite(view: View) -> Iterator[str]:
    if view.cluster_type.typed_config.type_url != COMPOSITE:
        return
    members = _members(view)
    if not members or "" in members:
        yield "a composite cluster needs members with names"
    if view.name in members:
        yield "a composite cluster is its own member"


def _hashing(view: View) -> Iterator[str]:
    ring = view.ring_hash_lb_config
    smallest, largest = ring.minimum_ring_size.value, ring.maximum_ring_size.value
    if max(smallest, largest) > MAX_RING:
        yield f"ring sizes must not exceed {MAX_RING}"
    if ring.HasField("maximum_ring_size") and smallest > largest:
        yield f"minimum_ring_size {smallest} is above maximum_ring_size {largest}"
    table = view.maglev_lb_config.table_size
    if view.maglev_lb_config.HasField("table_size") and not (
        _is_prime(table.value) and table.value <= MAX_TABLE
    ):
        yield f"maglev table_size {table.value} must be a prime of at most {MAX_TABLE}"


def _is_eds(view: View) -> bool:
    return bool(view.type == _EDS_TYPE)


def _members(view: View) -> list[str]:
    config = view.cluster_type.typed_config
    if config.type_url != COMPOSITE:
        return []
    return [entry.name for entry in decode("CompositeCluster", config.value).clusters]


def _seconds(duration: View) -> float:
    return float(duration.seconds + duration.nanos / 1e9)


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, isqrt(number) + 1))
