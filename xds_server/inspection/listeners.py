"""Listeners: the route configurations they name and what Envoy refuses in them."""

from __future__ import annotations

from collections.abc import Iterator

from xds_server.inspection import routes
from xds_server.inspection.reference import Reference
from xds_server.resource_types import RDS
from xds_server.views import View, decode

HTTP_CONNECTION_MANAGER = (
    "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
)


def references(view: View) -> Iterator[Reference]:
    """Route configurations by name, and the clusters of inline ones; the default filter chain counts."""
    for manager in _managers(view):
        if manager.HasField("rds"):
            yield Reference(RDS.url, manager.rds.route_config_name)
        if manager.HasField("route_config"):
            yield from routes.references(manager.route_config)


def problems(view: View) -> Iterator[str]:
    """What Envoy would refuse."""
    if not view.HasField("api_listener"):
        if not view.address.HasField("socket_address"):
            yield "a listener needs an address"
        if not view.filter_chains and not view.HasField("default_filter_chain"):
            yield "a listener needs a filter chain"
    for manager in _managers(view):
        yield from _manager_problems(manager, api=view.HasField("api_listener"))


def _manager_problems(manager: View, api: bool) -> Iterator[str]:
    if not api and not manager.stat_prefix:
        yield "an HTTP connection manager needs a stat_prefix"
    if not manager.http_filters:
        yield "an HTTP connection manager needs filters, the last of them the router"
    if manager.HasField("rds"):
        if not manager.rds.HasField("config_source") or not manager.rds.route_config_name:
            yield "rds needs config_source and route_config_name"
    elif manager.HasField("route_config"):
        yield from (f"route_config: {text}" for text in routes.problems(manager.route_config))
    elif not manager.HasField("scoped_routes"):
        yield "an HTTP connection manager needs rds or route_config"


def _managers(view: View) -> Iterator[View]:
    chains = [*view.filter_chains, view.default_filter_chain]
    configs = [filter_.typed_config for chain in chains for filter_ in chain.filters]
    configs.append(view.api_listener.api_listener)
    for config in configs:
        if config.type_url == HTTP_CONNECTION_MANAGER:
            yield decode("HttpConnectionManager", config.value)
