"""Ten thousand real reconnects: nothing grows in the server.

    python -m benchmarks.xds.reconnects --reconnects 10000

Clients in another process dial anew for every stream and leave in four ways: cancelled once all is
acknowledged, cancelled while the response is under way, half-closed, and with the connection closed under an
open stream. Tasks, streams and clients in the server must be what they were after a warm-up of a fifth, and
resident memory may have grown by half a kilobyte a reconnect. Beside it `bare`: what grpc.aio itself loses,
the arrays of batches that are cancelled or fail (grpc#43360) among it. Exits with 1 when something grows.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time

from benchmarks.xds import fleet, peers
from benchmarks.xds.harness import Bench, Bounds, report, rss_mb
from xds_server.protocol.client import Client
from xds_server.translate import Translator

GROWTH_KB = 0.5


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reconnects", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=20)
    parser.add_argument("--engines", type=int, default=20)
    parser.add_argument("--peer", choices=["bare"], help="run only this one")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


async def main(asked: argparse.Namespace) -> None:
    """Run one server, ours or the peer."""
    bounds, name = Bounds(), "frontend-0"
    snapshot = Translator().translate(fleet.table(1, asked.engines, 3), name)
    async with Bench(services=peers.bare(snapshot) if asked.peer else None) as bench:
        bench.server.publish(name, snapshot)
        await reconnect(bench, asked, bounds)
    if asked.peer:
        return
    if asked.peers:
        await beside_bare(asked)
    bounds.conclude()


async def reconnect(bench: Bench, asked: argparse.Namespace, bounds: Bounds) -> None:
    """Warm up, look, go on and look again."""
    warm_up = asked.reconnects // 5
    counts = ("--warm-up", str(warm_up), "--reconnects", str(asked.reconnects))
    began, used = time.monotonic(), time.process_time()
    await bench.start("benchmarks.xds.reconnecting", *counts, "--at-once", str(asked.at_once))
    before, who = await settled(bench), asked.peer or "headrace"
    report(f"{who}: after {warm_up} reconnects", **before)
    bench.go_on()
    await bench.line()
    after = await settled(bench)
    report(f"{who}: {asked.reconnects} later", **judged(bounds, before, after, asked.reconnects))
    spent = {"wall_s": time.monotonic() - began, "cpu_s": time.process_time() - used}
    report(f"{who}: it took", **{what: f"{seconds:.0f}" for what, seconds in spent.items()})


async def beside_bare(asked: argparse.Namespace) -> None:
    """The peer, in a process of its own: memory that ours has freed would hide what it loses."""
    options = ("--peer", "bare", "--reconnects", str(asked.reconnects), "--at-once", str(asked.at_once))
    module = ("-W", "ignore", "-m", "benchmarks.xds.reconnects")
    process = await asyncio.create_subprocess_exec(sys.executable, *module, *options)
    await process.wait()


async def settled(bench: Bench) -> dict[str, float]:
    """What is in the server once the clients have left; what ends after half a second counts as left over."""
    await asyncio.sleep(0.5)
    gc.collect()
    return {
        "tasks": len(asyncio.all_tasks()),
        "streams": len(bench.server.connections()),
        "clients": sum(isinstance(thing, Client) for thing in gc.get_objects()),
        "rss_mb": round(rss_mb(), 1),
    }


def judged(
    bounds: Bounds, before: dict[str, float], after: dict[str, float], reconnects: int
) -> dict[str, str]:
    """Each figure beside what it was."""
    found = {
        name: bounds.at_most(name, after[name], before[name]) for name in ("tasks", "streams", "clients")
    }
    most = before["rss_mb"] + GROWTH_KB * reconnects / 1024
    grown = (after["rss_mb"] - before["rss_mb"]) * 1024 / reconnects
    return {
        **found,
        "rss_mb": bounds.at_most("rss_mb", after["rss_mb"], round(most, 1), ".1f"),
        "kb_a_reconnect": f"{grown:.2f}",
    }


if __name__ == "__main__":
    asyncio.run(main(options()))
