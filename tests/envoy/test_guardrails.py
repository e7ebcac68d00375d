"""Settings of an engine on the wire: how long to connect, how long a connection idles, when health counts."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.envoy.harness import ControlPlane, Front, Pool, engine
from tests.envoy.replica import Received, Replica
from xds_server.routing import TOTAL_WEIGHT, Endpoint, Health

pytestmark = pytest.mark.asyncio(loop_scope="session")


@contextmanager
def deaf() -> Iterator[Endpoint]:
    """An address at which no connection comes about and none is refused: its backlog is full."""
    with socket.socket() as server, socket.socket() as first, socket.socket() as second:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for client in (first, second):
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield Endpoint("deaf", "127.0.0.1", server.getsockname()[1])


async def test_what_cannot_be_connected_to_in_time_is_tried_elsewhere(
    control_plane: ControlPlane, front: Front
) -> None:
    with deaf() as home:
        async with Replica("away-0") as away:
            pool = Pool({"home": [home], "away": [away]}, {"home": engine("home", connect_timeout_s=0.2)})
            split = pool.split(entries=(("home", TOTAL_WEIGHT),), fallback={"home": "away"})
            await control_plane.publish(pool.table(split))
            assert (await front.chat()).served_by == "away-0"


async def test_an_idle_connection_is_closed_after_the_engines_own_limit(
    control_plane: ControlPlane, front: Front
) -> None:
    used: dict[str, asyncio.StreamWriter] = {}
    async with Replica("short-0") as short, Replica("long-0") as long:
        for replica in (short, long):

            async def answer(
                request: Received, out: asyncio.StreamWriter, replica: Replica = replica
            ) -> None:
                used[replica.name] = out
                await replica.answer_json(request, out)

            replica.answer = answer
        limits = {"short": engine("short", idle_timeout_s=0.2), "long": engine("long", idle_timeout_s=600)}
        await control_plane.publish(Pool({"short": [short], "long": [long]}, limits).table())
        for number in range(200):
            if len(used) < 2:
                await front.chat(headers={"x-session-id": f"session-{number}"})
        async with asyncio.timeout(10):
            await used["short-0"].wait_closed()
        assert not used["long-0"].is_closing()


@pytest.mark.parametrize(("panic_percent", "status"), [(0, 503), (50, 200)])
async def test_health_is_ignored_only_below_the_panic_threshold(
    control_plane: ControlPlane, front: Front, panic_percent: float, status: int
) -> None:
    async with Replica("home-0") as home:
        unwell = Endpoint("home-0", "127.0.0.1", home.port, health=Health.UNHEALTHY)
        settings = {"home": engine("home", panic_threshold_percent=panic_percent)}
        await control_plane.publish(Pool({"home": [unwell]}, settings).table())
        assert (await front.chat()).status == status
