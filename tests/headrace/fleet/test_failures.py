"""Parts of a running fleet are killed, and nobody outside notices (design/failures.md)."""

from __future__ import annotations

import asyncio
import signal
from itertools import pairwise

from headrace.demo.fleet import Fleet
from tests.headrace.fleet.conftest import Loading
from tests.headrace.fleet.small import KEY, answered, cut, demand, failures, ready, share, until


async def test_a_killed_replica_fails_no_request_that_had_no_headers(fleet: Fleet, loaded: Loading):
    async with loaded(fleet) as generator:
        await until(fleet, lambda status: demand(status) > 40)
        fleet.engines["west-gpu", "r1"].kill(signal.SIGKILL)
        await until(fleet, lambda status: ready(status, "west-gpu") == 1)
        await until(fleet, lambda status: len(status["engines"]["west-gpu"]["replicas"]) == 1)
    assert failures(generator) == []


async def test_a_killed_engine_fails_no_request_and_its_traffic_comes_home_again(
    fleet: Fleet, loaded: Loading
):
    async with loaded(fleet) as generator:
        await until(fleet, lambda status: demand(status) > 40 and share(status, "west", "west-gpu") > 0.95)
        for replica in ("r1", "r2"):
            fleet.engines["west-gpu", replica].kill(signal.SIGKILL)
        await until(fleet, lambda status: share(status, "west", "east-gpu") == 1.0)
        await asyncio.gather(*(fleet.start_engine("west-gpu", replica) for replica in ("r1", "r2")))
        await until(fleet, lambda status: ready(status, "west-gpu") == 2)
        await until(fleet, lambda status: share(status, "west", "west-gpu") > 0.95)
    assert failures(generator) == []


async def test_traffic_returns_in_steps_no_larger_than_the_guard(fleet: Fleet, loaded: Loading):
    async with loaded(fleet):
        await until(fleet, lambda status: demand(status) > 40)
        for replica in ("r1", "r2"):
            fleet.engines["west-gpu", replica].kill(signal.SIGKILL)
        gone = await until(fleet, lambda status: share(status, "west", "east-gpu") == 1.0)
        await asyncio.gather(*(fleet.start_engine("west-gpu", replica) for replica in ("r1", "r2")))
        seen = [0.0]

        def home(status: dict) -> bool:
            seen.append(share(status, "west", "west-gpu"))
            return seen[-1] > 0.95 and status["snapshot"] > gone["snapshot"]

        await until(fleet, home)
    assert max(after - before for before, after in pairwise(seen)) < 0.21


async def test_without_control_plane_requests_go_on_and_its_return_moves_nothing(
    fleet: Fleet, loaded: Loading
):
    async with loaded(fleet) as generator:
        before = await until(
            fleet, lambda status: demand(status) > 50 and share(status, "west", "west-gpu") == 1.0
        )
        fleet.control.kill(signal.SIGKILL)
        await fleet.control.process.wait()
        await asyncio.sleep(3)  # the outage itself
        await fleet.start_control_plane()
        planned = await until(fleet, lambda status: status["last_round"] is not None)
    assert failures(generator) == cut(generator) == []
    assert planned["shares"] == before["shares"]
    assert planned["snapshot"] == before["snapshot"]


async def test_demand_is_counted_exactly_over_a_control_plane_outage(fleet: Fleet, loaded: Loading):
    async with loaded(fleet, stream_share=0.0) as generator:
        await until(fleet, lambda status: demand(status) > 40)
        fleet.control.kill(signal.SIGKILL)
        await asyncio.sleep(2)  # the outage itself
        await fleet.start_control_plane()
    sent = {frontend: row["requests"] for frontend, row in generator.summary().items()}
    await until(
        fleet,
        lambda status: {f: row.get(KEY) for f, row in status["demand_total"].items()} == sent,
    )


async def test_a_replica_that_comes_back_at_another_address_is_used_there(fleet: Fleet, loaded: Loading):
    async with loaded(fleet) as generator:
        await until(fleet, lambda status: demand(status) > 40)
        old = fleet.engine_ports["west-gpu", "r1"]["http"]
        fleet.engines["west-gpu", "r1"].kill(signal.SIGKILL)
        await until(fleet, lambda status: ready(status, "west-gpu") == 1)
        await fleet.start_engine("west-gpu", "r1")
        status = await until(fleet, lambda status: ready(status, "west-gpu") == 2)
        generator.start_measuring()
        await asyncio.sleep(2)  # some requests at the new address
    addresses = {replica["address"] for replica in status["engines"]["west-gpu"]["replicas"]}
    assert f"127.0.0.1:{old}" not in addresses
    assert failures(generator) == []
    assert generator.summary()["west"]["by_replica"].get("west-gpu/r1", 0) > 0


async def test_a_draining_replica_gets_nothing_new_while_its_streams_end_whole(fleet: Fleet, loaded: Loading):
    async with loaded(fleet, stream_share=1.0) as generator:
        await until(fleet, lambda status: demand(status) > 40)
        await fleet.fault("west-gpu", "r1", drain=True)
        await until(fleet, lambda status: ready(status, "west-gpu") == 1)
        before = await answered(lambda: fleet.stats("west-gpu", "r1"), lambda stats: not stats["accepting"])
        await asyncio.sleep(2)  # more load, none of it may go there
        after = await fleet.stats("west-gpu", "r1")
    assert failures(generator) == cut(generator) == []
    assert after["paths"]["/v1/chat/completions"] == before["paths"]["/v1/chat/completions"]
