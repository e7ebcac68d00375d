"""The grpc services: aggregated and one per type, SotW and delta. A thin pump around `XdsServer`.

Handlers take and give bytes: requests are decoded by `wire`, responses are spliced from encoded resources.
Each stream has two tasks. The reader feeds requests to the server and never waits for the writer; the
writer asks for the next response only when the transport has taken the last, so a client that does not
read holds at most one response per type and delays nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import grpc
from grpc import aio

from xds_server.identity import Reason, Rejection
from xds_server.protocol.wire import BadRequest, Request, decode_delta, decode_sotw, encode_delta, encode_sotw
from xds_server.resource_types import TYPES, ResourceType
from xds_server.server import Connection, XdsServer

AGGREGATED = "envoy.service.discovery.v3.AggregatedDiscoveryService"


class Context(Protocol):
    """What is used of `grpc.aio.ServicerContext` (grpc carries no types)."""

    async def read(self) -> Any:
        """The next request's bytes, or `aio.EOF`."""

    async def send_initial_metadata(self, metadata: tuple[()]) -> None:
        """Send the headers, which would else go with the first message."""

    async def write(self, message: bytes) -> None:
        """Hand a response over; returns when the transport has room again."""

    async def abort(self, code: Any, details: str) -> NoReturn:
        """End the stream with an error."""

    def peer(self) -> str:
        """The client's address."""

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        """Properties of the client's certificate; empty without TLS."""


Handler = Callable[[object, Context], Awaitable[None]]

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 32 << 20),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_connection_age_ms", 30 * 60_000),
    ("grpc.max_connection_age_grace_ms", 10_000),
    ("grpc.so_reuseport", 0),
)
"""Options for `grpc.aio.server`.

Receive size; keepalive both ways, so that a half-open connection is found within 40 s (without
`ping_timeout_ms` grpc waits a minute more); a connection age (grpc adds 10 % jitter), so that Envoys spread
again over restarted replicas of the control plane.
"""


@dataclass(frozen=True, slots=True)
class Codec:
    """How one protocol variant goes to and from bytes."""

    delta: bool
    decode: Callable[[bytes], Request]
    encode: Callable[..., bytes]


SOTW = Codec(False, decode_sotw, encode_sotw)
DELTA = Codec(True, decode_delta, encode_delta)


class XdsServices:
    """Serves an `XdsServer` on a grpc server."""

    def __init__(self, server: XdsServer) -> None:
        self._server = server
        self._pumps: set[_Pump] = set()
        self._stopping = False

    def register(self, server: aio.Server) -> None:
        """Add all services. Call before `server.start()`."""
        server.add_generic_rpc_handlers((self._aggregated(), *map(self._single, TYPES)))

    def stop(self) -> None:
        """End all streams with OK, at once; streams opened afterwards end with UNAVAILABLE. Call before
        `grpc.aio.Server.stop`, as xDS streams never end by themselves."""
        self._stopping = True
        for pump in self._pumps:
            pump.end(None)

    def _aggregated(self) -> grpc.GenericRpcHandler:
        methods = {"StreamAggregatedResources": SOTW, "DeltaAggregatedResources": DELTA}
        return _handlers(AGGREGATED, {name: self._handler(codec, None) for name, codec in methods.items()})

    def _single(self, type_: ResourceType) -> grpc.GenericRpcHandler:
        methods = {f"Stream{type_.method}": SOTW, f"Delta{type_.method}": DELTA}
        return _handlers(
            type_.service, {name: self._handler(codec, type_) for name, codec in methods.items()}
        )

    def _handler(self, codec: Codec, only: ResourceType | None) -> Handler:
        async def serve(_: object, context: Context) -> None:
            if self._stopping:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "shutting down")
            pump = _Pump(self._server, context, codec, only)
            self._pumps.add(pump)
            try:
                rejection = await pump.run()
            finally:
                self._pumps.discard(pump)
            if rejection:
                await context.abort(grpc.StatusCode[rejection.status], str(rejection))

        return serve


class _Pump:
    """Moves one stream's requests and responses between grpc and the server."""

    def __init__(self, server: XdsServer, context: Context, codec: Codec, only: ResourceType | None) -> None:
        self._server = server
        self._context = context
        self._codec = codec
        self._only = only
        self._wake = asyncio.Event()
        self._ended: asyncio.Future[Rejection | None] = asyncio.get_running_loop().create_future()
        self._connection: Connection | None = None

    def end(self, rejection: Rejection | None) -> None:
        """Let `run` return `rejection`."""
        if not self._ended.done():
            self._ended.set_result(rejection)

    async def run(self) -> Rejection | None:
        """Serve the stream until it ends; returns why it is to be ended with an error, if it is.

        Headers go first and alone: while a write that carries them is under way, grpc can send no status
        (TOO_MANY_OPERATIONS), so a client that does not read could not be told why its stream ends.
        """
        await _unless_left(self._context.send_initial_metadata(()))
        tasks: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._read()),
            asyncio.ensure_future(self._write()),
        ]
        reason = "cancelled"
        try:
            await asyncio.wait({*tasks, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done() and (error := task.exception()):
                    reason = f"failed: {error}"
                    raise error
            rejection = self._ended.result() if self._ended.done() else None
            reason = str(rejection) if rejection else "closed"
            return rejection
        finally:
            # First, and without awaiting: grpc may cancel this coroutine (again) at any await below.
            if self._connection:
                self._server.disconnect(self._connection, reason)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self) -> None:
        try:
            while (body := await self._context.read()) is not aio.EOF:
                self._take(self._codec.decode(body))
        except BadRequest as error:
            self.end(Rejection(Reason.PROTOCOL, "INVALID_ARGUMENT", str(error)))
        except Rejection as rejection:
            self.end(rejection)

    def _take(self, request: Request) -> None:
        if self._connection is None:
            self._connection = self._server.connect(
                request.node,
                self._context.peer(),
                delta=self._codec.delta,
                only=self._only,
                wake=self._wake.set,
                end=self.end,
                certificate_names=certificate_names(self._context),
            )
        self._server.receive(self._connection, request)

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._connection is None:
                continue
            for response in self._server.responses(self._connection):
                body = self._codec.encode(response)
                await _unless_left(self._context.write(body))
                self._server.sent(self._connection, response, len(body))


async def _unless_left(operation: Awaitable[None]) -> None:
    """Await an operation of grpc; for ever once the client has left.

    A write that is under way may fail before grpc cancels the handler for the same reason. It is no error
    then, and no status would arrive, so the end is left to the cancellation (or to the reader's EOF).
    """
    try:
        await operation
    except aio.InternalError:
        await asyncio.get_running_loop().create_future()


def certificate_names(context: Context) -> frozenset[str] | None:
    """Names in the verified client certificate; None without one."""
    names = context.auth_context().get("x509_subject_alternative_name")
    return frozenset(name.decode() for name in names) if names else None


def _handlers(service: str, methods: dict[str, Handler]) -> grpc.GenericRpcHandler:
    handlers = {name: grpc.stream_stream_rpc_method_handler(handler) for name, handler in methods.items()}
    return grpc.method_handlers_generic_handler(service, handlers)
