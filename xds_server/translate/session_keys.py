"""Where the session key of a request comes from, as Envoy's hash policy and as body fields to extract.

A key from the body goes through an internal header into filter state, and is hashed there: internal headers
are removed before a replica is chosen, and a retry chooses again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from envoy_data_plane.envoy.config.core.v3 import DataSource, SubstitutionFormatString
from envoy_data_plane.envoy.config.route.v3 import (
    RouteActionHashPolicy,
    RouteActionHashPolicyFilterState,
    RouteActionHashPolicyHeader,
)
from envoy_data_plane.envoy.extensions.filters.common.set_filter_state.v3 import FilterStateValue

from xds_server.routing import Model
from xds_server.translate import names

_FIELD = re.compile(r"[A-Za-z0-9_.:-]+")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def hash_policy(sources: Iterable[str]) -> list[RouteActionHashPolicy]:
    """Hash the first source that is present.

    Raises ValueError for a source that is neither `header:<name>` nor `body:<field>`.
    """
    return [_policy(source) for source in sources]


def kept_in_filter_state(field: str) -> FilterStateValue:
    """Keep the key from a body field, if there is one, for the length of the request."""
    value = DataSource(inline_string=f"%REQ({names.body_header(field)})%")
    return FilterStateValue(
        object_key=_state(field),
        factory_key="envoy.hashable_string",
        format_string=SubstitutionFormatString(text_format_source=value, omit_empty_values=True),
        skip_if_empty=True,
    )


def _policy(source: str) -> RouteActionHashPolicy:
    kind, _, name = source.partition(":")
    if kind == "header" and _HEADER.fullmatch(name):
        names.refuse_internal(name, "session key")
        header = RouteActionHashPolicyHeader(header_name=name.lower())
        return RouteActionHashPolicy(header=header, terminal=True)
    if kind == "body" and _FIELD.fullmatch(name):
        state = RouteActionHashPolicyFilterState(key=_state(name))
        return RouteActionHashPolicy(filter_state=state, terminal=True)
    raise ValueError(f"session key {source!r}: expected header:<name> or body:<field>")


def _state(field: str) -> str:
    return f"headrace.session.{field}"


def body_fields(models: Iterable[Model]) -> list[str]:
    """List the body fields that any model takes its session key from, sorted.

    Raises ValueError for two fields that one internal header would carry.
    """
    sources = {source for model in models for source in model.session_keys}
    fields = sorted(source.partition(":")[2] for source in sources if source.startswith("body:"))
    carried: dict[str, str] = {}
    for field in fields:
        if (other := carried.setdefault(names.body_header(field), field)) != field:
            raise ValueError(f"session keys body:{other} and body:{field} are too alike; use one of them")
    return fields
