"""Where the session key of a request comes from, as Envoy's hash policy and as body fields to extract."""

from __future__ import annotations

import re
from collections.abc import Iterable

from envoy_data_plane.envoy.config.route.v3 import RouteActionHashPolicy, RouteActionHashPolicyHeader

from xds_server.routing import Model
from xds_server.translate import names

_FIELD = re.compile(r"[A-Za-z0-9_.:-]+")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def hash_policy(sources: Iterable[str]) -> list[RouteActionHashPolicy]:
    """Hash the first source that is present.

    Raises ValueError for a source that is neither `header:<name>` nor `body:<field>`.
    """
    return [
        RouteActionHashPolicy(
            header=RouteActionHashPolicyHeader(header_name=carrying_header(source)), terminal=True
        )
        for source in sources
    ]


def carrying_header(source: str) -> str:
    """Name the request header in which a session key arrives at the router."""
    kind, _, name = source.partition(":")
    if kind == "header" and _HEADER.fullmatch(name):
        names.refuse_internal(name, "session key")
        return name.lower()
    if kind == "body" and _FIELD.fullmatch(name):
        return names.body_header(name)
    raise ValueError(f"session key {source!r}: expected header:<name> or body:<field>")


def body_fields(models: Iterable[Model]) -> list[str]:
    """List the body fields that any model takes its session key from, sorted."""
    sources = {source for model in models for source in model.session_keys}
    return sorted(source.partition(":")[2] for source in sources if source.startswith("body:"))
