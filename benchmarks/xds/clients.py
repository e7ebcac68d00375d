"""Many delta ADS clients in a process of their own, speaking as Envoy does at its start and afterwards.

Prints one JSON line when all are current (`ready`) and one whenever the last of the clients has received
another response of the watched type (times are CLOCK_MONOTONIC, which all processes share).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator

from envoy_data_plane.envoy.config.core.v3 import Node
from envoy_data_plane.envoy.service.discovery.v3 import DeltaDiscoveryRequest
from envoy_data_plane.google.protobuf import Struct, Value
from grpc import aio

from xds_server.resource_types import BY_URL, CDS, EDS, LDS, RDS, RTDS
from xds_server.services import AGGREGATED
from xds_server.translate import names

METHOD = f"/{AGGREGATED}/DeltaAggregatedResources"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
STREAMS_PER_CONNECTION = 50


class Tally:
    """Counts receipts of one type; tells when every client has one more."""

    def __init__(self, clients: int, watched: str) -> None:
        self.clients = clients
        self.watched = watched
        self.ready = 0
        self.got = 0
        self.size = 0

    def current(self) -> None:
        """One more client has everything."""
        self.ready += 1
        if self.ready == self.clients:
            self.got = 0
            say(ready=True, at=time.monotonic(), cpu_s=time.process_time(), size=self.size)

    def received(self, type_name: str, size: int) -> None:
        """A response arrived."""
        self.size += size
        if type_name != self.watched or self.ready < self.clients:
            return
        self.got += 1
        if self.got % self.clients == 0:
            say(round=self.got // self.clients, at=time.monotonic())


def say(**fields: object) -> None:
    """One line to the parent."""
    print(json.dumps(fields), flush=True)


async def client(channel: aio.Channel, name: str, frontend: str, tally: Tally) -> None:
    """CDS, then EDS of its clusters, then LDS, RDS and RTDS; confirms whatever comes."""
    call = channel.stream_stream(METHOD)()
    fleet = Struct(fields={"fleet": Value(string_value="bench")})
    node = Node(id=name, cluster=frontend, metadata=fleet)
    missing: set[str] | None = None
    await call.write(bytes(request(CDS.url, ["*"], node=node)))
    while (body := await call.read()) is not aio.EOF:
        type_url, nonce, found = read(body, missing is None)
        tally.received(BY_URL[type_url].name, len(body))
        await call.write(confirmation(type_url, nonce))
        if missing is None:
            assigned = [
                cluster for cluster in found if cluster.count("/") == 1 or cluster.startswith("shed/")
            ]
            following = {
                EDS.url: assigned,
                LDS.url: ["*"],
                RDS.url: [names.ROUTES],
                RTDS.url: [names.RUNTIME_LAYER],
            }
            for url, each in following.items():
                await call.write(bytes(request(url, each)))
            missing = set(following)
        elif missing:
            missing.discard(type_url)
            if not missing:
                tally.current()


def request(
    type_url: str, wanted: list[str], nonce: str = "", node: Node | None = None
) -> DeltaDiscoveryRequest:
    """A delta request."""
    return DeltaDiscoveryRequest(
        type_url=type_url, resource_names_subscribe=wanted, response_nonce=nonce, node=node
    )


def confirmation(type_url: str, nonce: str) -> bytes:
    """An ACK, by hand: the two strings are short, and the cost of a client is not what is measured."""
    return b"".join(
        (b"\x12", bytes((len(type_url),)), type_url.encode(), b"\x32", bytes((len(nonce),)), nonce.encode())
    )


def read(body: bytes, names_too: bool) -> tuple[str, str, list[str]]:
    """Type, nonce and, on demand, names of a response, without decoding what is inside the resources."""
    type_url, nonce, found = "", "", []
    for number, value in fields(body):
        if number == 2 and names_too:
            found += [inner.decode() for key, inner in fields(value) if key == 3]
        elif number == 4:
            type_url = value.decode()
        elif number == 5:
            nonce = value.decode()
    return type_url, nonce, found


def fields(body: bytes) -> Iterator[tuple[int, bytes]]:
    """The length-delimited fields of a message."""
    at = 0
    while at < len(body):
        tag, at = varint(body, at)
        size, at = varint(body, at)
        yield tag >> 3, body[at : at + size]
        at += size


def varint(body: bytes, at: int) -> tuple[int, int]:
    """A varint and where it ends."""
    value = shift = 0
    while True:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


async def main() -> None:
    """Open the streams and stay until stdin closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--frontends", type=int, required=True)
    parser.add_argument("--watch", default="eds")
    options = parser.parse_args()
    tally = Tally(options.clients, options.watch)
    channels = [
        aio.insecure_channel(options.address, options=OPTIONS)
        for _ in range(-(-options.clients // STREAMS_PER_CONNECTION))
    ]
    tasks = [
        asyncio.create_task(
            client(
                channels[number // STREAMS_PER_CONNECTION],
                f"envoy-{number}",
                f"frontend-{number % options.frontends}",
                tally,
            )
        )
        for number in range(options.clients)
    ]
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for channel in channels:
        await channel.close()


if __name__ == "__main__":
    asyncio.run(main())
