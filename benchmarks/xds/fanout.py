"""One engine's endpoints change: until the last of N delta streams has it.

    python -m benchmarks.xds.fanout --clients 1000
    python -m benchmarks.xds.fanout --clients 100 --peer naive    # only a peer, at any size

Bounds: 200 ms p99 to the last byte, 5 ms of encoding, 100 KB a stream. Then the same beside `bare`, what
grpc.aio itself costs for the same bytes, with the same streams; and, since it would take minutes with those,
ours and `naive`, a server that encodes for each client, with 20 streams. Exits with 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import Callable, Sequence

from benchmarks.xds import fleet, peers
from benchmarks.xds.harness import Bench, Bounds, Counter, quantile, report, rss_mb
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
    parser.add_argument("--peer", choices=["bare", "naive"], help="run only this one")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


async def all_of_them(asked: argparse.Namespace) -> Bounds:
    """Ours with its bounds, then the peers."""
    bounds = Bounds()
    ours_ms = await ours(asked, bounds)
    if not asked.peers:
        return bounds
    bare_ms = await other(asked, "bare")
    few = argparse.Namespace(**vars(asked) | {"clients": 20, "frontends": 1, "rounds": 5})
    few_ms, naive_ms = await ours(few, Bounds()), await other(few, "naive")
    report(
        "server CPU of a change",
        of_bare=f"{ours_ms / bare_ms:.1f} times",
        of_naive=bounds.at_most("CPU of naive", few_ms / naive_ms, 0.5, ".2f"),
    )
    return bounds


async def ours(asked: argparse.Namespace, bounds: Bounds) -> float:
    """Headrace's server. Returns the CPU of a change, ms."""
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
        each = bounds.at_most("memory of a stream", kilobytes, 100)
        report("streams", count=asked.clients, kb_each=each, mb=f"{ready['size'] / 1e6:.0f}")

        def push(changed: Sequence[Resource]) -> None:
            for name in table.frontends:
                snapshot = bench.server.snapshot(name)
                assert snapshot
                bench.server.publish(name, snapshot.with_resources(*changed))

        cpu_ms = await rounds(bench, push, bench.counts.acked, asked, "headrace", bounds)
        await one_frontend(bench, asked, bounds)
    return cpu_ms


async def other(asked: argparse.Namespace, name: str) -> float:
    """A peer. Returns the CPU of a change, ms."""
    table = fleet.table(1, asked.engines, asked.classes)
    snapshot = Translator().translate(table, "frontend-0")
    peer = getattr(peers, name)(snapshot)
    async with Bench(services=peer) as bench:
        await bench.start_clients(asked.clients, asked.frontends)
        settle()
        return await rounds(bench, peer.push, peer.confirmed, asked, name, None)


async def rounds(
    bench: Bench,
    push: Callable[[Sequence[Resource]], None],
    confirmed: Counter,
    asked: argparse.Namespace,
    who: str,
    bounds: Bounds | None,
) -> float:
    """Each round changes the penalties of one engine, for all classes, at all front-ends. Returns the CPU
    of one, ms; what it encodes and how long it takes is held against `bounds`."""
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
    p99, encode, each = quantile(waits, 0.99), quantile(encoded, 0.5), quantile(cpu, 0.5)
    report(
        f"{who}: endpoint change to the last of {asked.clients} streams",
        p50_ms=f"{quantile(waits, 0.5):.0f}",
        p99_ms=bounds.at_most("last byte", p99, 200) if bounds else f"{p99:.0f}",
        encode_cpu_ms=bounds.at_most("encoding", encode, 5, ".1f") if bounds else f"{encode:.1f}",
        server_cpu_ms=f"{each:.0f}",
    )
    return each


async def one_frontend(bench: Bench, asked: argparse.Namespace, bounds: Bounds) -> None:
    """A share change of one front-end touches its own streams only."""
    before, name = bench.counts.sent, "frontend-0"
    moved = Translator().translate(fleet.table(asked.frontends, asked.engines, asked.classes, turn=1), name)
    snapshot = bench.server.snapshot(name)
    assert snapshot
    goal = bench.counts.acked.value + asked.clients // asked.frontends
    bench.server.publish(name, snapshot.with_resources(*moved.of_type(RDS.url).values()))
    await bench.counts.acked.until(goal)
    touched = bounds.at_most("streams touched", bench.counts.sent - before, asked.clients // asked.frontends)
    report("share change of one front-end", streams_touched=touched, streams=asked.clients)


if __name__ == "__main__":
    chosen = options()
    if chosen.peer:
        asyncio.run(other(chosen, chosen.peer))
    else:
        asyncio.run(all_of_them(chosen)).conclude()
