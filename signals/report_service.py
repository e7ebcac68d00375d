"""The control plane's end of load reports: the gRPC service, on a port of its own.

An engine's credential must not open xDS, hence the port. Streams are handled in `report_stream`. Identity and
address rules: DESIGN, "Signals", membership and trust.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from signals.admission import Admission
from signals.membership import Membership
from signals.messages import METHOD
from signals.probe import Prober
from signals.refusals import Refusals, RefusedReporter
from signals.replicas import ReplicaKey
from signals.report_stream import ReportLimits, ReportStream, StreamContext

_HARD_LIMIT_BYTES = 2 * 1024 * 1024
"""gRPC's own limit, above ours: what it refuses is gone before it can be counted."""
_MAX_STREAMS = 20_000
_SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", _HARD_LIMIT_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.so_reuseport", 0),
)


async def _never(key: ReplicaKey) -> None:
    await asyncio.Event().wait()


class ReportService(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio ships no types
    """Serves `headrace.signals.v1.LoadReports` and feeds `Membership`."""

    def __init__(
        self,
        membership: Membership,
        admission: Admission,
        *,
        limits: ReportLimits | None = None,
        on_result: Callable[[str], None] = lambda result: None,
        on_refused: Callable[[RefusedReporter], None] = lambda refused: None,
        drained: Callable[[ReplicaKey], Awaitable[None]] = _never,
        on_drain_acked: Callable[[ReplicaKey, bool], None] = lambda key, acked: None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Every message ends in one result of `report_stream.RESULTS`, given to `on_result`. `on_refused` is
        called for a reporter that is refused, at most once a minute each.
        `drained(key)` returns when every connected Envoy acknowledged an EDS without the replica.
        `on_drain_acked(key, acked)` is called when a reporter is told so; `acked` is False when that is
        only because time was up.
        """
        self.admission = admission
        """The rules in force; may be replaced at any time."""
        self.refusals = Refusals(on_refused)
        """Who is refused, and why."""
        self._membership = membership
        self._clock = clock
        self._prober = Prober(membership)
        self._streams = StreamContext(
            membership=membership,
            admission=lambda: self.admission,
            limits=limits or ReportLimits(),
            refusals=self.refusals,
            prober=self._prober,
            on_result=on_result,
            drained=drained,
            on_drain_acked=on_drain_acked,
            clock=clock,
            wall_clock=wall_clock,
        )
        self._server: Any = None
        self._ticker: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, credentials: grpc.ServerCredentials | None = None) -> int:
        """Listen and serve until `stop`. Returns the bound port (for port 0).

        Raises ValueError when that would be open to anybody: plaintext beyond insecure development mode on
        loopback, or no identity rule. Raises OSError when the address cannot be bound.
        """
        self._check_start(host, credentials)
        server = grpc.aio.server(options=_SERVER_OPTIONS, maximum_concurrent_rpcs=_MAX_STREAMS)
        server.add_generic_rpc_handlers((self,))
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound = (
                server.add_insecure_port(address)
                if credentials is None
                else server.add_secure_port(address, credentials)
            )
        except RuntimeError as error:
            raise OSError(f"cannot listen for load reports on {address}: {error}") from error
        await server.start()
        self._server = server
        self._ticker = asyncio.create_task(self._tick())
        return int(bound)

    def _check_start(self, host: str, credentials: grpc.ServerCredentials | None) -> None:
        if self.admission.insecure_dev:
            if not _is_loopback(host):
                raise ValueError(f"load reports on {host}: insecure development mode is for loopback only")
        elif credentials is None:
            raise ValueError(f"load reports on {host} need TLS (or insecure development mode, on loopback)")
        elif self.admission.identity is None:
            raise ValueError(f"load reports on {host} need an identity rule: certificate names or tokens")

    @property
    def limits(self) -> ReportLimits:
        """The bounds in force."""
        return self._streams.limits

    @property
    def interval_s(self) -> float:
        """How often reporters are told to report now."""
        return self._streams.interval_ms() / 1000

    async def stop(self, grace_s: float = 0.2) -> None:
        """End all streams and stop listening. Members stay as they were."""
        self._streams.closing.set()
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(grace_s)
        await self._prober.close()

    def service(self, handler_call_details: Any) -> Any:
        """gRPC's dispatch: None for methods that are not ours. Messages arrive as bytes."""
        if handler_call_details.method != METHOD:
            return None
        return grpc.stream_stream_rpc_method_handler(self._report, response_serializer=bytes)

    async def _report(self, messages: AsyncIterator[bytes], context: Any) -> None:
        await ReportStream(self._streams, messages, context).run()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._streams.limits.tick_s)
            self._membership.tick(self._clock())


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
