"""What a resource refers to, and what a client would refuse in it: read from the bytes that will be sent.

One module a type. Each has `references(view)` and `problems(view)`, generators over a decoded view. The
rules are those that make Envoy or grpc refuse or silently misread a resource; nothing here is a matter of
taste.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from xds_server.inspection import clusters, endpoints, listeners, routes, runtime
from xds_server.inspection.reference import Reference
from xds_server.resource_types import BY_URL, CDS, EDS, LDS, RDS, RTDS
from xds_server.views import DecodeError, View, decode

__all__ = ["Findings", "Reference", "inspect"]


@dataclass(frozen=True, slots=True)
class Findings:
    """Result of an inspection."""

    references: frozenset[Reference] = frozenset()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Rules:
    view: str
    name_field: str
    references: Callable[[View], Iterable[Reference]]
    problems: Callable[[View], Iterable[str]]


_RULES = {
    CDS.url: _Rules("Cluster", "name", clusters.references, clusters.problems),
    EDS.url: _Rules("ClusterLoadAssignment", "cluster_name", endpoints.references, endpoints.problems),
    LDS.url: _Rules("Listener", "name", listeners.references, listeners.problems),
    RDS.url: _Rules("RouteConfiguration", "name", routes.references, routes.problems),
    RTDS.url: _Rules("Runtime", "name", runtime.references, runtime.problems),
}


def inspect(type_url: str, name: str, body: bytes) -> Findings:
    """Read references and problems of the resource `name`. Bytes that cannot be decoded are a problem."""
    rules = _RULES[type_url]
    try:
        view = decode(rules.view, body)
        problems = list(rules.problems(view))
        references = frozenset(rules.references(view))
    except DecodeError as error:
        return Findings(problems=(f"not a {BY_URL[type_url].url.rpartition('.')[2]}: {error}",))
    if (inside := getattr(view, rules.name_field)) != name:
        problems.insert(0, f"{rules.name_field} is {inside!r}")
    return Findings(references, tuple(problems))
