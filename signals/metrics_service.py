"""Envoy's metrics service (`envoy.service.metrics.v3.MetricsService`), served on the xDS port.

Envoy opens one stream and writes one message a flush; only the first names the node. Counters are absolute
(`report_counters_as_deltas: false`) and appear once used; histograms cover one flush; one flush is one
message (`batch_size` unset). Seen on Envoy 1.40.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from typing import Any, Protocol

import grpc
import grpc.aio

from signals.identity import proof_of
from signals.metrics_codec import Flush, MetricsDecoder

METHOD = "/envoy.service.metrics.v3.MetricsService/StreamMetrics"
_EMPTY = b""
"""StreamMetricsResponse has no fields."""

_log = logging.getLogger(__name__)


class FlushSink(Protocol):
    """What takes flushes: `Demand`, or several of them."""

    def observe(self, frontend: str, node_id: str, flush: Flush, now: float) -> None:
        """Take one flush of the Envoy `node_id` of `frontend`, at monotonic seconds `now`."""


class MetricsService(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio ships no types
    """Feeds `Demand` from every Envoy's metrics stream. Add it to the xDS server's generic handlers."""

    def __init__(
        self,
        demand: FlushSink,
        *,
        frontends: Callable[[], Iterable[str]] | None = None,
        identity: Callable[[str], Collection[str] | None] = lambda frontend: None,
        on_flush: Callable[[str, str], None] = lambda frontend, node_id: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`frontends` names the front-ends of the policy: a node of any other is refused (None: all are
        taken). `identity(frontend)`: names of which the client certificate must carry one (None: not
        checked). `on_flush(frontend, node_id)` is called after each flush was taken."""
        self._demand = demand
        self._frontends = frontends
        self._identity = identity
        self._on_flush = on_flush
        self._clock = clock
        self._decoder = MetricsDecoder()

    def service(self, handler_call_details: Any) -> Any:
        """gRPC's dispatch: None for methods that are not ours."""
        if handler_call_details.method != METHOD:
            return None
        return grpc.stream_unary_rpc_method_handler(self._stream)

    async def _stream(self, messages: AsyncIterator[bytes], context: Any) -> bytes:
        node: tuple[str, str] | None = None
        async for data in messages:
            try:
                flush = self._decoder.decode(data)
            except ValueError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            if node is None:
                node = await self._admit(flush.node, context)
            self._demand.observe(*node, flush, self._clock())
            self._on_flush(*node)
        return _EMPTY

    async def _admit(self, node: tuple[str, str] | None, context: Any) -> tuple[str, str]:
        if node is None or not all(node):
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                "the first message must name node.cluster (the front-end) and node.id",
            )
            raise AssertionError("abort raises")
        if self._frontends is not None and node[0] not in self._frontends():
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"no front-end {node[0]!r} in the policy")
        wanted = self._identity(node[0])
        if wanted is not None and not proof_of(context).names & set(wanted):
            text = f"the client certificate is not one of front-end {node[0]!r}"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, text)
        return node
