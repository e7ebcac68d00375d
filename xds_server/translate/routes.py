"""RDS: one virtual host a model, chosen by the internal model header; in it one route a traffic class.

A request is routed twice. Before its body is read the model header says `NO_MODEL`, which leads to the
default virtual host: its body limit, and a refusal should nothing follow. The transform filter then writes
the body's model into the header and clears the route, and the virtual host lookup (a hash table of names,
and one of prefixes for LoRA names with a `*`) finds the model's routes.

The functions give parts, so that a changed share encodes one route again and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation
from envoy_data_plane.envoy.config.core.v3 import RuntimeFractionalPercent
from envoy_data_plane.envoy.config.route.v3 import (
    HeaderMatcher,
    RetryPolicy,
    RetryPolicyRetryHostPredicate,
    Route,
    RouteAction,
    RouteActionMaxStreamDuration,
    RouteConfiguration,
    RouteMatch,
    VirtualHost,
    WeightedCluster,
)
from envoy_data_plane.envoy.extensions.filters.http.buffer.v3 import Buffer, BufferPerRoute
from envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 import (
    HeaderMutationPerRoute,
    Mutations,
)
from envoy_data_plane.envoy.extensions.filters.http.local_ratelimit.v3 import LocalRateLimit
from envoy_data_plane.envoy.extensions.retry.host.previous_hosts.v3 import PreviousHostsPredicate
from envoy_data_plane.envoy.type.v3 import FractionalPercent, TokenBucket

from xds_server import views
from xds_server.routing import SHED, TOTAL_WEIGHT, Model, Split
from xds_server.translate import direct, names
from xds_server.translate.errors import JSON
from xds_server.translate.packing import exactly, overwrite, pack, regex
from xds_server.translate.session_keys import body_fields, hash_policy

RETRY_ON = "connect-failure,refused-stream,reset,retriable-status-codes"
"""`reset` covers what was sent and not begun to be answered; it never acts after response headers."""

MAX_DIRECT_BODY_BYTES = 4 << 20
"""The model list with 10,000 names takes about 1 MB."""

# Never empties: the filter only counts.
_ENDLESS_BUCKET = TokenBucket(
    max_tokens=4_000_000_000, tokens_per_fill=4_000_000_000, fill_interval=timedelta(hours=1)
)


def configuration(models: Sequence[Model]) -> RouteConfiguration:
    """Build the route configuration without its virtual hosts."""
    internal = [names.MODEL_HEADER, names.STREAM_HEADER, names.DEFAULT_CLASS_HEADER, names.TRUSTED_HEADER]
    internal += [names.body_header(field) for field in body_fields(models)]
    return RouteConfiguration(
        name=names.ROUTES,
        vhost_header=names.MODEL_HEADER,
        # On every route: a key from a body may hold CR and LF, or be a megabyte long.
        request_headers_to_remove=sorted(internal),
        response_headers_to_add=[
            overwrite(names.ENGINE_HEADER, names.ENGINE_OF_REPLICA),
            overwrite(names.REPLICA_HEADER, names.REPLICA_ITSELF),
        ],
        max_direct_response_body_size_bytes=MAX_DIRECT_BODY_BYTES,
    )


def frontend_header(frontend: str) -> RouteConfiguration:
    """Build the part that tells engines through which front-end a request came."""
    return RouteConfiguration(request_headers_to_add=[overwrite(names.FRONTEND_HEADER, frontend)])


def snapshot_header(version: str) -> RouteConfiguration:
    """Build the part that tells clients which routes answered them."""
    return RouteConfiguration(response_headers_to_add=[overwrite(names.SNAPSHOT_HEADER, version)])


def default_host(models: Sequence[Model]) -> VirtualHost:
    """Build the virtual host of requests without a known model, and of the first look at every request.

    Requests with a body come first: this list is walked for each of them.
    """
    unnamed = HeaderMatcher(name=names.MODEL_HEADER, string_match=exactly(names.NO_MODEL))
    named = HeaderMatcher(name=names.MODEL_HEADER, string_match=exactly(names.NO_MODEL), invert_match=True)
    no_get = HeaderMatcher(name=":method", string_match=exactly("GET"), invert_match=True)
    return VirtualHost(
        name="default",
        domains=["*"],
        typed_per_filter_config={names.BUFFER_FILTER: pack(_body_limit(models))},
        routes=[
            _normalised_content_type([unnamed, no_get]),
            direct.missing_model(RouteMatch(prefix="/", headers=[unnamed, no_get])),
            direct.unknown_model(RouteMatch(prefix="/", headers=[named])),
            direct.model_list(models),
            *direct.single_models(models),
            direct.nothing_here(RouteMatch(prefix="/")),
        ],
    )


def model_host(model: Model) -> VirtualHost:
    """Build a model's virtual host without its classes' routes."""
    return VirtualHost(
        name=names.spelled(model.name),
        domains=sorted({names.folded(name) for name in (*model.served_as, *model.adapters)}),
        request_body_buffer_limit=model.max_request_bytes,
        routes=[direct.too_large(model)],
    )


def forwarding(model: Model, pause_s: float) -> RouteAction:
    """Build what leads a model's requests to engines, without the engines; an answer may pause `pause_s`."""
    return RouteAction(
        hash_policy=hash_policy(model.session_keys),
        timeout=timedelta(0),
        idle_timeout=timedelta(seconds=pause_s),
        max_stream_duration=RouteActionMaxStreamDuration(
            max_stream_duration=timedelta(seconds=model.longest_generation_s)
        ),
        retry_policy=_retry_policy(model),
        # Rewrites only for endpoints with a host name: gateways.
        auto_host_rewrite=True,
    )


def demand_counter(model: str, traffic_class: str) -> Route:
    """Build the counter of one key: a rate limit that never limits and counts each request on arrival."""
    limit = LocalRateLimit(
        stat_prefix=names.demand_prefix(model, traffic_class),
        token_bucket=_ENDLESS_BUCKET,
        filter_enabled=RuntimeFractionalPercent(default_value=FractionalPercent(numerator=100)),
        filter_enforced=RuntimeFractionalPercent(default_value=FractionalPercent(numerator=0)),
    )
    return Route(typed_per_filter_config={names.DEMAND_FILTER: pack(limit)})


def intervals(split: Split) -> bytes:
    """Encode the shares of one key as a `WeightedCluster`: Envoy maps the hash onto the entries in order.

    Raises ValueError when the widths do not sum to `TOTAL_WEIGHT`: other sums with the same shares would
    move most sessions.
    """
    key = (split.model, split.traffic_class)
    if (total := sum(width for _, width in split.entries)) != TOTAL_WEIGHT:
        raise ValueError(f"split of {'/'.join(key)}: widths sum to {total}, expected {TOTAL_WEIGHT}")
    clusters = [
        {
            "name": names.shed(*key) if destination == SHED else names.composite(*key, destination),
            "weight": {"value": width},
        }
        for destination, width in split.entries
    ]
    # Without the hash a request's engine is drawn at random, and conversations lose their KV cache.
    hashed = bytes(WeightedCluster(use_hash_policy=True))
    return hashed + views.encode("WeightedCluster", {"clusters": clusters})


def _retry_policy(model: Model) -> RetryPolicy:
    limit = model.per_try_timeout_s
    return RetryPolicy(
        retry_on=RETRY_ON,
        num_retries=model.same_engine_retries + 1,
        retriable_status_codes=list(model.retry_statuses),
        # An outer layer that counts its attempts tries again itself; two layers would multiply.
        retriable_request_headers=[
            HeaderMatcher(name=names.ATTEMPT_HEADER, present_match=True, invert_match=True)
        ],
        per_try_timeout=None if limit is None else timedelta(seconds=limit),
        retry_host_predicate=[
            RetryPolicyRetryHostPredicate(
                name="envoy.retry_host_predicates.previous_hosts", typed_config=pack(PreviousHostsPredicate())
            )
        ],
        host_selection_retry_max_attempts=50,
    )


def _body_limit(models: Sequence[Model]) -> BufferPerRoute:
    """Take no more of a body than the most generous model would; the model's own limit is looked at later."""
    most = max((model.max_request_bytes for model in models), default=1)
    return BufferPerRoute(buffer=Buffer(max_request_bytes=most))


def _normalised_content_type(unnamed: list[HeaderMatcher]) -> Route:
    """Let the transform filter read bodies whose content type is JSON in another spelling.

    The filter compares the header's bytes. This is the first look only: a body with a model moves on.
    """
    odd = HeaderMatcher(name="content-type", string_match=regex(r"(?i)\s*application/json\s*(;.*)?"))
    plain = HeaderMatcher(name="content-type", string_match=exactly(JSON), invert_match=True)
    route = direct.missing_model(RouteMatch(prefix="/", headers=[*unnamed, odd, plain]))
    mutation = HeaderMutation(append=overwrite("content-type", JSON))
    per_route = HeaderMutationPerRoute(mutations=Mutations(request_mutations=[mutation]))
    route.typed_per_filter_config = {names.HEADER_FILTER: pack(per_route)}
    return route
