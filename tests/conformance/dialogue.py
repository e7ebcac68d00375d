"""The language of the conformance tests: a dialogue with the real server over real grpc.

    client = world.client(protocol, mode, type_)
    await client.want("a", "b")          # a request for these names (SotW: the list; delta: the change)
    answer = await client.expect("a")    # the next response carries exactly these
    await client.ack()                   # or nack("reason"); both may carry a change of names
    await client.nothing()               # everything sent has been taken, and there is nothing to say

`nothing` needs no waiting time: it is a fence. The world counts the requests that its clients have sent and
that the server has taken, and knows when each stream's writer has finished; then the number of responses
written must be the number read.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import grpc
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.service.discovery import v3 as discovery
from envoy_data_plane.google import protobuf, rpc
from grpc import aio

from xds_server.events import Connected, Disconnected, Event, Refused, Sent
from xds_server.resource_types import ResourceType
from xds_server.server import XdsServer
from xds_server.services import AGGREGATED, SERVER_OPTIONS, XdsServices

FRONTEND = "us-east"
PATIENCE_S = 10.0
"""How long a test waits for what must come; nothing is asserted about it."""


class ObservedServer(XdsServer):
    """The server, counting what it takes and noting when a stream has nothing left to say."""

    def __init__(self, world: World, **options: object) -> None:
        super().__init__(**options)
        self._world = world
        self._turn: dict[str, int] = {}
        self._done: dict[str, int] = {}

    def connect(self, *args, **kwargs):
        try:
            connection = super().connect(*args, **kwargs)
        except Exception:
            self._world.taken += 1
            raise
        self._turn[connection.info.stream] = self._done[connection.info.stream] = 0
        return connection

    def receive(self, connection, request):
        try:
            super().receive(connection, request)
        finally:
            self._world.taken += 1
            self._bump()

    def responses(self, connection):
        turn = self._turn[connection.info.stream]
        for response in super().responses(connection):
            self._bump()  # an answer on one stream may make another due on a sibling
            yield response
        self._done[connection.info.stream] = turn
        self._world.changed.set()

    def disconnect(self, connection, reason):
        del self._turn[connection.info.stream], self._done[connection.info.stream]
        super().disconnect(connection, reason)
        self._bump()

    def publish(self, frontend, snapshot):
        sequence = super().publish(frontend, snapshot)
        self._bump()
        return sequence

    def idle(self) -> bool:
        return self._turn == self._done

    def _bump(self) -> None:
        for connection in self.connections():
            self._turn[connection.info.stream] += 1
            connection.wake()
        self._world.changed.set()


class World:
    """A server on a loopback port, and its clients."""

    def __init__(self, **options: object) -> None:
        self.events: list[Event] = []
        self.taken = 0
        self.told = 0
        self.changed = asyncio.Event()
        self.now = 0.0
        self._options = options
        self._clients: list[Dialogue] = []
        self._port = 0
        self._make()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def _make(self) -> None:
        self.server = ObservedServer(self, clock=lambda: self.now, on_event=self._note, **self._options)
        self.services = XdsServices(self.server)
        self._grpc = aio.server(options=SERVER_OPTIONS)

    async def start(self) -> None:
        self.services.register(self._grpc)
        self._port = self._grpc.add_insecure_port(self.address)
        await self._grpc.start()

    async def lose(self) -> None:
        """End the server, and prepare one that knows nothing for the same address."""
        await self._grpc.stop(None)
        self._make()

    async def stop(self) -> None:
        try:
            for client in self._clients:
                await client.close()
        finally:
            self.services.stop()
            await self._grpc.stop(1.0)
        assert not self.server.connections()

    def client(self, protocol: str, mode: str, type_: ResourceType, node: str = "", **options) -> Dialogue:
        client = Dialogue(self, protocol, mode, type_, node or f"envoy-{len(self._clients)}", **options)
        self._clients.append(client)
        return client

    async def until(self, condition) -> None:
        """Wait for something that must come to hold."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def quiet(self) -> None:
        """Wait until the server has taken every request and has said all it has to say."""
        await self.until(lambda: self.taken == self.told and self.server.idle())

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]

    def written(self, stream: str) -> int:
        return sum(event.client.stream == stream for event in self.of(Sent))

    def _note(self, event: Event) -> None:
        self.events.append(event)
        self.changed.set()


@dataclass(frozen=True)
class Answer:
    """A response, read with the generated classes."""

    type_url: str
    version: str
    nonce: str
    versions: dict[str, str]
    removed: tuple[str, ...] = ()
    bodies: dict[str, bytes] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        return set(self.bodies)


NAME_FIELD = {"ClusterLoadAssignment": "cluster_name"}


class Dialogue:
    """One client on one stream."""

    def __init__(
        self,
        world: World,
        protocol: str,
        mode: str,
        type_: ResourceType,
        node: str,
        frontend: str = FRONTEND,
        fleet: str = "",
    ) -> None:
        self.world = world
        self.delta = protocol == "delta"
        self.type = type_
        self.ads = mode == "ads"
        self.stream = ""
        self.read = 0
        self.names: dict[str, list[str]] = {}
        """SotW: the list of names last sent, by type URL."""
        self.last: dict[str, Answer] = {}
        self.accepted: dict[str, str] = {}
        self.node = core.Node(id=node, cluster=frontend)
        if fleet:
            self.node.metadata = protobuf.Struct(fields={"fleet": protobuf.Value(string_value=fleet)})
        unlimited = [("grpc.max_receive_message_length", -1)]
        self._channel = aio.insecure_channel(world.address, options=unlimited)
        self._call = self._channel.stream_stream(self._path())()
        self._call.add_done_callback(lambda _: world.changed.set())
        self._said = False

    def _path(self) -> str:
        prefix = "Delta" if self.delta else "Stream"
        if self.ads:
            return f"/{AGGREGATED}/{prefix}AggregatedResources"
        return f"/{self.type.service}/{prefix}{self.type.method}"

    # ---- saying ---------------------------------------------------------------------------------------

    async def want(self, *names: str, of: ResourceType | None = None, **options) -> None:
        """Ask for these names, and in SotW for no others; "" of names is the empty first request."""
        url = (of or self.type).url
        self.names[url] = list(names)
        await self._request(url, subscribe=names, **options)

    async def also(self, *names: str, of: ResourceType | None = None, **options) -> None:
        """Ask for more names."""
        url = (of or self.type).url
        self.names[url] = [*self.names.get(url, []), *names]
        await self._request(url, subscribe=names, **options)

    async def drop(self, *names: str, of: ResourceType | None = None, **options) -> None:
        """Ask for fewer names."""
        url = (of or self.type).url
        self.names[url] = [name for name in self.names.get(url, []) if name not in names]
        await self._request(url, unsubscribe=names, **options)

    async def ack(self, of: ResourceType | None = None, **options) -> None:
        """Confirm the last response of a type."""
        url = (of or self.type).url
        self.accepted[url] = self.last[url].version
        await self._request(url, **options)

    async def nack(self, reason: str = "bad", of: ResourceType | None = None, **options) -> None:
        """Refuse the last response of a type."""
        await self._request((of or self.type).url, error=rpc.Status(code=3, message=reason), **options)

    async def _request(
        self,
        url: str,
        *,
        subscribe: tuple[str, ...] = (),
        unsubscribe: tuple[str, ...] = (),
        held: dict[str, str] | None = None,
        version: str | None = None,
        nonce: str | None = None,
        type_url: str | None = None,
        error: rpc.Status | None = None,
        node: core.Node | None = None,
    ) -> None:
        first = not self._said
        url_sent = type_url if type_url is not None else url
        last_nonce = self.last[url].nonce if url in self.last else ""
        shared = {
            "node": node or (self.node if first else None),
            "type_url": url_sent,
            "response_nonce": last_nonce if nonce is None else nonce,
            "error_detail": error,
        }
        if self.delta:
            message = discovery.DeltaDiscoveryRequest(
                resource_names_subscribe=list(subscribe),
                resource_names_unsubscribe=list(unsubscribe),
                initial_resource_versions=held or {},
                **shared,
            )
        else:
            message = discovery.DiscoveryRequest(
                resource_names=self.names.get(url, []),
                version_info=self.accepted.get(url, "") if version is None else version,
                **shared,
            )
        await self.send(bytes(message))

    async def send(self, body: bytes) -> None:
        """Send a request's bytes."""
        first, self._said = not self._said, True
        before = len(self.world.of(Connected))
        self.world.told += 1
        await self._call.write(body)
        if first:
            await self.world.until(
                lambda: self._streams_since(before) or self._refused() or self._call.done()
            )
            self.stream = next(iter(self._streams_since(before)), "")

    def _streams_since(self, before: int) -> list[str]:
        new = self.world.of(Connected)[before:]
        return [event.client.stream for event in new if event.client.id == self.node.id]

    def _refused(self) -> bool:
        return any(event.node in (self.node.id, "") for event in self.world.of(Refused))

    # ---- hearing --------------------------------------------------------------------------------------

    async def hear(self) -> Answer:
        """The next response, whatever it is."""
        async with asyncio.timeout(PATIENCE_S):
            body = await self._call.read()
        assert body is not aio.EOF, f"the stream ended: {await self._call.details()}"
        self.read += 1
        answer = self._parse(body)
        self.last[answer.type_url] = answer
        return answer

    async def expect(
        self, *names: str, removed: tuple[str, ...] = (), of: ResourceType | None = None
    ) -> Answer:
        """The next response is of this type and carries exactly these."""
        answer = await self.hear()
        assert answer.type_url == (of or self.type).url
        assert answer.nonce
        assert answer.names == set(names)
        assert set(answer.removed) == set(removed)
        return answer

    async def nothing(self) -> None:
        """Nothing was said since the last response."""
        await self.world.quiet()
        unread = self.world.written(self.stream) - self.read
        assert not unread, f"{unread} responses are there on stream {self.stream!r}"

    async def ends(self) -> tuple[grpc.StatusCode, str]:
        """The stream ends; how."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._call.code(), await self._call.details()

    async def half_close(self) -> None:
        """Say that nothing more will be asked."""
        await self._call.done_writing()

    async def close(self) -> None:
        """Hang up and wait until the server has noticed."""
        self._call.cancel()
        await self._channel.close()
        gone = {event.client.stream for event in self.world.of(Disconnected)}
        if self.stream and self.stream not in gone:
            await self.world.until(
                lambda: self.stream in {event.client.stream for event in self.world.of(Disconnected)}
            )

    def _parse(self, body: bytes) -> Answer:
        if self.delta:
            response = discovery.DeltaDiscoveryResponse.parse(body)
            return Answer(
                response.type_url,
                response.system_version_info,
                response.nonce,
                {resource.name: resource.version for resource in response.resources},
                tuple(response.removed_resources),
                {resource.name: resource.resource.value for resource in response.resources},
            )
        message = discovery.DiscoveryResponse.parse(body)
        bodies = {_name(any_): any_.value for any_ in message.resources}
        assert len(bodies) == len(message.resources), "a name occurs twice"
        return Answer(message.type_url, message.version_info, message.nonce, {}, (), bodies)


def _name(any_: protobuf.Any) -> str:
    message = any_.unpack()
    return getattr(message, NAME_FIELD.get(type(message).__name__, "name"))


class Envoy:
    """One node, on one aggregated stream or on a stream per type; the same verbs, with the type first."""

    def __init__(self, world: World, protocol: str, mode: str, node: str = "envoy") -> None:
        self._world, self._protocol, self._mode, self._node = world, protocol, mode, node
        self._streams: dict[str, Dialogue] = {}
        self.delta = protocol == "delta"

    def on(self, type_: ResourceType) -> Dialogue:
        """The stream that carries a type."""
        key = "ads" if self._mode == "ads" else type_.name
        if key not in self._streams:
            client = self._world.client(self._protocol, self._mode, type_, self._node)
            self._streams[key] = client
        return self._streams[key]

    async def want(self, type_: ResourceType, *names: str, **options) -> None:
        await self.on(type_).want(*names, of=type_, **options)

    async def also(self, type_: ResourceType, *names: str, **options) -> None:
        await self.on(type_).also(*names, of=type_, **options)

    async def drop(self, type_: ResourceType, *names: str, **options) -> None:
        await self.on(type_).drop(*names, of=type_, **options)

    async def expect(self, type_: ResourceType, *names: str, removed: tuple[str, ...] = ()) -> Answer:
        return await self.on(type_).expect(*names, removed=removed, of=type_)

    async def ack(self, type_: ResourceType) -> None:
        await self.on(type_).ack(of=type_)

    async def nack(self, type_: ResourceType, reason: str = "bad") -> None:
        await self.on(type_).nack(reason, of=type_)

    async def takes(self, type_: ResourceType, *names: str, removed: tuple[str, ...] = ()) -> Answer:
        """Expect and confirm."""
        answer = await self.expect(type_, *names, removed=removed)
        await self.ack(type_)
        return answer

    async def gets(self, type_: ResourceType, *names: str, expect: tuple[str, ...] | None = None) -> Answer:
        """Ask, expect and confirm."""
        await self.want(type_, *names)
        return await self.takes(type_, *(names if expect is None else expect))

    async def nothing(self) -> None:
        for stream in self._streams.values():
            await stream.nothing()
