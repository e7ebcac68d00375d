"""Conversations stay where their KV cache is."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import aiohttp
import pytest

from optimizer import Partition
from tests.envoy.harness import ControlPlane, Front, Pool, engine
from tests.envoy.replica import Replica
from xds_server.routing import TOTAL_WEIGHT, Endpoint

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEYS = [f"thread-{i}" for i in range(5000)]


@pytest.mark.parametrize("lb_policy", ["ring_hash", "maglev"])
async def test_one_session_keeps_one_replica_on_every_envoy(
    control_plane: ControlPlane, front: Front, lb_policy: str
) -> None:
    async with Replica("a-0") as a0, Replica("a-1") as a1, Replica("b-0") as b0, Replica("b-1") as b1:
        engines = {name: engine(name, lb_policy=lb_policy) for name in "ab"}
        await control_plane.publish(Pool({"a": [a0, a1], "b": [b0, b1]}, engines).table())
        other = Front(control_plane.envoys[1], front.http)
        seen = [set(await each.where(["the-session"] * 200)) for each in (front, other)]
        assert seen[0] == seen[1]
        assert len(seen[0]) == 1
        keys = KEYS[:300]
        here, there = await asyncio.gather(front.where(keys), other.where(keys))
        assert here == there
        assert len(set(here)) == 4


@pytest.mark.parametrize(
    "request_of",
    [
        lambda key: {"headers": {"x-session-id": key}},
        lambda key: {"prompt_cache_key": key},
        lambda key: {"user": key},
        lambda key: {"headers": {"x-session-id": key}, "user": "everybody"},
        lambda key: {"prompt_cache_key": key, "user": "everybody"},
    ],
    ids=["header", "prompt_cache_key", "user", "header_first", "prompt_cache_key_first"],
)
async def test_the_session_key_is_the_first_source_that_is_present(
    control_plane: ControlPlane, front: Front, request_of: object
) -> None:
    async with Replica("a-0") as a0, Replica("a-1") as a1, Replica("b-0") as b0:
        await control_plane.publish(Pool({"a": [a0, a1], "b": [b0]}).table())
        expected = await front.where(KEYS[:12])
        found = [await front.chat(**request_of(key)) for key in KEYS[:12]]
        assert [f"{each.headers['x-headrace-engine']}/{each.served_by}" for each in found] == expected


async def test_a_session_key_may_be_a_nested_field(control_plane: ControlPlane, front: Front) -> None:
    async with Replica("a-0") as a0, Replica("a-1") as a1:
        table = Pool({"a": [a0, a1]}).table()
        nested = replace(table.models[0], session_keys=("body:metadata:conversation",))
        await control_plane.publish(replace(table, models=(nested, *table.models[1:])))
        # The field is read by the listener, and a connection stays with the listener it came by.
        async with aiohttp.ClientSession() as http:
            fresh = Front(front.envoy, http)
            chosen = [
                {(await fresh.chat(metadata={"conversation": key})).served_by for _ in range(4)}
                for key in KEYS[:10]
            ]
        assert all(len(each) == 1 for each in chosen)
        assert len(set.union(*chosen)) == 2


async def test_without_a_session_key_requests_spread(control_plane: ControlPlane, front: Front) -> None:
    async with Replica("a-0") as a0, Replica("b-0") as b0:
        await control_plane.publish(Pool({"a": [a0], "b": [b0]}).table())
        served = Counter([(await front.chat(user="")).served_by for _ in range(60)])
        assert min(served["a-0"], served["b-0"]) >= 10


async def test_a_share_change_of_a_tenth_moves_a_tenth_of_the_sessions(
    control_plane: ControlPlane, front: Front
) -> None:
    async with Replica("a-0") as a, Replica("b-0") as b, Replica("c-0") as c:
        pool = Pool({"a": [a], "b": [b], "c": [c]})
        before = Partition.fresh({"a": 0.4, "b": 0.3, "c": 0.3})
        after = before.relabel({"a": 0.3, "b": 0.3, "c": 0.4})
        assert sum(after.units.values()) == TOTAL_WEIGHT
        await control_plane.publish(pool.table(pool.split(entries=before.entries)))
        here = await front.where(KEYS)
        await control_plane.publish(pool.table(pool.split(entries=after.entries)))
        there = await front.where(KEYS)
        changed = Counter((old, new) for old, new in zip(here, there, strict=True) if old != new)
        assert set(changed) == {("a/a-0", "c/c-0")}
        # Exactly a tenth of the hash space; these keys sample it.
        assert 0.10 <= changed.total() / len(KEYS) <= 0.11


async def test_a_replica_that_comes_back_at_another_address_gets_its_sessions_back(
    control_plane: ControlPlane, front: Front
) -> None:
    keys = KEYS[:300]
    async with Replica("a-0") as a0, Replica("a-1") as a1:
        await control_plane.publish(Pool({"a": [a0, a1]}).table())
        before = await front.where(keys)
        async with Replica("a-1") as elsewhere:
            await control_plane.publish(Pool({"a": [a0, elsewhere]}).table())
            assert await front.where(keys) == before
            assert elsewhere.received


async def test_a_burst_at_once_is_divided_as_the_shares_say(
    control_plane: ControlPlane, front: Front
) -> None:
    async with Replica("a-0") as a, Replica("b-0") as b:
        arrived = asyncio.Event()

        async def together(request: object, out: asyncio.StreamWriter) -> None:
            if len(a.received) + len(b.received) == 400:
                arrived.set()
            await arrived.wait()
            await a.answer_json(request, out)

        a.answer = b.answer = together
        pool = Pool({"a": [a], "b": [b]})
        entries = (("a", TOTAL_WEIGHT * 7 // 10), ("b", TOTAL_WEIGHT - TOTAL_WEIGHT * 7 // 10))
        await control_plane.publish(pool.table(pool.split(entries=entries)))
        await front.where(KEYS[:400], connections=400)
        # No answer came before the last request had arrived. These keys sample the hash space.
        assert 0.65 <= len(a.received) / 400 <= 0.75


async def test_a_weight_alone_moves_sessions_within_an_engine(
    control_plane: ControlPlane, front: Front
) -> None:
    keys = KEYS[:300]
    async with Replica("a-0") as a0, Replica("a-1") as a1:
        even = [Endpoint(each.name, "127.0.0.1", each.port, weight=100) for each in (a0, a1)]
        await control_plane.publish(Pool({"a": even}).table())
        before = await front.where(keys)
        lighter = [even[0], replace(even[1], weight=5)]
        await control_plane.publish(Pool({"a": lighter}).table())
        after = await front.where(keys)
    assert 0.35 <= before.count("a/a-1") / 300 <= 0.65
    assert after.count("a/a-1") / 300 <= 0.15
    moved = {(old, new) for old, new in zip(before, after, strict=True) if old != new}
    assert moved == {("a/a-1", "a/a-0")}
