"""From nothing to the last acknowledgement, then planning rounds.

    python -m benchmarks.xds.cold_start --frontends 100 --engines 200 --classes 3

One client a front-end. CPU seconds of the server's process, by stage; with `--profile`, where they go.
Bounds: the last acknowledgement within 5 s of the first client, the time between two planning rounds; rounds
use a quarter of a core at most. Then serving four of the clients beside `naive`, which encodes for each
client. Exits with 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.xds import fleet, peers
from benchmarks.xds.harness import Bench, Bounds, report, rss_mb
from xds_server.translate import Translator

_EVERY_S = 5.0
_FEW = 4


async def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frontends", type=int, default=100)
    parser.add_argument("--engines", type=int, default=200)
    parser.add_argument("--classes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    asked = parser.parse_args()
    profile = cProfile.Profile() if asked.profile else None
    if profile:
        profile.enable()
    bounds = Bounds()
    await run(asked, bounds)
    if profile:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    if asked.peers:
        await beside_naive(asked, bounds)
    bounds.conclude()


async def run(asked: argparse.Namespace, bounds: Bounds) -> None:
    """Cold start, then rounds that move a share at every front-end."""
    stages: dict[str, str] = {}
    table = fleet.table(asked.frontends, asked.engines, asked.classes)
    translator = Translator()
    async with Bench() as bench:
        with stage("translate", stages):
            snapshots = {name: translator.translate(table, name) for name in table.frontends}
        with stage("publish", stages):
            problems = bench.server.publish_all(snapshots)
        assert not problems
        began = time.monotonic()
        with stage("serve", stages):
            ready = await bench.start_clients(asked.frontends, asked.frontends, watch="rds")
            await bench.counts.acked.until(asked.frontends * 5)
        wall = bounds.at_most("cold start", time.monotonic() - began, _EVERY_S, ".1f")
        megabytes = f"{ready['size'] / 1e6:.0f}"
        report("cold start", **stages, clients_wall_s=wall, mb=megabytes, rss_mb=f"{rss_mb():.0f}")
        for turn in range(1, asked.rounds + 1):
            await planning_round(bench, translator, asked, turn, bounds)


async def planning_round(
    bench: Bench, translator: Translator, asked: argparse.Namespace, turn: int, bounds: Bounds
) -> None:
    """One round as the control plane does it: translate, publish, until the last acknowledgement."""
    stages: dict[str, str] = {}
    table = fleet.table(asked.frontends, asked.engines, asked.classes, turn)
    goal = bench.counts.acked.value + asked.frontends
    with stage("total", stages):
        with stage("translate", stages):
            snapshots = {name: translator.translate(table, name) for name in table.frontends}
        with stage("publish", stages):
            bench.server.publish_all(snapshots)
        await bench.counts.acked.until(goal)
    share = float(stages["total_cpu_s"]) / _EVERY_S * 100
    percent = bounds.at_most("planning round", share, 25)
    nacked = bounds.at_most("refusals", bench.counts.nacked, 0)
    report("planning round", **stages, percent_of_a_core_every_5_s=percent, nacked=nacked)


async def beside_naive(asked: argparse.Namespace, bounds: Bounds) -> None:
    """CPU of serving a few clients, ours and then naive: the answers of one front-end, over real streams."""
    snapshot = Translator().translate(fleet.table(1, asked.engines, asked.classes), "frontend-0")
    stages: dict[str, str] = {}
    async with Bench() as bench:
        bench.server.publish("frontend-0", snapshot)
        with stage("headrace", stages):
            await bench.start_clients(_FEW, 1)
            await bench.counts.acked.until(_FEW * 5)
    async with Bench(services=peers.naive(snapshot)) as bench:
        with stage("naive", stages):
            await bench.start_clients(_FEW, 1)
    ratio = float(stages["naive_cpu_s"]) / max(float(stages["headrace_cpu_s"]), 0.01)
    times_less = bounds.at_least("beside naive", ratio, 10)
    report(f"serving {_FEW} clients", **stages, times_less=times_less)


@contextmanager
def stage(name: str, into: dict[str, str]) -> Iterator[None]:
    """Note the CPU seconds of a part."""
    began = time.process_time()
    yield
    into[f"{name}_cpu_s"] = f"{time.process_time() - began:.2f}"


if __name__ == "__main__":
    asyncio.run(main())
