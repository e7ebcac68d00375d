"""One engine's endpoints change: until the last of N delta streams has it.

    python -m benchmarks.xds.fanout --clients 1000
    python -m benchmarks.xds.fanout --clients 100 --peer naive

Bounds: 200 ms p99 to the last byte, 5 ms of encoding, 100 KB a stream. `--peer bare` is what grpc.aio itself
costs for the same bytes, `--peer naive` a server that encodes for each client.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import Callable, Sequence

from benchmarks.xds import fleet, peers
from benchmarks.xds.harness import Bench, Counter, quantile, report, rss_mb
from headrace.control_plane.collector import settle
from xds_server.resource_types import RDS
from xds_server.resources import Resource
from xds_server.translate import Translator


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--frontends", type=int, default=10)
    parser.add_argument("--engines", type=int, default=20)
    parser.add_argument("--classes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--peer", choices=["bare", "naive"])
    return parser.parse_args()


async def ours(asked: argparse.Namespace) -> None:
    """Headrace's server."""
    table = fleet.table(asked.frontends, asked.engines, asked.classes)
    async with Bench() as bench:
        for name in table.frontends:
            bench.server.publish(name, Translator().translate(table, name))
        gc.collect()
        before = rss_mb()
        ready = await bench.start_clients(asked.clients, asked.frontends)
        await bench.counts.acked.until(asked.clients * 5)
        gc.collect()
        kilobytes = (rss_mb() - before) * 1024 / asked.clients
        settle()  # as `headrace serve` does now and then
        report("streams", count=asked.clients, kb_each=f"{kilobytes:.0f}", mb=f"{ready['size'] / 1e6:.0f}")

        def push(changed: Sequence[Resource]) -> None:
            for name in table.frontends:
                snapshot = bench.server.snapshot(name)
                assert snapshot
                bench.server.publish(name, snapshot.with_resources(*changed))

        await rounds(bench, push, bench.counts.acked, asked)
        await one_frontend(bench, asked)


async def other(asked: argparse.Namespace) -> None:
    """A peer."""
    table = fleet.table(1, asked.engines, asked.classes)
    snapshot = Translator().translate(table, "frontend-0")
    peer = getattr(peers, asked.peer)(snapshot)
    async with Bench(services=peer) as bench:
        await bench.start_clients(asked.clients, asked.frontends)
        settle()
        await rounds(bench, peer.push, peer.confirmed, asked)


async def rounds(
    bench: Bench,
    push: Callable[[Sequence[Resource]], None],
    confirmed: Counter,
    asked: argparse.Namespace,
) -> None:
    """Each round changes the penalties of one engine, for all classes, at all front-ends."""
    waits, encoded, cpu = [], [], []
    for turn in range(asked.rounds):
        goal = confirmed.value + asked.clients
        used, began = time.process_time(), time.monotonic()
        changed = fleet.assignments(turn % asked.engines, asked.classes, 101 + turn)
        encoded.append((time.process_time() - used) * 1e3)
        push(changed)
        last = await bench.line()
        waits.append((last["at"] - began) * 1e3)
        await confirmed.until(goal)
        cpu.append((time.process_time() - used) * 1e3)
    report(
        f"{asked.peer or 'headrace'}: endpoint change to the last of {asked.clients} streams",
        p50_ms=f"{quantile(waits, 0.5):.0f}",
        p99_ms=f"{quantile(waits, 0.99):.0f}",
        encode_cpu_ms=f"{quantile(encoded, 0.5):.1f}",
        server_cpu_ms=f"{quantile(cpu, 0.5):.0f}",
    )


async def one_frontend(bench: Bench, asked: argparse.Namespace) -> None:
    """A share change of one front-end touches its own streams only."""
    before, name = bench.counts.sent, "frontend-0"
    moved = Translator().translate(fleet.table(asked.frontends, asked.engines, asked.classes, turn=1), name)
    snapshot = bench.server.snapshot(name)
    assert snapshot
    goal = bench.counts.acked.value + asked.clients // asked.frontends
    bench.server.publish(name, snapshot.with_resources(*moved.of_type(RDS.url).values()))
    await bench.counts.acked.until(goal)
    report("share change of one front-end", streams_touched=bench.counts.sent - before, streams=asked.clients)


if __name__ == "__main__":
    chosen = options()
    asyncio.run(other(chosen) if chosen.peer else ours(chosen))
