"""How the traffic class of a request is told: by headers on listeners that trust them, else by listener."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from envoy_data_plane.envoy.config.route.v3 import HeaderMatcher, Route, RouteMatch

from xds_server.routing import Listener, TrafficClass
from xds_server.translate import names
from xds_server.translate.packing import exactly


@dataclass(frozen=True, slots=True)
class ClassRule:
    """A traffic class and the headers that select it."""

    traffic_class: str
    headers: tuple[tuple[str, str | None], ...]
    """(name, exact value), or None as the value of a header that must only be there."""


def class_rules(
    classes: Iterable[TrafficClass], match_order: Sequence[str], listeners: Sequence[Listener]
) -> list[ClassRule]:
    """List how classes are recognised, first match first.

    Raises ValueError for a class header that no client can send and for an unknown class.
    """
    by_name = {each.name: each for each in classes}
    named = {*match_order, *(listener.default_class for listener in listeners)}
    if unknown := sorted(named - by_name.keys()):
        raise ValueError(f"unknown traffic classes {unknown}; known are {sorted(by_name)}")
    rules = []
    if any(listener.trust_headers for listener in listeners):
        for name in [*match_order, *sorted(by_name.keys() - set(match_order))]:
            if header := by_name[name].match_header:
                names.refuse_internal(header, "traffic class")
                condition = (header.lower(), by_name[name].match_value)
                rules.append(ClassRule(name, ((names.TRUSTED_HEADER, None), condition)))
    for name in sorted({listener.default_class for listener in listeners}):
        rules.append(ClassRule(name, ((names.DEFAULT_CLASS_HEADER, name),)))
    return rules


def match(rule: ClassRule, *, streamed: bool) -> Route:
    """Build the part of a route that says what it is for: a class, or its streamed requests only."""
    headers = [*rule.headers, (names.STREAM_HEADER, "true")] if streamed else rule.headers
    return Route(match=RouteMatch(prefix="/", headers=[_matcher(name, value) for name, value in headers]))


def _matcher(name: str, value: str | None) -> HeaderMatcher:
    if value is None:
        return HeaderMatcher(name=name, present_match=True)
    return HeaderMatcher(name=name, string_match=exactly(value))
