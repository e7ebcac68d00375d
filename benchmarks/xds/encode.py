"""What one client costs in bytes work alone, without a network: ours beside betterproto2 for each client.

    python -m benchmarks.xds.encode

CPU milliseconds, best of five: reading an Envoy's first request and the one that names its endpoints, and
building the first answers of clusters and of endpoints. Each must be ten times less work at least: exits with
1 when one is not.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from functools import partial

from envoy_data_plane.envoy.config.core.v3 import Extension, Node
from envoy_data_plane.envoy.service.discovery.v3 import DeltaDiscoveryRequest

from benchmarks.xds import fleet, peers
from benchmarks.xds.harness import Bounds, report
from xds_server.protocol.wire import Response, decode_delta, encode_delta
from xds_server.resource_types import CDS, EDS, ResourceType
from xds_server.resources import Resource
from xds_server.translate import Translator


def best_ms(work: Callable[[], object], times: int = 5) -> float:
    """CPU milliseconds of the best of a few runs."""
    found = []
    for _ in range(times):
        began = time.process_time()
        work()
        found.append((time.process_time() - began) * 1e3)
    return min(found)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=200)
    parser.add_argument("--classes", type=int, default=3)
    asked = parser.parse_args()
    bounds = Bounds()
    snapshot = Translator().translate(fleet.table(1, asked.engines, asked.classes), "frontend-0")
    naive = peers.naive(snapshot)
    extensions = [
        Extension(name=f"envoy.filters.http.extension_{number}", type_urls=["type.example/Config"] * 2)
        for number in range(500)
    ]
    first = bytes(DeltaDiscoveryRequest(type_url=CDS.url, node=Node(id="n", extensions=extensions)))
    subscribe = list(snapshot.of_type(EDS.url))
    second = bytes(DeltaDiscoveryRequest(type_url=EDS.url, resource_names_subscribe=subscribe))
    for what, body in ("first request", first), ("endpoint request", second):
        read = f"read {what} of {len(body)} bytes"
        compare(read, partial(decode_delta, body), partial(naive.decode, body), bounds)
    for type_ in CDS, EDS:
        answer(snapshot.of_type(type_.url), type_, naive, bounds)
    bounds.conclude()


def answer(resources: Mapping[str, Resource], type_: ResourceType, naive: peers.Peer, bounds: Bounds) -> None:
    """Build the first answer of a type."""
    found = tuple(resources.values())
    response = Response(type_.url, "1", "1", found)
    size = len(encode_delta(response))
    compare(
        f"build {type_.name} answer of {size} bytes",
        lambda: encode_delta(response),
        lambda: naive.encode(type_.url, found),
        bounds,
    )


def compare(what: str, ours: Callable[[], object], other: Callable[[], object], bounds: Bounds) -> None:
    """One line."""
    ours_ms, other_ms = best_ms(ours), best_ms(other, 2)
    ratio = bounds.at_least(what, other_ms / ours_ms, 10)
    report(what, headrace_ms=f"{ours_ms:.3f}", naive_ms=f"{other_ms:.1f}", ratio=ratio)


if __name__ == "__main__":
    main()
