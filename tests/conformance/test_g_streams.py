"""G. Streams, failure and load. Some rules hold by construction here and are tested elsewhere: G13 and G17
(merging) by D09, G14 by `test_debounce`, G18 by B21, G20 by `test_security`, G21 by `test_status`, G24 by
D06. G15 has no object: nothing is generated per client. The writer asks only when the transport has room."""

import asyncio
import contextlib
import logging

import grpc
import pytest
from grpc import aio

from tests.conformance.dialogue import FRONTEND, PATIENCE_S, World
from tests.conformance.resources import assignment, eds_cluster, layer, snapshot
from xds_server.events import Connected, Disconnected, Nacked, Refused
from xds_server.resource_types import CDS, EDS, RTDS
from xds_server.server import XdsServer
from xds_server.services import SERVER_OPTIONS, XdsServices
from xds_server.snapshot import Snapshot

one_type = pytest.mark.parametrize("type_", [EDS], ids=["eds"])
delta_ads = pytest.mark.parametrize(("protocol", "mode"), [("delta", "ads")], ids=["delta-ads"])


def contents(text):
    return snapshot(CDS, {"a": text})


@one_type
@pytest.mark.parametrize("ending", ["cancel", "half-close"])
async def test_g01_an_ended_stream_is_forgotten_once(client, publish, world, ending):
    publish(a="1")
    await client.want("a")
    await client.expect("a")
    if ending == "half-close":
        await client.half_close()
        assert (await client.ends())[0] is grpc.StatusCode.OK
    await client.close()
    assert not world.server.connections()
    assert [event.client.stream for event in world.of(Disconnected)] == [client.stream]


async def test_g02_a_failed_write_ends_the_stream_with_an_error():
    """With a transport of our own, since grpc's hardly ever fails before it cancels."""
    events = []
    server = XdsServer(clock=lambda: 0.0, on_event=events.append)
    server.publish(FRONTEND, contents("1"))
    [handler] = [
        handler
        for generic in registered(XdsServices(server))
        for path in ["/envoy.service.cluster.v3.ClusterDiscoveryService/DeltaClusters"]
        if (handler := generic.service(Details(path)))
    ]
    with pytest.raises(OSError, match="broken pipe"):
        await handler.stream_stream(None, BrokenTransport())
    assert [event.reason for event in events if isinstance(event, Disconnected)] == ["failed: broken pipe"]
    assert not server.connections()


class Details:
    def __init__(self, method):
        self.method = method


class BrokenTransport:
    """Delivers one request and fails to write."""

    def __init__(self):
        self._requests = [first_delta_request()]

    async def read(self):
        if self._requests:
            return self._requests.pop()
        return await asyncio.Event().wait()

    async def send_initial_metadata(self, metadata):
        pass

    async def write(self, message):
        raise OSError("broken pipe")

    def peer(self):
        return "test"

    def auth_context(self):
        return {}


def first_delta_request():
    from envoy_data_plane.envoy.config.core.v3 import Node as Message
    from envoy_data_plane.envoy.service.discovery.v3 import DeltaDiscoveryRequest

    return bytes(DeltaDiscoveryRequest(node=Message(id="n", cluster=FRONTEND), type_url=CDS.url))


def registered(services):
    class Recorder:
        handlers = ()

        def add_generic_rpc_handlers(self, handlers):
            self.handlers = handlers

    recorder = Recorder()
    services.register(recorder)
    return recorder.handlers


@one_type
async def test_g03_shutting_down_ends_streams_cleanly_and_refuses_new_ones(client, publish, world, caplog):
    publish(a="1")
    await client.want("a")
    await client.expect("a")
    world.services.stop()
    assert (await client.ends())[0] is grpc.StatusCode.OK
    late = world.client("delta", "ads", EDS)
    with contextlib.suppress(aio.AioRpcError):  # refused perhaps before the request is written
        await late.want("a")
    assert (await late.ends())[0] is grpc.StatusCode.UNAVAILABLE
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@one_type
async def test_g04_after_a_refused_stream_the_next_one_works(client, publish, world, protocol, mode, type_):
    publish(a="1")
    stranger = world.client(protocol, mode, type_, frontend="unheard-of")
    await stranger.want("a")
    code, details = await stranger.ends()
    assert code is grpc.StatusCode.NOT_FOUND
    assert "unheard-of" in details
    assert FRONTEND in details
    assert [(event.reason, event.frontend) for event in world.of(Refused)] == [("frontend", "unheard-of")]
    await client.want("a")
    await client.expect("a")


@one_type
@delta_ads
async def test_g05_a_cancelled_client_is_no_error(client, publish, caplog):
    publish(a="1")
    await client.want("a")
    await client.expect("a")
    await client.close()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_g06_a_client_that_does_not_read_delays_nobody_and_ends_on_the_latest(world):
    """8 MB do not fit into the windows, so the dead client's writer is stuck in its first response."""

    def publish(text):
        world.server.publish(FRONTEND, Snapshot.of([layer("big", text * (8 << 20))]))

    publish("a")
    dead, alive = (world.client("delta", "ads", RTDS) for _ in range(2))
    await dead.want("big")
    await alive.want("big")
    for text in "bcd":
        await alive.expect("big")
        await alive.ack()
        publish(text)
    await alive.expect("big")
    await dead.expect("big")
    await dead.ack()
    last = await dead.expect("big")
    assert last.bodies["big"] == world.server.snapshot(FRONTEND).of_type(RTDS.url)["big"].body
    await dead.ack()
    await dead.nothing()


async def test_g07_everybody_ends_on_the_last_of_many_snapshots(world):
    world.server.publish(FRONTEND, contents("first"))
    last = contents("last").of_type(CDS.url)["a"]

    async def follow(client):
        await client.want("*")
        while True:
            answer = await client.hear()
            await client.ack()
            if answer.bodies["a"] == last.body:
                return

    async def write():
        for number in range(200):
            world.server.publish(FRONTEND, contents(f"{number}"))
            await asyncio.sleep(0)
        world.server.publish(FRONTEND, contents("last"))

    clients = [world.client(protocol, "ads", CDS) for protocol in ("sotw", "delta") for _ in range(10)]
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(write(), *map(follow, clients))
    for client in clients:
        await client.nothing()


@one_type
@pytest.mark.parametrize("protocol", ["sotw", "delta"])
async def test_g08_two_streams_of_one_node_do_not_disturb_each_other(publish, world, protocol, mode, type_):
    """Hot restart: parent and child have the same node id."""
    publish(a="1")
    parent, child = (world.client(protocol, mode, type_, "envoy") for _ in range(2))
    for each in parent, child:
        await each.want("a")
        await each.expect("a")
        await each.ack()
    await parent.close()
    publish(a="2")
    await child.expect("a")


@one_type
@delta_ads
async def test_g09_a_front_end_that_is_no_more_ends_its_streams(client, publish, world):
    """Not refused while watched: the policy decides which front-ends there are, not their Envoys."""
    publish(a="1")
    await client.want("a")
    await client.expect("a")
    world.server.declare({"another"})
    code, details = await client.ends()
    assert code is grpc.StatusCode.NOT_FOUND
    assert FRONTEND in details
    assert world.server.snapshot(FRONTEND) is None


@one_type
@delta_ads
async def test_g11_a_client_that_was_away_gets_current_data(client, publish, world):
    publish(a="1")
    await client.want("a")
    await client.expect("a")
    await client.close()
    publish(a="2")
    again = world.client("delta", "ads", EDS, client.node.id)
    await again.want("a")
    answer = await again.expect("a")
    assert answer.versions["a"] == world.server.snapshot(FRONTEND).of_type(EDS.url)["a"].version


@one_type
@delta_ads
async def test_g16_a_failing_listener_for_events_ends_no_stream(client, publish, world, monkeypatch, caplog):
    publish(a="1")
    await client.want("a")
    await client.expect("a")
    note = world.server._on_event

    def failing(event):
        note(event)
        raise RuntimeError("no metrics today")

    monkeypatch.setattr(world.server, "_on_event", failing)
    await client.nack()
    publish(a="2")
    await client.expect("a")
    assert world.of(Nacked)
    assert "event_handler_failed" in caplog.text


@one_type
@delta_ads
async def test_g19_an_oversized_request_is_refused(client, publish):
    publish(a="1")
    await client.send(b"x" * (33 << 20))
    code, _ = await client.ends()
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


@one_type
@delta_ads
async def test_g19_bytes_that_are_no_request_are_refused(client, publish):
    publish(a="1")
    await client.send(b"\xff\xff\xff")
    code, details = await client.ends()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "DeltaDiscoveryRequest" in details


async def test_g19_streams_beyond_the_limit_are_refused():
    world = World(max_streams=1)
    await world.start()
    world.server.publish(FRONTEND, contents("1"))
    first, second = (world.client("delta", "ads", CDS) for _ in range(2))
    await first.want("*")
    await first.expect("a")
    await second.want("*")
    assert (await second.ends())[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert world.of(Refused)[0].reason == "too_many"
    await world.stop()


async def test_g22_a_change_of_one_front_end_reaches_its_clients_only(world):
    for frontend in "east", "west":
        world.server.publish(frontend, contents("1"))
    east, west = (world.client("delta", "ads", CDS, frontend=name) for name in ("east", "west"))
    for client in east, west:
        await client.want("*")
        await client.expect("a")
        await client.ack()
    world.server.publish("east", contents("2"))
    await east.expect("a")
    await west.nothing()


@delta_ads
async def test_g23_endpoints_that_come_and_go_never_touch_the_cluster(world, protocol, mode):
    client = world.client(protocol, mode, CDS)

    def publish(*ports):
        world.server.publish(FRONTEND, Snapshot.of([eds_cluster("a"), assignment("a", *ports)]))

    publish(80)
    await client.want("*")
    await client.expect("a")
    await client.ack()
    await client.want("a", of=EDS)
    await client.expect("a", of=EDS)
    for ports in [(), (80,), ()]:
        await client.ack(of=EDS)
        publish(*ports)
        await client.expect("a", of=EDS)
    await client.nothing()


async def test_connections_have_an_age_and_clients_come_back(world):
    options = {
        **dict(SERVER_OPTIONS),
        "grpc.max_connection_age_ms": 50,
        "grpc.max_connection_age_grace_ms": 50,
    }
    server = aio.server(options=tuple(options.items()))
    world.services.register(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    world.server.publish(FRONTEND, contents("1"))
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for _ in range(2):
            call = channel.stream_stream("/envoy.service.cluster.v3.ClusterDiscoveryService/DeltaClusters")()
            await call.write(first_delta_request())
            assert await call.read()
            assert await call.code() is not grpc.StatusCode.OK
    await world.until(lambda: len(world.of(Disconnected)) == len(world.of(Connected)) == 2)
    await server.stop(None)


async def test_a_half_open_connection_is_found(world):
    """A client behind a link that went silent: no FIN, no answer."""
    options = {**dict(SERVER_OPTIONS), "grpc.keepalive_time_ms": 100, "grpc.http2.ping_timeout_ms": 100}
    server = aio.server(options=tuple(options.items()))
    world.services.register(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    world.server.publish(FRONTEND, contents("1"))
    link = Link(port)
    await link.start()
    channel = aio.insecure_channel(f"127.0.0.1:{link.port}")
    call = channel.stream_stream("/envoy.service.cluster.v3.ClusterDiscoveryService/DeltaClusters")()
    await call.write(first_delta_request())
    assert await call.read()
    link.silent = True
    await world.until(lambda: world.of(Disconnected))
    await channel.close()
    await link.stop()
    await server.stop(None)


class Link:
    """A TCP link that can go silent."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._tasks: list[asyncio.Task] = []
        self.silent = False

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader, writer) -> None:
        onward, back = await asyncio.open_connection("127.0.0.1", self._to)
        self._tasks += [
            asyncio.create_task(self._copy(reader, back)),
            asyncio.create_task(self._copy(onward, writer)),
        ]

    async def _copy(self, reader, writer) -> None:
        try:
            while data := await reader.read(65536):
                if not self.silent:
                    writer.write(data)
        finally:
            writer.close()
