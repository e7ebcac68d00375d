"""Route configurations: the clusters they name, also behind matchers, and what Envoy refuses in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from xds_server.inspection.reference import Reference
from xds_server.resource_types import CDS
from xds_server.views import View, decode

ROUTE = "type.googleapis.com/envoy.config.route.v3.Route"
ROUTE_LIST = "type.googleapis.com/envoy.config.route.v3.RouteList"
UINT32_MAX = 2**32 - 1
_ACTIONS = ("route", "redirect", "direct_response", "filter_action", "non_forwarding_action")


def references(view: View) -> Iterator[Reference]:
    """Every cluster that is named: plain, weighted, mirrored. `cluster_header` names none."""
    yield from _mirrors(view)
    for host in view.virtual_hosts:
        yield from _mirrors(host)
        for route in _routes(host):
            action = route.route
            names = [action.cluster, *(entry.name for entry in action.weighted_clusters.clusters)]
            yield from (Reference(CDS.url, name) for name in names if name)
            yield from _mirrors(action)


def problems(view: View) -> Iterator[str]:
    """What Envoy would refuse."""
    yield from _twice("virtual host name", [host.name for host in view.virtual_hosts])
    domains = [domain.lower() for host in view.virtual_hosts for domain in host.domains]
    yield from _twice("domain", domains)
    for host in view.virtual_hosts:
        if not host.name or not host.domains:
            yield f"virtual host {host.name!r} needs a name and domains"
        if host.routes and host.HasField("matcher"):
            yield f"virtual host {host.name!r} has both routes and a matcher"
        for number, route in enumerate(_routes(host)):
            label = f"virtual host {host.name!r}, route {route.name or number!r}"
            yield from (f"{label}: {text}" for text in _route_problems(route))


def _route_problems(route: View) -> Iterator[str]:
    if not route.HasField("match"):
        yield "has no match"
    if not any(route.HasField(action) for action in _ACTIONS):
        yield "has no action"
    if route.HasField("route"):
        yield from _action_problems(route.route)


def _action_problems(action: View) -> Iterator[str]:
    if not action.HasField("weighted_clusters"):
        return
    entries = action.weighted_clusters.clusters
    if not entries:
        yield "weighted_clusters is empty"
        return
    total = sum(entry.weight.value for entry in entries)
    if not 0 < total <= UINT32_MAX:
        yield f"weights sum to {total}, not within 1..{UINT32_MAX}"
    if any(bool(entry.name) == bool(entry.cluster_header) for entry in entries):
        yield "a weighted cluster needs exactly one of name and cluster_header"


def _routes(host: View) -> Iterator[View]:
    yield from host.routes
    if host.HasField("matcher"):
        yield from _behind(host.matcher)


def _behind(matcher: View) -> Iterator[View]:
    """The routes at the leaves of a matcher tree."""
    outcomes = [matcher.on_no_match, *(field.on_match for field in matcher.matcher_list.matchers)]
    for tree in (matcher.matcher_tree.exact_match_map, matcher.matcher_tree.prefix_match_map):
        outcomes.extend(tree.map.values())
    for outcome in outcomes:
        if outcome.HasField("matcher"):
            yield from _behind(outcome.matcher)
        config = outcome.action.typed_config
        if config.type_url == ROUTE:
            yield decode("Route", config.value)
        elif config.type_url == ROUTE_LIST:
            yield from decode("RouteList", config.value).routes


def _mirrors(view: View) -> Iterator[Reference]:
    return (Reference(CDS.url, mirror.cluster) for mirror in view.request_mirror_policies if mirror.cluster)


def _twice(what: str, values: list[str]) -> Iterator[str]:
    return (f"{what} {value!r} occurs {times} times" for value, times in Counter(values).items() if times > 1)
