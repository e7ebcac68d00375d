"""A control plane that is gone, and one that comes back."""

from __future__ import annotations

import aiohttp
import pytest

from headrace.child import ChildFailedError
from headrace.envoy_bootstrap import Bootstrap
from headrace.envoy_process import EnvoyProcess
from tests.envoy.harness import FLEET, FRONTEND, ControlPlane, Front, Load, Pool
from tests.envoy.replica import Replica

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_nothing_fails_or_moves_while_the_control_plane_is_gone_and_when_it_is_back(
    http: aiohttp.ClientSession,
) -> None:
    keys = [f"session-{i}" for i in range(200)]
    async with Replica("home-0") as home, Replica("home-1") as other, Replica("away-0") as away:
        table = Pool({"home": [home, other], "away": [away]}).table()
        async with ControlPlane() as first:
            first.push(table)
            bootstrap = Bootstrap(FRONTEND, FLEET, [("127.0.0.1", first.port)], "survivor")
            async with EnvoyProcess(bootstrap) as envoy:
                await envoy.ready()
                front = Front(envoy, http)
                before = await front.where(keys)
                async with Load(front, rate_rps=100) as load:
                    await load.reach(20)
                    await first.stop()
                    await load.reach(100)
                    async with ControlPlane(first.port) as second:
                        second.push(table)
                        await second.connected()
                        await second.publish(table)
                        await load.reach(50)
                assert set(load.outcomes) == {"ok"}
                assert await front.where(keys) == before
                updates = await envoy.counters(r"^(cluster_manager|listener_manager)\..*(modified|removed)$")
                assert set(updates.values()) == {0}


async def test_an_envoy_without_a_control_plane_is_never_ready() -> None:
    async with ControlPlane() as gone:
        port = gone.port
    async with EnvoyProcess(Bootstrap(FRONTEND, FLEET, [("127.0.0.1", port)], "early")) as envoy:
        with pytest.raises(ChildFailedError, match="not ready after"):
            await envoy.ready(timeout_s=0.5)
        assert not envoy.ports
        async with ControlPlane(port) as control_plane, Replica("home-0") as home:
            control_plane.push(Pool({"home": [home]}).table())
            assert set(await envoy.ready()) == {"public", "internal"}


async def test_an_envoy_of_another_fleet_gets_nothing(control_plane: ControlPlane) -> None:
    stranger = Bootstrap(FRONTEND, "other", [("127.0.0.1", control_plane.port)], "stranger")
    async with EnvoyProcess(stranger) as envoy:
        with pytest.raises(ChildFailedError):
            await envoy.ready(timeout_s=1)
        assert control_plane.refused[-1].reason == "fleet"


async def test_a_listener_that_clients_use_is_left_alone_by_every_change_of_the_plan(
    control_plane: ControlPlane, front: Front
) -> None:
    async with Replica("a-0") as a, Replica("b-0") as b:
        pool = Pool({"a": [a], "b": [b]})
        await control_plane.publish(pool.table())
        changes = r"^listener_manager\.listener_(modified|removed|added)$"
        before = await front.envoy.counters(changes)
        shares = pool.split(entries=(("b", 1 << 20),), retry_limit={"b": 3}, request_limit={"b": 9})
        await control_plane.publish(pool.table(shares))
        await control_plane.publish(Pool({"a": [a], "b": []}).table())
        assert await front.envoy.counters(changes) == before
