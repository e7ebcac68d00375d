"""What Envoys report to the control plane: absolute counters under names that lead back to the policy."""

from __future__ import annotations

import aiohttp
import pytest

from headrace.envoy_bootstrap import Bootstrap
from headrace.envoy_process import EnvoyProcess
from tests.envoy.harness import FLEET, FRONTEND, ControlPlane, Front, Pool, engine
from tests.envoy.replica import Replica
from xds_server.routing import SHED, TOTAL_WEIGHT
from xds_server.translate import names

pytestmark = pytest.mark.asyncio(loop_scope="session")

DEMAND = names.demand_prefix("chat.large", "interactive") + names.DEMAND_SUFFIX


async def test_demand_retries_answers_and_connect_times_are_reported(http: aiohttp.ClientSession) -> None:
    async with ControlPlane() as control_plane, Replica("home-0") as home, Replica("away-0") as away:
        home.answer = home.answer_503
        pool = Pool({"home": [home], "away": [away]}, {"home": engine("home", outlier_detection=None)})
        split = pool.split(entries=(("home", TOTAL_WEIGHT),), fallback={"home": "away"})
        control_plane.push(pool.table(split))
        envoy = await control_plane.start_envoy("counting")
        front = Front(envoy, http)
        for _ in range(5):
            assert (await front.chat()).status == 200
        composite = names.composite("chat.large", "interactive", "home")
        await control_plane.flushed("counting", DEMAND, "", 5)
        await control_plane.flushed("counting", "cluster.upstream_rq_completed", composite, 5)
        await control_plane.flushed("counting", "cluster.upstream_rq_retry", composite, 10)
        await control_plane.flushed("counting", "cluster.upstream_rq_2xx", composite, 5)
        connected = ("counting", "cluster.upstream_cx_connect_ms", names.member("interactive", "home"))
        assert connected in control_plane.reported
        table = names.ModelNames.of(["chat.large", "chat.small"])
        assert table.demand_key(DEMAND) == ("chat.large", "interactive")
        assert table.composite_key(composite) == ("chat.large", "interactive", "home")


async def test_what_fails_and_what_is_shed_is_reported_by_cluster(http: aiohttp.ClientSession) -> None:
    async with ControlPlane() as control_plane, Replica("home-0") as home:
        home.answer = home.answer_503
        pool = Pool({"home": [home]}, {"home": engine("home", outlier_detection=None)})
        shed = pool.split(traffic_class="batch", entries=((SHED, TOTAL_WEIGHT),))
        control_plane.push(pool.table(pool.split(), shed))
        envoy = await control_plane.start_envoy("failing")
        front = Front(envoy, http)
        for _ in range(3):
            assert (await front.chat()).status == 503
        for _ in range(4):
            assert (await front.chat(listener="internal")).status == 429
        composite = names.composite("chat.large", "interactive", "home")
        refused = names.shed("chat.large", "batch")
        await control_plane.flushed("failing", "cluster.upstream_rq_5xx", composite, 3)
        await control_plane.flushed("failing", "cluster.upstream_rq_completed", refused, 4)


async def test_what_happens_while_nobody_listens_is_reported_afterwards(http: aiohttp.ClientSession) -> None:
    async with Replica("home-0") as home:
        table = Pool({"home": [home]}).table()
        async with ControlPlane() as first:
            first.push(table)
            bootstrap = Bootstrap(
                FRONTEND, FLEET, [("127.0.0.1", first.port)], "patient", flush_interval_s=0.1
            )
            async with EnvoyProcess(bootstrap) as envoy:
                await envoy.ready()
                front = Front(envoy, http)
                for _ in range(7):
                    await front.chat()
                await first.flushed("patient", DEMAND, "", 7)
                await first.stop()
                for _ in range(30):
                    await front.chat()
                async with ControlPlane(first.port) as second:
                    second.push(table)
                    await second.flushed("patient", DEMAND, "", 37)


async def test_only_listed_stats_exist(front: Front, replica: Replica) -> None:
    await front.chat()
    found = await front.envoy.counters()
    assert len(found) < 200
    assert not [name for name in found if ".external." in name or ".zone." in name]
