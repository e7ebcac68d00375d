"""What Envoy itself answers when it refuses or cannot forward: status, JSON body, `Retry-After`, reason.

Mappers are tried in order and the first match wins. A spent retry limit carries `UO` and `UF`, so the
mapper of `UF` stands before that of `UO`: a dead engine is not a rate limit.
"""

from __future__ import annotations

from envoy_data_plane.envoy.config.accesslog.v3 import (
    AccessLogFilter,
    AndFilter,
    ComparisonFilter,
    ComparisonFilterOp,
    HeaderFilter,
    ResponseFlagFilter,
    StatusCodeFilter,
)
from envoy_data_plane.envoy.config.core.v3 import DataSource, RuntimeUInt32
from envoy_data_plane.envoy.config.route.v3 import HeaderMatcher
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    LocalReplyConfig,
    ResponseMapper,
)

from xds_server.routing import ShedAnswer
from xds_server.translate import names
from xds_server.translate.errors import JSON, error_body
from xds_server.translate.packing import exactly, overwrite

_UNAVAILABLE = "service_unavailable"
_RATE = "rate_limit_exceeded"
_INVALID = "invalid_request_error"


def local_replies(answers: ShedAnswer) -> LocalReplyConfig:
    """Build the mappers; the seconds of `Retry-After` are constants of the policy, since this is LDS."""
    busy, soon, later = (
        answers.retry_after_shed_s,
        answers.retry_after_overflow_s,
        answers.retry_after_unavailable_s,
    )
    return LocalReplyConfig(
        mappers=[
            _on_flags(
                ["UF", "UC", "LR", "UR"],
                503,
                "engine_failed",
                error_body("The engine failed before it answered.", _UNAVAILABLE, "engine_failed"),
                soon,
            ),
            _on_flags(
                ["DO", "UDO"],
                429,
                "shed",
                error_body("The service is at capacity for this class of traffic.", _RATE, "overloaded"),
                busy,
            ),
            _on_flags(
                ["UO"],
                429,
                "overflow",
                error_body("Too many requests are in flight to this engine.", _RATE, "overloaded"),
                soon,
            ),
            _on_flags(
                ["UH", "NC"],
                503,
                "no_replica",
                error_body("No replica can serve this model now.", _UNAVAILABLE, "no_replica"),
                later,
            ),
            _drowned(soon),
            _on_flags(["NR"], 404, "no_route", error_body("There is nothing here.", _INVALID, "not_found")),
            _on_flags(
                ["UT", "UPE", "SI"],
                504,
                "timeout",
                error_body("The engine did not answer in time.", "timeout", "timeout"),
            ),
            _beyond_every_limit(),
            _on_status(
                431,
                "headers_too_large",
                error_body("The request headers are too large.", _INVALID, "headers_too_large"),
            ),
            # The longest generation is over: a reply without a flag.
            _on_status(504, "timeout", error_body("The answer took too long.", "timeout", "timeout")),
            _on_status(
                408, "timeout", error_body("The request came in too slowly.", "timeout", "request_timeout")
            ),
        ]
    )


def _beyond_every_limit() -> ResponseMapper:
    """Answer a body that was too large before it named a model; a model's own limit has its own answer."""
    unnamed = HeaderMatcher(name=names.MODEL_HEADER, string_match=exactly(names.NO_MODEL))
    both = AndFilter(filters=[_status(413), AccessLogFilter(header_filter=HeaderFilter(header=unnamed))])
    body = error_body("The request body is too large.", _INVALID, "request_too_large")
    return _mapper(AccessLogFilter(and_filter=both), 413, "too_large", body, None)


def _drowned(retry_after_s: int) -> ResponseMapper:
    """Answer what the overload manager refuses: without a flag, and before a listener says its class,
    which every other request has."""
    unseen = HeaderMatcher(name=names.DEFAULT_CLASS_HEADER, present_match=True, invert_match=True)
    both = AndFilter(filters=[_status(503), AccessLogFilter(header_filter=HeaderFilter(header=unseen))])
    body = error_body("The front-end is overloaded.", _UNAVAILABLE, "proxy_overloaded")
    return _mapper(AccessLogFilter(and_filter=both), 503, "proxy_overloaded", body, retry_after_s)


def _on_flags(
    flags: list[str], status: int, reason: str, body: str, retry_after_s: int | None = None
) -> ResponseMapper:
    """Answer replies with one of the response flags."""
    matches = AccessLogFilter(response_flag_filter=ResponseFlagFilter(flags=flags))
    return _mapper(matches, status, reason, body, retry_after_s)


def _on_status(status: int, reason: str, body: str) -> ResponseMapper:
    """Answer replies that Envoy makes with a status and no flag."""
    return _mapper(_status(status), status, reason, body, None)


def _status(status: int) -> AccessLogFilter:
    value = RuntimeUInt32(default_value=status, runtime_key=f"headrace.local_reply.{status}")
    comparison = ComparisonFilter(op=ComparisonFilterOp.EQ, value=value)
    return AccessLogFilter(status_code_filter=StatusCodeFilter(comparison=comparison))


def _mapper(
    matches: AccessLogFilter, status: int, reason: str, body: str, retry_after_s: int | None
) -> ResponseMapper:
    headers = [overwrite("content-type", JSON), overwrite(names.REASON_HEADER, reason)]
    if retry_after_s is not None:
        headers.append(overwrite("retry-after", str(retry_after_s)))
    return ResponseMapper(
        filter=matches, status_code=status, body=DataSource(inline_string=body), headers_to_add=headers
    )
