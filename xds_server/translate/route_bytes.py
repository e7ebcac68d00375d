"""The route configuration, assembled from encoded parts: a changed share encodes its key's intervals again.

A protobuf message is the concatenation of its fields, in any order, and a field that is a message is its
tag, its length and the encoding of that message; so parts that did not change are put together as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from xds_server.resources import length_delimited
from xds_server.routing import Model, RoutingTable, Split
from xds_server.translate import classes, direct, routes
from xds_server.translate.classes import ClassRule
from xds_server.translate.memo import Memo
from xds_server.translate.names import ModelNames, check_served

_VIRTUAL_HOSTS = 2
"""Field number of `RouteConfiguration.virtual_hosts`."""
_ROUTES = 3
"""Field number of `VirtualHost.routes`."""
_ACTION = 2
"""Field number of `Route.route`."""
_SHARES = 3
"""Field number of `RouteAction.weighted_clusters`."""


def encode(table: RoutingTable, splits: Sequence[Split], memo: Memo) -> bytes:
    """Encode the route configuration of one front-end, without the header that names its version.

    A key (model, class) without a split is answered like one without engines. Raises ValueError for a split
    of an unknown model, for two models of one name, and what the parts raise.
    """
    models = tuple(sorted(table.models, key=lambda model: model.name))
    memo.get("served names", check_served, models)
    known = ModelNames.of(model.name for model in models).by_spelling.values()
    if unknown := sorted({split.model for split in splits} - set(known)):
        raise ValueError(f"splits of unknown models {unknown}; known are {sorted(known)}")
    by_key = {(split.model, split.traffic_class): split for split in splits}
    rules = classes.class_rules(table.classes, table.match_order, table.listeners)
    hosts = [memo.get("default host", _default_host, models)]
    for model in models:
        host = memo.get(("host", model.name), _host, model)
        for rule in rules:
            key = (model.name, rule.traffic_class)
            split = by_key.get(key) or Split(*key, entries=(), reason="no plan yet")
            host += _class_routes(rule, model, split, memo)
        hosts.append(host)
    encoded = memo.get("routes", _configuration, models)
    return encoded + b"".join(length_delimited(_VIRTUAL_HOSTS, host) for host in hosts)


def _class_routes(rule: ClassRule, model: Model, split: Split, memo: Memo) -> bytes:
    """Encode one key's routes for one way to recognise its class.

    Streamed answers come first and may pause only so long; silence is normal before the only bytes of any
    other answer.
    """
    key = (model.name, rule.traffic_class)
    everything = memo.get(("match", rule, False), _match, rule, False)
    counter = memo.get(("counter", key), _counter, *key)
    if not split.entries:
        refusal = memo.get(("refusal", key), _refusal, split.reason)
        return length_delimited(_ROUTES, counter + everything + refusal)
    shares = length_delimited(_SHARES, memo.get(("shares", key), routes.intervals, split))
    streams = memo.get(("match", rule, True), _match, rule, True)
    encoded = b""
    for match, pause_s in ((streams, model.stream_idle_s), (everything, model.longest_generation_s)):
        action = memo.get(("forwarding", model.name, pause_s), _forwarding, model, pause_s)
        encoded += length_delimited(_ROUTES, match + counter + length_delimited(_ACTION, action + shares))
    return encoded


def _configuration(models: tuple[Model, ...]) -> bytes:
    return bytes(routes.configuration(models))


def _default_host(models: tuple[Model, ...]) -> bytes:
    return bytes(routes.default_host(models))


def _host(model: Model) -> bytes:
    return bytes(routes.model_host(model))


def _match(rule: ClassRule, streamed: bool) -> bytes:
    return bytes(classes.match(rule, streamed=streamed))


def _counter(model: str, traffic_class: str) -> bytes:
    return bytes(routes.demand_counter(model, traffic_class))


def _refusal(reason: str) -> bytes:
    return bytes(direct.no_engine(reason))


def _forwarding(model: Model, pause_s: float) -> bytes:
    return bytes(routes.forwarding(model, pause_s))
