"""The demand counter counts each request once, whatever becomes of it."""

from __future__ import annotations

import asyncio

import pytest

from tests.envoy.harness import ControlPlane, Front, Pool, engine
from tests.envoy.replica import Replica
from xds_server.routing import SHED, TOTAL_WEIGHT, Endpoint

pytestmark = pytest.mark.asyncio(loop_scope="session")

HALF = TOTAL_WEIGHT // 2


async def send(front: Front, count: int) -> list[int]:
    async def one(number: int) -> int:
        return (await front.chat(headers={"x-session-id": f"demand-{number}"})).status

    return await asyncio.gather(*(one(number) for number in range(count)))


async def test_retries_of_a_failing_engine_are_not_demand(control_plane: ControlPlane, front: Front) -> None:
    async with Replica("home-0") as home, Replica("away-0") as away:
        home.answer = home.answer_503
        pool = Pool({"home": [home], "away": [away]}, {"home": engine("home", outlier_detection=None)})
        split = pool.split(fallback={"home": "away"}, retry_limit={"home": 1000})
        await control_plane.publish(pool.table(split))
        before = await front.demand()
        assert set(await send(front, 200)) == {200}
        assert len(home.received) + len(away.received) > 250
        assert await front.demand() == before + 200


async def test_a_dead_engine_does_not_change_demand(control_plane: ControlPlane, front: Front) -> None:
    async with Replica("gone") as gone:
        dead = Endpoint("home-0", "127.0.0.1", gone.port)
    async with Replica("away-0") as away:
        pool = Pool({"home": [dead], "away": [away]})
        split = pool.split(fallback={"home": "away"}, retry_limit={"home": 1000})
        await control_plane.publish(pool.table(split))
        before = await front.demand()
        assert set(await send(front, 200)) == {200}
        assert await front.demand() == before + 200


async def test_what_is_shed_is_demand(control_plane: ControlPlane, front: Front) -> None:
    async with Replica("home-0") as home:
        pool = Pool({"home": [home]})
        await control_plane.publish(pool.table(pool.split(entries=((SHED, HALF), ("home", HALF)))))
        before = await front.demand()
        statuses = await send(front, 200)
        assert set(statuses) == {200, 429}
        assert len(home.received) == statuses.count(200)
        assert await front.demand() == before + 200


async def test_what_has_not_begun_to_be_answered_is_demand(control_plane: ControlPlane, front: Front) -> None:
    async with Replica("home-0") as home:
        home.answer = home.never
        await control_plane.publish(Pool({"home": [home]}).table())
        before = await front.demand()
        waiting = [asyncio.create_task(front.chat()) for _ in range(20)]
        await home.reached(20)
        assert await front.demand() == before + 20
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_client_that_leaves_is_demand_once(control_plane: ControlPlane, front: Front) -> None:
    async with Replica("home-0") as home:
        home.answer = home.never
        await control_plane.publish(Pool({"home": [home]}).table())
        before = await front.demand()
        leaving = [asyncio.create_task(front.chat()) for _ in range(20)]
        await home.reached(20)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        assert await front.demand() == before + 20


async def test_demand_is_exact_while_shares_change_and_with_two_workers(
    control_plane: ControlPlane, front: Front
) -> None:
    two_workers = Front(control_plane.envoys[1], front.http)
    async with Replica("a-0") as a, Replica("b-0") as b:
        pool = Pool({"a": [a], "b": [b]})
        await control_plane.publish(pool.table())
        before = await two_workers.demand()

        async def reshuffle() -> None:
            for step in range(1, 9):
                left = TOTAL_WEIGHT * step // 10
                entries = (("a", left), ("b", TOTAL_WEIGHT - left))
                await control_plane.publish(pool.table(pool.split(entries=entries)))

        statuses, _ = await asyncio.gather(send(two_workers, 300), reshuffle())
        assert set(statuses) == {200}
        assert await two_workers.demand() == before + 300


async def test_keys_and_classes_are_counted_apart(control_plane: ControlPlane, front: Front) -> None:
    async with Replica("home-0") as home:
        pool = Pool({"home": [home]})
        batch = pool.split(traffic_class="batch")
        await control_plane.publish(pool.table(pool.split(), batch))
        counted = [("chat.large", "interactive"), ("chat.large", "batch")]
        before = [await front.demand(*key) for key in counted]
        await front.chat()
        await front.chat(listener="internal")
        await front.chat(listener="internal")
        await front.chat(model="nope")
        assert [await front.demand(*key) for key in counted] == [before[0] + 1, before[1] + 2]
