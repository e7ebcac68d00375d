"""An Envoy at its own limits: it refuses what is new and goes on with what it has."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import aiohttp
import pytest

from headrace.policy.schema import Overload
from tests.envoy.harness import MODEL, ControlPlane, Front, Pool
from tests.envoy.replica import Replica

pytestmark = pytest.mark.asyncio(loop_scope="session")

CONNECTIONS = 3


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The status line of a health request on an open connection; nothing when Envoy closes it instead."""
    try:
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        return (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[0]
    except (ConnectionError, asyncio.IncompleteReadError):
        return b""


async def test_one_connection_more_than_may_be_open_is_closed_and_the_open_ones_are_served() -> None:
    async with ControlPlane() as control_plane, AsyncExitStack() as open_ones:
        control_plane.push(Pool({"none": []}).table())
        envoy = await control_plane.start_envoy("small", Overload(max_connections=CONNECTIONS))

        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", envoy.ports["public"])
            open_ones.callback(writer.close)
            return reader, writer

        held = [await connect() for _ in range(CONNECTIONS)]
        assert [await answered(*each) for each in held] == [b"HTTP/1.1 200 OK"] * CONNECTIONS
        async with asyncio.timeout(10):
            assert await answered(*await connect()) == b""
        assert [await answered(*each) for each in held] == [b"HTTP/1.1 200 OK"] * CONNECTIONS
        overflow = await envoy.counters("downstream_global_cx_overflow")
        assert sum(overflow.values()) == 1
        held.pop()[1].close()
        async with asyncio.timeout(10):
            while await answered(*await connect()) != b"HTTP/1.1 200 OK":
                pass


async def test_beyond_its_heap_an_envoy_refuses_requests_with_503(http: aiohttp.ClientSession) -> None:
    async with ControlPlane() as control_plane, Replica("home-0") as home:
        control_plane.push(Pool({"home": [home]}).table())
        # Less than any Envoy needs, which no policy accepts.
        envoy = await control_plane.start_envoy("full", Overload.model_construct(max_heap_mib=1))
        front = Front(envoy, http)
        async with asyncio.timeout(10):
            while (answer := await front.chat(model=MODEL)).status == 200:
                pass
        assert (answer.status, answer.reason) == (503, "proxy_overloaded")
        assert answer.headers["retry-after"]
