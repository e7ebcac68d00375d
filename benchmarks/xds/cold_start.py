"""From nothing to the last acknowledgement, then planning rounds.

    python -m benchmarks.xds.cold_start --frontends 100 --engines 200 --classes 3

One client a front-end. CPU seconds of the server's process, by stage; with `--profile`, where they go.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.xds import fleet
from benchmarks.xds.harness import Bench, report, rss_mb
from xds_server.translate import Translator


async def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frontends", type=int, default=100)
    parser.add_argument("--engines", type=int, default=200)
    parser.add_argument("--classes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    profile = cProfile.Profile() if asked.profile else None
    if profile:
        profile.enable()
    await run(asked)
    if profile:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


async def run(asked: argparse.Namespace) -> None:
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
        wall = f"{time.monotonic() - began:.1f}"
        megabytes = f"{ready['size'] / 1e6:.0f}"
        report("cold start", **stages, clients_wall_s=wall, mb=megabytes, rss_mb=f"{rss_mb():.0f}")
        for turn in range(1, asked.rounds + 1):
            await planning_round(bench, translator, asked, turn)


async def planning_round(bench: Bench, translator: Translator, asked: argparse.Namespace, turn: int) -> None:
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
    share = float(stages["total_cpu_s"]) / 5
    report("planning round", **stages, of_one_core_every_5_s=f"{share:.0%}", nacked=bench.counts.nacked)


@contextmanager
def stage(name: str, into: dict[str, str]) -> Iterator[None]:
    """Note the CPU seconds of a part."""
    began = time.process_time()
    yield
    into[f"{name}_cpu_s"] = f"{time.process_time() - began:.2f}"


if __name__ == "__main__":
    asyncio.run(main())
