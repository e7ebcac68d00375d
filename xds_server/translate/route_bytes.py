"""The route configuration, assembled from encoded parts: a changed share encodes one key's route again."""

from __future__ import annotations

from collections.abc import Sequence

from xds_server.routing import Model, RoutingTable, Split
from xds_server.translate import routes
from xds_server.translate.memo import Memo
from xds_server.translate.names import ModelNames
from xds_server.translate.routes import ClassRule
from xds_server.translate.wire import nested

_VIRTUAL_HOSTS = 2
"""Field number of `RouteConfiguration.virtual_hosts`."""
_ROUTES = 3
"""Field number of `VirtualHost.routes`."""


def encode(table: RoutingTable, splits: Sequence[Split], memo: Memo) -> bytes:
    """Encode the route configuration of one front-end, without the header that names its version.

    A key (model, class) without a split is answered like one without engines. Raises ValueError for a split
    of an unknown model, for two models of one name, and what the parts raise.
    """
    models = tuple(sorted(table.models, key=lambda model: model.name))
    by_name = ModelNames.of(model.name for model in models).by_spelling.values()
    if unknown := sorted({split.model for split in splits} - set(by_name)):
        raise ValueError(f"splits of unknown models {unknown}; known are {sorted(by_name)}")
    by_key = {(split.model, split.traffic_class): split for split in splits}
    rules = routes.class_rules(table.classes, table.match_order, table.listeners)
    encoded = memo.get("routes", _configuration, models)
    for model in models:
        host = memo.get(("host", model.name), _host, model)
        for rule in rules:
            split = by_key.get((model.name, rule[0])) or Split(model.name, rule[0], (), reason="no plan yet")
            base = memo.get(("route", model.name, rule[0]), _route, model, split)
            host += _matched(rule, model, split, base)
        encoded += nested(_VIRTUAL_HOSTS, host)
    return encoded


def _configuration(models: tuple[Model, ...]) -> bytes:
    encoded = bytes(routes.configuration(models))
    return encoded + nested(_VIRTUAL_HOSTS, bytes(routes.default_host(models)))


def _host(model: Model) -> bytes:
    return bytes(routes.model_host(model))


def _route(model: Model, split: Split) -> bytes:
    return bytes(routes.split_route(model, split))


def _matched(rule: ClassRule, model: Model, split: Split, base: bytes) -> bytes:
    """Encode one key's routes for one way to recognise its class.

    Streamed answers come first and may pause only so long; silence is normal before the only bytes of any
    other answer. Parts that are merged must not share a message with numbers, such as a duration.
    """
    plain = base + bytes(routes.matched(rule))
    if not split.entries:
        return nested(_ROUTES, plain)
    plain += bytes(routes.idle_limit(model.longest_generation_s))
    streamed = base + bytes(routes.matched_streams(rule)) + bytes(routes.idle_limit(model.stream_idle_s))
    return nested(_ROUTES, streamed) + nested(_ROUTES, plain)
