"""Clients that dial, ask for all clusters, and leave in one of four ways, over and over.

Prints one JSON line when the warm-up is over, waits for a line on stdin, goes on, and prints another one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from itertools import count, islice
from typing import Any

from envoy_data_plane.envoy.config.core.v3 import Node
from envoy_data_plane.google.protobuf import Struct, Value
from grpc import aio

from benchmarks.xds.clients import METHOD, OPTIONS, confirmation, read, request
from xds_server.resource_types import CDS

Leave = Callable[[Any], Awaitable[None]]


async def take(call: Any) -> None:
    """Read the response and confirm it."""
    type_url, nonce, _ = read(await call.read(), False)
    await call.write(confirmation(type_url, nonce))


async def acknowledged(call: Any) -> None:
    """Cancel once all is acknowledged."""
    await take(call)
    call.cancel()


async def amid_a_write(call: Any) -> None:
    """Cancel while the response is under way."""
    call.cancel()


async def half_closed(call: Any) -> None:
    """Say that nothing more is asked, and read to the end."""
    await take(call)
    await call.done_writing()
    while await call.read() is not aio.EOF:
        pass


async def connection_closed(call: Any) -> None:
    """Leave the stream open: the channel is closed next."""
    await take(call)


WAYS: tuple[Leave, ...] = (acknowledged, amid_a_write, half_closed, connection_closed)


async def reconnect(address: str, number: int) -> None:
    """One connection with one stream."""
    fleet = Struct(fields={"fleet": Value(string_value="bench")})
    node = Node(id=f"envoy-{number % 97}", cluster="frontend-0", metadata=fleet)
    async with aio.insecure_channel(address, options=OPTIONS) as channel:
        call = channel.stream_stream(METHOD)()
        await call.write(bytes(request(CDS.url, ["*"], node=node)))
        await call.initial_metadata()  # so that the server has it
        await WAYS[number % len(WAYS)](call)


async def many(address: str, numbers: Iterator[int], at_once: int) -> None:
    """Reconnect for each of the numbers."""

    async def some() -> None:
        for number in numbers:
            await reconnect(address, number)

    await asyncio.gather(*(some() for _ in range(at_once)))


async def main() -> None:
    """Warm up, wait, go on, and stay until stdin closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    for name in ("--warm-up", "--reconnects", "--at-once"):
        parser.add_argument(name, type=int, required=True)
    asked = parser.parse_args()
    numbers = count()
    for times in (asked.warm_up, asked.reconnects):
        await many(asked.address, islice(numbers, times), asked.at_once)
        print(json.dumps({"reconnects": times}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main())
