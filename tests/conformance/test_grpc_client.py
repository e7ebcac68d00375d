"""I. grpc's own xDS client, in a process of its own, as a second witness of the protocol.

I05 (flow control) is G06, I06 (validity of endpoints) is `test_inspection`, I07 (load reports) is
`test_load_reports`, I08 (another server takes over) is in `test_real_envoy`. I09 and I10 are about grpc's own
balancers; affinity and failover of what we serve are tested with Envoy.
"""

import asyncio
import json
import os
import sys

import grpc
import pytest_asyncio
from envoy_data_plane.envoy.config.listener import v3 as listener
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm
from grpc import aio

from tests.conformance.dialogue import FRONTEND, PATIENCE_S
from tests.conformance.resources import ADS, assignment, eds_cluster, http_manager, routes
from xds_server.events import Acked, Nacked
from xds_server.resources import Resource
from xds_server.snapshot import Snapshot

TARGET = "engines"
CLIENT = """
import sys, grpc
with grpc.insecure_channel("xds:///engines") as channel:
    call = channel.unary_unary("/test.Engine/Name")
    for _ in sys.stdin:
        try:
            print(call(b"", timeout=5, wait_for_ready=True).decode(), flush=True)
        except grpc.RpcError as error:
            print(error.code().name, error.details(), flush=True)
"""


class Client:
    """The process; each `call` is one RPC in it."""

    async def start(self, xds: str) -> None:
        bootstrap = {
            "xds_servers": [
                {"server_uri": xds, "channel_creds": [{"type": "insecure"}], "server_features": ["xds_v3"]}
            ],
            "node": {"id": "grpc-client", "cluster": FRONTEND},
        }
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            CLIENT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "GRPC_XDS_BOOTSTRAP_CONFIG": json.dumps(bootstrap)},
        )

    async def call(self) -> str:
        self._process.stdin.write(b"\n")
        async with asyncio.timeout(PATIENCE_S):
            return (await self._process.stdout.readline()).decode().strip()

    async def reaches(self, name: str) -> None:
        """Calls end there, soon: grpc confirms resources before its balancer has taken them over."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.call() != name:
                pass

    async def stop(self) -> None:
        self._process.stdin.close()
        await self._process.wait()


def named(name: str) -> aio.Server:
    server = aio.server()

    async def answer(request: bytes, context) -> bytes:
        return name.encode()

    handlers = {"Name": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Engine", handlers),))
    return server


@pytest_asyncio.fixture
async def ports():
    servers = [named("one"), named("two")]
    found = [server.add_insecure_port("127.0.0.1:0") for server in servers]
    for server in servers:
        await server.start()
    yield found
    for server in servers:
        await server.stop(None)


@pytest_asyncio.fixture
async def client(world):
    client = Client()
    await client.start(world.address)
    yield client
    await client.stop()


def api_listener() -> Resource:
    manager = http_manager(rds=hcm.Rds(config_source=ADS, route_config_name="r"))
    return Resource.of(
        listener.Listener(name=TARGET, api_listener=listener.ApiListener(api_listener=manager))
    )


def fleet(**engines: int) -> Snapshot:
    found = [api_listener(), routes("r", next(iter(engines)))]
    for name, port in engines.items():
        found += [eds_cluster(name), assignment(name, port)]
    return Snapshot.of(found)


async def test_i_grpc_reaches_a_server_and_follows_endpoints_and_routes(world, client, ports):
    """I01 resources by name; I04 and E05 as seen by a client that asks for clusters once a route names
    them; I06 the content is valid for grpc."""
    one, two = ports
    publish = world.server.publish
    publish(FRONTEND, fleet(a=one))
    assert await client.call() == "one"
    sequence = publish(FRONTEND, fleet(a=two))
    await world.until(lambda: world.server.confirmed(FRONTEND) == sequence)
    await client.reaches("two")
    publish(FRONTEND, fleet(b=one))
    await world.until(lambda: any("b" in event.names for event in world.of(Acked) if event.type == "eds"))
    await world.until(lambda: world.server.confirmed(FRONTEND) == world.server.sequence(FRONTEND))
    await client.reaches("one")
    assert not world.of(Nacked)


async def test_i02_grpc_goes_on_without_the_control_plane_and_after_its_return(world, client, ports):
    snapshot = fleet(a=ports[0])
    world.server.publish(FRONTEND, snapshot)
    assert await client.call() == "one"
    await world.lose()
    assert await client.call() == "one"
    await world.start()
    world.server.publish(FRONTEND, snapshot)
    await world.until(lambda: world.server.connections(FRONTEND))
    world.server.publish(FRONTEND, fleet(a=ports[1]))
    await world.until(
        lambda: (
            any(event.type == "eds" and event.client.stream == "1" for event in world.of(Acked))
            and world.server.confirmed(FRONTEND) == world.server.sequence(FRONTEND)
        )
    )
    await client.reaches("two")


async def test_i03_a_resource_that_appears_late_is_pushed(world, client, ports):
    """The client asks for a listener that does not exist; grpc fails calls meanwhile, and recovers."""
    world.server.publish(FRONTEND, Snapshot.of([eds_cluster("x"), assignment("x", 1)]))
    waiting = asyncio.create_task(client.call())
    await world.until(lambda: any(event.type == "lds" for event in world.of(Acked)))
    assert not waiting.done()
    world.server.publish(FRONTEND, fleet(a=ports[0]))
    assert await waiting == "one"
