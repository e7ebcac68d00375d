"""The load reporting service (LRS), as a slow cross-check of demand and errors.

It counts attempts, not requests, and a report of Envoy costs 71-88 KB: ask for it seldom. Demand itself
comes from the metrics service.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

import grpc
from envoy_data_plane.envoy.service.load_stats.v3 import LoadStatsResponse
from grpc import aio

from xds_server.identity import Rejection
from xds_server.protocol.wire import BadRequest, Node, decode_node
from xds_server.server import XdsServer
from xds_server.services import Context, certificate_names
from xds_server.views import DecodeError, View, decode

SERVICE = "envoy.service.load_stats.v3.LoadReportingService"


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    """Attempts at one cluster within one interval, all localities together."""

    issued: int
    succeeded: int
    failed: int
    dropped: int


@dataclass(frozen=True, slots=True)
class LoadReport:
    """One report of one Envoy."""

    node: str
    frontend: str
    interval_s: float
    """The longest interval of its clusters."""
    clusters: Mapping[str, ClusterLoad]


def register(
    server: XdsServer,
    grpc_server: aio.Server,
    on_report: Callable[[LoadReport], None],
    interval_s: float = 30.0,
) -> None:
    """Add the service to a grpc server, before it starts. Envoys are admitted by the rules of `server`.

    A report is large, so 30 s is often. Raises ValueError for an interval below 1 s.
    """
    if interval_s < 1:
        raise ValueError(f"interval_s is {interval_s}: expected at least 1, reports are large")
    answer = LoadStatsResponse(send_all_clusters=True, load_reporting_interval=timedelta(seconds=interval_s))
    first_answer = bytes(answer)

    async def serve(_: object, context: Context) -> None:
        node: Node | None = None
        try:
            while (body := await context.read()) is not aio.EOF:
                view = _decoded(body)
                if node is None:
                    node = server.check(decode_node(view), certificate_names(context))
                    await context.write(first_answer)
                elif view.cluster_stats:
                    on_report(_report(node, view))
        except Rejection as rejection:
            await context.abort(grpc.StatusCode[rejection.status], str(rejection))
        except BadRequest as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    handlers = {"StreamLoadStats": grpc.stream_stream_rpc_method_handler(serve)}
    grpc_server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def _decoded(body: bytes) -> View:
    try:
        return decode("LoadStatsRequest", body)
    except DecodeError as error:
        raise BadRequest(f"not a LoadStatsRequest: {error}") from error


def _report(node: Node, view: View) -> LoadReport:
    intervals = (stats.load_report_interval for stats in view.cluster_stats)
    return LoadReport(
        node=node.id,
        frontend=node.cluster,
        interval_s=max(interval.seconds + interval.nanos / 1e9 for interval in intervals),
        clusters={stats.cluster_name: _load(stats) for stats in view.cluster_stats},
    )


def _load(stats: View) -> ClusterLoad:
    places = stats.upstream_locality_stats
    return ClusterLoad(
        issued=sum(place.total_issued_requests for place in places),
        succeeded=sum(place.total_successful_requests for place in places),
        failed=sum(place.total_error_requests for place in places),
        dropped=stats.total_dropped_requests,
    )
