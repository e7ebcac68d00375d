"""Replicas and engines that die, refuse, hang or vanish under load."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.child import Child
from tests.envoy import replica as replica_module
from tests.envoy.harness import ControlPlane, Front, Load, Pool, engine
from tests.envoy.replica import Replica
from xds_server.routing import TOTAL_WEIGHT, Endpoint, Health, HealthCheck, OutlierDetection

pytestmark = pytest.mark.asyncio(loop_scope="session")

ALL_HOME = (("home", TOTAL_WEIGHT),)


class Processes:
    """Replicas that are processes of their own."""

    def __init__(self, directory: Path, stack: AsyncExitStack) -> None:
        self.directory = directory
        self.stack = stack
        self.children: dict[str, Child] = {}

    async def start(self, *names: str, answer_after_s: float) -> list[Endpoint]:
        """Start replicas and return their endpoints."""
        for name in names:
            ports = self.directory / f"{name}.json"
            argv = [sys.executable, replica_module.__file__, name, str(ports), str(answer_after_s)]
            self.children[name] = await Child.start(name, argv, self.directory / f"{name}.log")
            self.stack.push_async_callback(self.children[name].stop)
        found = [await self.children[name].ports(self.directory / f"{name}.json") for name in names]
        return [Endpoint(name, "127.0.0.1", each["http"]) for name, each in zip(names, found, strict=True)]


@asynccontextmanager
async def processes(directory: Path) -> AsyncIterator[Processes]:
    async with AsyncExitStack() as stack:
        yield Processes(directory, stack)


async def test_a_killed_replica_fails_no_request_that_had_no_answer(
    control_plane: ControlPlane, front: Front, tmp_path: Path
) -> None:
    async with processes(tmp_path) as started:
        replicas = await started.start("home-0", "home-1", "home-2", answer_after_s=0.1)
        pool = Pool({"home": replicas})
        await control_plane.publish(pool.table(pool.split(retry_limit={"home": 100})))
        async with Load(front, rate_rps=150) as load:
            await load.reach(100)
            started.children["home-1"].kill()
            await load.reach(300)
        assert set(load.outcomes) == {"ok"}
        assert (await front.envoy.counters(r"home\.upstream_rq_retry$"))[
            "cluster.chat_large/interactive/home.upstream_rq_retry"
        ]


async def test_a_killed_engine_fails_no_request_that_had_no_answer(
    control_plane: ControlPlane, front: Front, tmp_path: Path
) -> None:
    async with processes(tmp_path) as started:
        home = await started.start("home-0", "home-1", answer_after_s=0.1)
        away = await started.start("away-0", "away-1", answer_after_s=0.1)
        pool = Pool({"home": home, "away": away})
        split = pool.split(entries=ALL_HOME, fallback={"home": "away"}, retry_limit={"home": 100})
        await control_plane.publish(pool.table(split))
        async with Load(front, rate_rps=150) as load:
            await load.reach(100)
            for name in ("home-0", "home-1"):
                started.children[name].kill()
            await load.reach(300)
        assert set(load.outcomes) == {"ok"}
        assert load.served_by["away-0"] + load.served_by["away-1"] >= 250


async def test_an_engine_that_answers_503_is_helped_out_by_its_fallback(
    control_plane: ControlPlane, front: Front
) -> None:
    async with Replica("home-0") as home, Replica("away-0") as away:
        home.answer = home.answer_503
        pool = Pool({"home": [home], "away": [away]}, {"home": engine("home", outlier_detection=None)})
        await control_plane.publish(pool.table(pool.split(entries=ALL_HOME, fallback={"home": "away"})))
        answer = await front.chat()
        assert (answer.status, answer.served_by) == (200, "away-0")
        assert answer.headers["x-headrace-engine"] == "away"
        assert len(home.received) == 2
        assert not away.received[0].header("x-headrace-engine")


@pytest.mark.parametrize(("statuses", "seen"), [((500, 503), 200), ((503,), 500)])
async def test_a_500_is_tried_again_where_the_policy_says_so(
    control_plane: ControlPlane, front: Front, statuses: tuple[int, ...], seen: int
) -> None:
    async with Replica("home-0") as home, Replica("away-0") as away:
        home.answer = home.answer_500
        pool = Pool({"home": [home], "away": [away]}, {"home": engine("home", outlier_detection=None)})
        table = pool.table(pool.split(entries=ALL_HOME, fallback={"home": "away"}))
        models = tuple(replace(model, retry_statuses=statuses) for model in table.models)
        await control_plane.publish(replace(table, models=models))
        assert (await front.chat()).status == seen


async def test_a_large_body_is_whole_when_it_is_tried_again(
    control_plane: ControlPlane, front: Front
) -> None:
    async with Replica("home-0") as home, Replica("away-0") as away:
        home.answer = home.answer_503
        pool = Pool({"home": [home], "away": [away]}, {"home": engine("home", outlier_detection=None)})
        await control_plane.publish(pool.table(pool.split(entries=ALL_HOME, fallback={"home": "away"})))
        assert (await front.chat(user="x" * (6 << 20))).served_by == "away-0"
        assert away.received[0].body == home.received[0].body
        assert len(away.received[0].body) > 6 << 20


async def test_an_engines_own_error_reaches_the_client_when_nobody_can_help(
    control_plane: ControlPlane, front: Front
) -> None:
    async with Replica("home-0") as home:
        home.answer = home.answer_503
        await control_plane.publish(
            Pool({"home": [home]}, {"home": engine("home", outlier_detection=None)}).table()
        )
        answer = await front.chat()
        assert (answer.status, answer.body) == (503, b"broken")
        assert len(home.received) == 3


async def test_failing_replicas_are_ejected_and_get_nothing_at_the_first_attempt(
    control_plane: ControlPlane, front: Front
) -> None:
    async with Replica("home-0") as home, Replica("away-0") as away:
        home.answer = home.answer_503
        detection = OutlierDetection(consecutive_gateway_failure=3, base_ejection_time_s=30)
        pool = Pool({"home": [home], "away": [away]}, {"home": engine("home", outlier_detection=detection)})
        await control_plane.publish(pool.table(pool.split(entries=ALL_HOME, fallback={"home": "away"})))
        for _ in range(10):
            assert (await front.chat()).served_by == "away-0"
        assert len(home.received) == 3, "two attempts of the first request, one of the second"


async def test_an_engine_without_replicas_costs_no_retry(control_plane: ControlPlane, front: Front) -> None:
    async with Replica("away-0") as away:
        down = Endpoint("home-0", "127.0.0.1", 9, health=Health.UNHEALTHY)
        for replicas in ([], [down], [replace(down, health=Health.DRAINING)]):
            pool = Pool({"home": replicas, "away": [away]})
            split = pool.split(entries=ALL_HOME, fallback={"home": "away"}, retry_limit={"home": 0})
            await control_plane.publish(pool.table(split))
            assert (await front.chat()).served_by == "away-0"


async def test_no_replica_at_all_is_503_with_a_reason(control_plane: ControlPlane, front: Front) -> None:
    await control_plane.publish(Pool({"home": []}).table())
    answer = await front.chat()
    assert answer.status == 503
    assert answer.reason == "no_replica"
    assert answer.headers["retry-after"] == "5"


async def test_a_dead_engine_without_fallback_is_503_and_not_a_rate_limit(
    control_plane: ControlPlane, front: Front
) -> None:
    async with Replica("gone") as gone:
        port = gone.port
    pool = Pool({"home": [Endpoint("home-0", "127.0.0.1", port)]})
    for retry_limit in (10, 0):
        await control_plane.publish(pool.table(pool.split(retry_limit={"home": retry_limit})))
        answer = await front.chat()
        assert answer.status == 503
        assert answer.reason in ("engine_failed", "no_replica")


async def test_retries_in_flight_never_exceed_the_limit_in_force(
    control_plane: ControlPlane, front: Front
) -> None:
    async with Replica("home-0") as home, Replica("away-0") as away:
        home.answer = home.answer_503
        running = peak = 0
        release = asyncio.Event()

        async def held(request: object, out: asyncio.StreamWriter) -> None:
            nonlocal running, peak
            running += 1
            peak = max(peak, running)
            await release.wait()
            running -= 1
            await away.answer_json(request, out)

        away.answer = held
        engines = {"home": engine("home", outlier_detection=None)}
        pool = Pool({"home": [home], "away": [away]}, engines)
        split = pool.split(entries=ALL_HOME, fallback={"home": "away"})
        for limit in (5, 0):
            release.clear()
            away.received.clear()
            peak = 0
            await control_plane.publish(pool.table(replace(split, retry_limit={"home": limit})))
            requests = [asyncio.create_task(front.chat()) for _ in range(30)]
            refused = set()
            while len(refused) < 30 - limit:
                done, _ = await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
                refused |= done
                requests = [each for each in requests if not each.done()]
            await away.reached(limit)
            release.set()
            served = await asyncio.gather(*requests)
            assert [each.served_by for each in served] == ["away-0"] * limit
            assert peak == limit
            assert all(each.result().status == 503 for each in refused)


async def test_a_tripped_breaker_is_429_and_is_never_tried_elsewhere(
    control_plane: ControlPlane, front: Front
) -> None:
    async with Replica("home-0") as home, Replica("away-0") as away:
        home.answer = home.never
        pool = Pool({"home": [home], "away": [away]})
        split = pool.split(entries=ALL_HOME, fallback={"home": "away"}, request_limit={"home": 3})
        await control_plane.publish(pool.table(split))
        hanging = [asyncio.create_task(front.chat()) for _ in range(3)]
        await home.reached(3)
        answer = await front.chat()
        assert answer.status == 429
        assert answer.reason == "overflow"
        assert answer.headers["retry-after"] == "1"
        assert not away.received
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)


async def test_a_replica_that_drains_gets_nothing_new(control_plane: ControlPlane, front: Front) -> None:
    async with Replica("home-0") as leaving, Replica("home-1") as staying:
        pool = Pool({"home": [leaving, staying]})
        await control_plane.publish(pool.table())
        async with Load(front, rate_rps=150) as load:
            await load.reach(60)
            draining, other = pool.endpoints()["home"]
            await control_plane.publish(
                Pool({"home": [replace(draining, health=Health.DRAINING), other]}).table()
            )
            before = len(leaving.received)
            assert before
            await load.reach(60)
            assert len(leaving.received) == before
        assert set(load.outcomes) == {"ok"}


async def test_an_address_change_under_load_fails_nothing(control_plane: ControlPlane, front: Front) -> None:
    async with Replica("home-0") as old, Replica("home-0") as new:
        engines = {"home": engine("home", health_check=HealthCheck(interval_s=0.2))}
        await control_plane.publish(Pool({"home": [old]}, engines).table())
        async with Load(front, rate_rps=150) as load:
            await load.reach(50)
            both = [old, replace(_at(new), replica="home-1")]
            await control_plane.publish(Pool({"home": both}, engines).table())
            await load.reach(50)
            await control_plane.publish(Pool({"home": [new]}, engines).table())
            seen = len(old.received)
            await load.reach(50)
            assert len(old.received) == seen
        assert set(load.outcomes) == {"ok"}
        assert new.received


async def test_active_checks_take_out_a_replica_that_says_it_is_unwell(
    control_plane: ControlPlane, front: Front
) -> None:
    check = HealthCheck(interval_s=0.05, timeout_s=1, unhealthy_threshold=1)
    async with Replica("home-0") as home, Replica("away-0") as away:
        pool = Pool({"home": [home], "away": [away]}, {"home": engine("home", health_check=check)})
        await control_plane.publish(pool.table(pool.split(entries=ALL_HOME, fallback={"home": "away"})))
        assert (await front.chat()).served_by == "home-0"
        home.healthy = False
        async with asyncio.timeout(10):
            while (await front.chat()).served_by != "away-0":
                pass
        home.healthy = True
        async with asyncio.timeout(10):
            while (await front.chat()).served_by != "home-0":
                pass


def _at(replica: Replica) -> Endpoint:
    return Endpoint(replica.name, "127.0.0.1", replica.port)


async def test_a_first_byte_limit_lets_another_replica_answer(
    control_plane: ControlPlane, front: Front
) -> None:
    async with Replica("home-0") as hung, Replica("away-0") as away:
        hung.answer = hung.never
        pool = Pool({"home": [hung], "away": [away]})
        table = pool.table(pool.split(entries=ALL_HOME, fallback={"home": "away"}))
        models = tuple(replace(model, per_try_timeout_s=0.2) for model in table.models)
        await control_plane.publish(replace(table, models=models))
        assert (await front.chat()).served_by == "away-0"
        away.answer = away.never
        answer = await front.chat()
        assert answer.status == 504
        assert answer.reason == "timeout"


@pytest.mark.parametrize(("balance", "used"), [(None, 1), (150, 2)])
async def test_bounded_load_spreads_one_hot_key(
    control_plane: ControlPlane, front: Front, balance: int | None, used: int
) -> None:
    async with Replica("home-0") as one, Replica("home-1") as other:
        one.answer, other.answer = one.never, other.never
        engines = {"home": engine("home", hash_balance_factor=balance)}
        await control_plane.publish(Pool({"home": [one, other]}, engines).table())
        running = []
        for number in range(1, 21):
            running.append(asyncio.create_task(front.chat(headers={"x-session-id": "hot"})))
            await replica_module.reached(number, one, other)
        assert len([each for each in (one, other) if each.received]) == used
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


@pytest.mark.parametrize("status", [400, 404, 422, 429])
async def test_a_refusal_of_the_engine_is_passed_on_and_held_against_nobody(
    control_plane: ControlPlane, front: Front, status: int
) -> None:
    async with Replica("home-0") as home, Replica("away-0") as away:

        async def refuse(request: object, out: asyncio.StreamWriter) -> None:
            out.write(replica_module.head(status, ("retry-after", "7"), ("content-length", "4")) + b"busy")

        home.answer = refuse
        detection = OutlierDetection(consecutive_gateway_failure=3, base_ejection_time_s=30)
        pool = Pool({"home": [home], "away": [away]}, {"home": engine("home", outlier_detection=detection)})
        await control_plane.publish(pool.table(pool.split(entries=ALL_HOME, fallback={"home": "away"})))
        for _ in range(10):
            answer = await front.chat()
            assert (answer.status, answer.body, answer.headers["retry-after"]) == (status, b"busy", "7")
        assert len(home.received) == 10, "none was tried again"
        home.answer = home.answer_json
        assert (await front.chat()).served_by == "home-0", "it was not ejected"
        assert not away.received


async def test_a_tripped_breaker_ejects_nobody(control_plane: ControlPlane, front: Front) -> None:
    async with Replica("home-0") as home, Replica("away-0") as away:
        home.answer = home.never
        detection = OutlierDetection(consecutive_gateway_failure=3, base_ejection_time_s=30)
        pool = Pool({"home": [home], "away": [away]}, {"home": engine("home", outlier_detection=detection)})
        split = pool.split(entries=ALL_HOME, fallback={"home": "away"}, request_limit={"home": 3})
        await control_plane.publish(pool.table(split))
        hanging = [asyncio.create_task(front.chat()) for _ in range(3)]
        await home.reached(3)
        assert {(await front.chat()).status for _ in range(20)} == {429}
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        home.answer = home.answer_json
        async with asyncio.timeout(10):
            while (answer := await front.chat()).status == 429:
                pass  # until Envoy has noticed that the clients left
        assert answer.served_by == "home-0"


@pytest.mark.parametrize("broken", [1, 2, 3])
async def test_whether_one_two_or_all_replicas_fail_none_of_them_is_picked_again(
    control_plane: ControlPlane, front: Front, broken: int
) -> None:
    async with (
        Replica("home-0") as first,
        Replica("home-1") as second,
        Replica("home-2") as third,
        Replica("away-0") as away,
    ):
        home = (first, second, third)
        for each in home[:broken]:
            each.answer = each.answer_503
        detection = OutlierDetection(consecutive_gateway_failure=3, base_ejection_time_s=30)
        pool = Pool({"home": home, "away": [away]}, {"home": engine("home", outlier_detection=detection)})
        split = pool.split(entries=ALL_HOME, fallback={"home": "away"}, retry_limit={"home": 100})
        await control_plane.publish(pool.table(split))
        async with Load(front, rate_rps=150) as load:
            await load.reach(100)
            before = [len(each.received) for each in home[:broken]]
            await load.reach(100)
            assert [len(each.received) for each in home[:broken]] == before
        assert set(load.outcomes) == {"ok"}
        served = set(load.served_by) - {"away-0"}
        assert served == {each.name for each in home[broken:]}


async def test_a_client_cannot_ask_for_more_attempts(control_plane: ControlPlane, front: Front) -> None:
    async with Replica("home-0") as home:
        home.answer = home.answer_503
        pool = Pool({"home": [home]}, {"home": engine("home", outlier_detection=None)})
        splits = [pool.split(traffic_class=name) for name in ("interactive", "batch")]
        await control_plane.publish(pool.table(*splits))
        asked = {"x-envoy-max-retries": "9", "x-envoy-retry-on": "5xx,reset"}
        for listener in ("public", "internal"):
            home.received.clear()
            assert (await front.chat(listener=listener, headers=asked)).status == 503
            assert len(home.received) == 3


async def test_where_an_outer_layer_counts_its_attempts_nobody_else_tries_again(
    control_plane: ControlPlane, front: Front
) -> None:
    async with Replica("home-0") as home:
        home.answer = home.answer_503
        pool = Pool({"home": [home]}, {"home": engine("home", outlier_detection=None)})
        splits = [pool.split(traffic_class=name) for name in ("interactive", "batch")]
        await control_plane.publish(pool.table(*splits))
        for listener in ("public", "internal"):
            home.received.clear()
            answer = await front.chat(listener=listener, headers={"x-envoy-attempt-count": "1"})
            assert answer.status == 503
            assert len(home.received) == 1
