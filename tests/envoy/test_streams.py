"""Streamed answers pass as they come, and outlive every change that stops new requests."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import aiohttp
import pytest

from tests.envoy.harness import MODEL, ControlPlane, Front, Pool
from tests.envoy.replica import Received, Replica, chunk, head
from xds_server.routing import Health

pytestmark = pytest.mark.asyncio(loop_scope="session")

EVENTS = [
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
    b'data:{"choices":[{"delta":{"content":"no space after the colon"}}]}\n\n',
    b": a comment\r\n\r\n",
    'data: {"choices":[{"delta":{"content":"é😀"}}]}\n\n'.encode(),
    b'data: {"choices":[{"delta":{"content":"cut in ',
    b'two"}}]}\n\n',
    b"data: " + b"x" * 20_000 + b"\n\n",
    b'data: {"choices":[],"usage":{"total_tokens":3}}\n\n',
    b"data: [DONE]\n\n",
]
SSE = (("content-type", "text/event-stream; charset=utf-8"), ("transfer-encoding", "chunked"))


class Script:
    """Streams one event whenever the test says so."""

    def __init__(self, events: list[bytes]) -> None:
        self.events = events
        self.permits = asyncio.Semaphore(0)
        self.started = asyncio.Event()

    async def answer(self, request: Received, out: asyncio.StreamWriter) -> None:
        out.write(head(200, *SSE))
        await out.drain()
        self.started.set()
        for event in self.events:
            await self.permits.acquire()
            out.write(chunk(event))
            await out.drain()
        out.write(chunk(b""))


def stream(front: Front) -> aiohttp.client._RequestContextManager:
    return front.http.post(front.url(), json={"model": MODEL, "stream": True})


async def test_events_pass_one_by_one_and_unchanged(front: Front, replica: Replica) -> None:
    script = Script(EVENTS)
    replica.answer = script.answer
    async with stream(front) as answer:
        # The answer's head is here although the engine has sent no event yet.
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert "content-length" not in answer.headers
        for event in EVENTS:
            script.permits.release()
            assert await answer.content.readexactly(len(event)) == event
        assert await answer.read() == b""


async def test_a_running_stream_survives_what_stops_new_requests(
    control_plane: ControlPlane, front: Front
) -> None:
    script = Script(EVENTS)
    async with Replica("old") as old, Replica("new") as new:
        old.answer = script.answer
        both = {"home": [old], "away": [new]}
        only_old = Pool(both).split(entries=(("home", 1 << 20),), fallback={"home": "away"})
        only_new = replace(only_old, entries=(("away", 1 << 20),), fallback={})
        await control_plane.publish(Pool(both).table(only_old))
        endpoint = Pool(both).endpoints()["home"][0]
        async with stream(front) as answer:
            assert answer.headers["x-headrace-replica"] == "old"
            for table in (
                Pool({**both, "home": [replace(endpoint, health=Health.DRAINING)]}).table(only_old),
                Pool({**both, "home": [replace(endpoint, health=Health.UNHEALTHY)]}).table(only_old),
                Pool({**both, "home": []}).table(only_old),
                Pool({"away": [new]}).table(only_new),
            ):
                await control_plane.publish(table)
                assert (await front.chat()).served_by == "new"
                script.permits.release()
            for _ in EVENTS:
                script.permits.release()
            assert await answer.read() == b"".join(EVENTS)


async def test_an_engine_that_dies_in_a_stream_ends_it_with_an_error(front: Front, replica: Replica) -> None:
    async def broken(request: Received, out: asyncio.StreamWriter) -> None:
        out.write(head(200, *SSE) + chunk(EVENTS[0]))
        await out.drain()
        out.transport.abort()

    replica.answer = broken
    async with stream(front) as answer:
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
    assert len(replica.received) == 1, "what has begun to be answered is never tried again"


async def test_a_stream_that_pauses_too_long_is_cut_and_a_whole_answer_may_take_its_time(
    control_plane: ControlPlane, front: Front
) -> None:
    async with Replica("slow", answer_after_s=0.6) as replica:
        table = Pool({"home": [replica]}).table()
        models = tuple(replace(model, stream_idle_s=0.2, longest_generation_s=30) for model in table.models)
        await control_plane.publish(replace(table, models=models))
        assert (await front.chat()).status == 200
        replica.answer = Script(EVENTS).answer
        async with stream(front) as answer:
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()


async def test_the_longest_generation_is_the_limit_of_every_answer(
    control_plane: ControlPlane, front: Front
) -> None:
    async with Replica("endless") as replica:
        replica.answer = replica.never
        table = Pool({"home": [replica]}).table()
        models = tuple(replace(model, longest_generation_s=0.3) for model in table.models)
        await control_plane.publish(replace(table, models=models))
        answer = await front.chat()
        assert answer.status == 504
        assert answer.reason == "timeout"


async def test_a_client_that_leaves_frees_the_engine(front: Front, replica: Replica) -> None:
    gone = asyncio.Event()

    async def until_gone(request: Received, out: asyncio.StreamWriter) -> None:
        out.write(head(200, *SSE))
        try:
            while True:
                out.write(chunk(EVENTS[0]))
                await out.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            gone.set()

    replica.answer = until_gone
    async with stream(front) as answer:
        await answer.content.readexactly(len(EVENTS[0]))
        answer.close()
    async with asyncio.timeout(10):
        await gone.wait()
