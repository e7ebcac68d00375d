"""Two servers to stand beside: the least that grpc.aio can do, and the obvious way to write one in Python.

Both answer the delta clients of `clients` and nobody else: no acknowledgements, no versions, no order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import grpc
from betterproto2 import Message
from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment
from envoy_data_plane.envoy.config.listener.v3 import Listener
from envoy_data_plane.envoy.config.route.v3 import RouteConfiguration
from envoy_data_plane.envoy.service.discovery import v3 as discovery
from envoy_data_plane.envoy.service.runtime.v3 import Runtime
from envoy_data_plane.google.protobuf import Any as ProtoAny
from grpc import aio

from benchmarks.xds.harness import Counter
from xds_server.protocol.wire import Response, decode_delta, encode_delta
from xds_server.resource_types import BY_URL
from xds_server.resources import Resource
from xds_server.services import AGGREGATED, Context
from xds_server.snapshot import Snapshot

MESSAGES: dict[str, type[Message]] = {
    "cds": Cluster,
    "eds": ClusterLoadAssignment,
    "lds": Listener,
    "rds": RouteConfiguration,
    "rtds": Runtime,
}
Encode = Callable[[str, Sequence[Resource]], bytes]


class Peer:
    """Sends everything of a type when it is asked for, and what `push` says to everybody."""

    def __init__(self, snapshot: Snapshot, encode: Encode, decode: Callable[[bytes], str]) -> None:
        self._snapshot = snapshot
        self.encode = encode
        self.decode = decode
        self._queues: set[asyncio.Queue[tuple[str, Sequence[Resource]]]] = set()
        self.confirmed = Counter()

    def register(self, server: aio.Server) -> None:
        """Add the aggregated delta service."""
        handlers = {"DeltaAggregatedResources": grpc.stream_stream_rpc_method_handler(self._serve)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(AGGREGATED, handlers),))

    def stop(self) -> None:
        """Streams end with the server."""

    def push(self, resources: Sequence[Resource]) -> None:
        """Send these to every stream."""
        for queue in self._queues:
            queue.put_nowait((resources[0].type_url, resources))

    async def _serve(self, _: object, context: Context) -> None:
        queue: asyncio.Queue[tuple[str, Sequence[Resource]]] = asyncio.Queue()
        self._queues.add(queue)
        writer = asyncio.ensure_future(self._write(queue, context))
        asked: set[str] = set()
        try:
            while (body := await context.read()) is not aio.EOF:
                type_url = self.decode(body)
                if type_url in asked:
                    self.confirmed.add()
                else:
                    asked.add(type_url)
                    queue.put_nowait((type_url, list(self._snapshot.of_type(type_url).values())))
        finally:
            self._queues.discard(queue)
            writer.cancel()

    async def _write(self, queue: asyncio.Queue[tuple[str, Sequence[Resource]]], context: Context) -> None:
        while True:
            await context.write(self.encode(*await queue.get()))


def bare(snapshot: Snapshot) -> Peer:
    """Encodes once for all streams: the cost of grpc.aio itself."""
    last: dict[str, tuple[Sequence[Resource], bytes]] = {}

    def encode(type_url: str, resources: Sequence[Resource]) -> bytes:
        known = last.get(type_url)
        if known is None or list(known[0]) != list(resources):
            known = resources, encode_delta(Response(type_url, "1", "1", tuple(resources)))
            last[type_url] = known
        return known[1]

    return Peer(snapshot, encode, lambda body: decode_delta(body).type_url)


def naive(snapshot: Snapshot) -> Peer:
    """Builds and encodes each stream's response from messages, and decodes requests, with betterproto2."""
    messages = {
        (type_url, name): MESSAGES[BY_URL[type_url].name].parse(resource.body)
        for type_url, resources in snapshot.types.items()
        for name, resource in resources.items()
    }

    def encode(type_url: str, resources: Sequence[Resource]) -> bytes:
        found = [
            discovery.Resource(
                name=resource.name,
                version=resource.version,
                resource=ProtoAny.pack(messages[type_url, resource.name]),
            )
            for resource in resources
        ]
        return bytes(discovery.DeltaDiscoveryResponse(type_url=type_url, nonce="1", resources=found))

    return Peer(snapshot, encode, lambda body: discovery.DeltaDiscoveryRequest.parse(body).type_url)
