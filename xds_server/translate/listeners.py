"""LDS: the listeners and their HTTP filters.

A changed listener cuts its running streams once the drain time has passed, so nothing here depends on
shares, load or membership; it follows the policy's listeners, classes, session keys and constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any as AnyMessage

from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation, HeaderMutationRemoveOnMatch
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    HttpProtocolOptions,
    SocketAddress,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.config.listener.v3 import Filter, FilterChain
from envoy_data_plane.envoy.config.listener.v3 import Listener as EnvoyListener
from envoy_data_plane.envoy.config.route.v3 import HeaderMatcher
from envoy_data_plane.envoy.extensions.filters.http.buffer.v3 import Buffer
from envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 import (
    HeaderMutation as HeaderMutationFilter,
)
from envoy_data_plane.envoy.extensions.filters.http.health_check.v3 import HealthCheck
from envoy_data_plane.envoy.extensions.filters.http.local_ratelimit.v3 import LocalRateLimit
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
from envoy_data_plane.envoy.extensions.filters.http.set_filter_state.v3 import Config as SetFilterState
from envoy_data_plane.envoy.extensions.filters.http.transform.v3 import Transformation, TransformConfig
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpConnectionManagerServerHeaderTransformation,
    HttpFilter,
    Rds,
)
from envoy_data_plane.envoy.extensions.http.early_header_mutation.header_mutation.v3 import (
    HeaderMutation as EarlyHeaderMutation,
)
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher

from xds_server.routing import Listener, ShedAnswer
from xds_server.translate import names
from xds_server.translate.local_replies import local_replies
from xds_server.translate.packing import ads, exactly, overwrite, pack
from xds_server.translate.session_keys import kept_in_filter_state

HEALTH_PATH = "/health"
"""Answered by every listener: 200, and 503 once the Envoy was told to fail it (draining)."""

MAX_REQUEST_HEADERS_KB = 96
MAX_REQUEST_HEADERS = 200


def listener(settings: Listener, session_fields: Sequence[str], answers: ShedAnswer) -> EnvoyListener:
    """Build one listener of every Envoy; `session_fields` are body fields that hold session keys."""
    manager = HttpConnectionManager(
        stat_prefix=settings.name,
        rds=Rds(config_source=ads(), route_config_name=names.ROUTES),
        early_header_mutation_extensions=[
            TypedExtensionConfig(
                name="envoy.http.early_header_mutation.header_mutation",
                typed_config=pack(EarlyHeaderMutation(mutations=_early(settings))),
            )
        ],
        http_filters=[
            _filter("envoy.filters.http.health_check", _health()),
            _filter(names.HEADER_FILTER, HeaderMutationFilter()),
            # The limit is the route's; this one only has to be there.
            _filter(names.BUFFER_FILTER, Buffer(max_request_bytes=1)),
            _filter("envoy.filters.http.transform", _transform(session_fields)),
            _filter("envoy.filters.http.set_filter_state", _session_keys(session_fields)),
            _filter(names.DEMAND_FILTER, LocalRateLimit(stat_prefix="unrouted")),
            _filter("envoy.filters.http.router", Router(suppress_envoy_headers=True)),
        ],
        local_reply_config=local_replies(answers),
        common_http_protocol_options=HttpProtocolOptions(max_headers_count=MAX_REQUEST_HEADERS),
        max_request_headers_kb=MAX_REQUEST_HEADERS_KB,
        request_headers_timeout=timedelta(seconds=30),
        # Engines use the client's request id as the answer's.
        preserve_external_request_id=True,
        server_header_transformation=HttpConnectionManagerServerHeaderTransformation.PASS_THROUGH,
        use_remote_address=True,
    )
    return EnvoyListener(
        name=settings.name,
        address=Address(socket_address=SocketAddress(address=settings.address, port_value=settings.port)),
        filter_chains=[FilterChain(filters=[_network_filter(manager)])],
    )


def _early(settings: Listener) -> list[HeaderMutation]:
    """Remove whatever a client may have sent under our prefix, then say what the listener knows.

    Removing later is not enough: a value that the transform filter has no reason to overwrite would stay.
    """
    known = {names.MODEL_HEADER: names.NO_MODEL, names.DEFAULT_CLASS_HEADER: settings.default_class}
    if settings.trust_headers:
        known[names.TRUSTED_HEADER] = "1"
    ours = StringMatcher(prefix=names.INTERNAL_PREFIX)
    return [
        HeaderMutation(remove_on_match=HeaderMutationRemoveOnMatch(key_matcher=ours)),
        *(HeaderMutation(append=overwrite(name, value)) for name, value in sorted(known.items())),
    ]


def _transform(session_fields: Sequence[str]) -> TransformConfig:
    """Copy what routing needs from the body into headers. The body itself is never touched."""
    copied = {names.MODEL_HEADER: "model", names.STREAM_HEADER: "stream"}
    copied |= {names.body_header(field): field for field in session_fields}
    mutations = [
        HeaderMutation(append=overwrite(header, f"%REQUEST_BODY({field})%"))
        for header, field in sorted(copied.items())
    ]
    return TransformConfig(request_transformation=Transformation(headers_mutations=mutations))


def _session_keys(session_fields: Sequence[str]) -> SetFilterState:
    """Keep session keys, then let the request be routed again: by its model, and hashed by its key."""
    kept = [kept_in_filter_state(field) for field in session_fields]
    return SetFilterState(on_request_headers=kept, clear_route_cache=True)


def _health() -> HealthCheck:
    path = HeaderMatcher(name=":path", string_match=exactly(HEALTH_PATH))
    return HealthCheck(pass_through_mode=False, headers=[path])


def _filter(name: str, config: AnyMessage) -> HttpFilter:
    return HttpFilter(name=name, typed_config=pack(config))


def _network_filter(manager: HttpConnectionManager) -> Filter:
    return Filter(name="envoy.filters.network.http_connection_manager", typed_config=pack(manager))
