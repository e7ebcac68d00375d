"""Thousands of snapshots in a row: memory stays flat and each client ends on the last.

    python -m benchmarks.xds.many_snapshots --snapshots 4000

Flat: 1 MB more at most after the last quarter than after the first. Beside it what a push of each snapshot to
each client would have sent. Exits with 1 when memory grows or a client is not on the last.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time

from benchmarks.xds import fleet
from benchmarks.xds.harness import Bench, Bounds, report, rss_mb
from xds_server.resource_types import RDS
from xds_server.translate import Translator, names


async def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--snapshots", type=int, default=4000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--engines", type=int, default=20)
    asked = parser.parse_args()
    translator, name, bounds = Translator(), "frontend-0", Bounds()
    async with Bench() as bench:
        bench.server.publish(name, translator.translate(fleet.table(1, asked.engines, 3), name))
        await bench.start_clients(asked.clients, 1, watch="rds")
        sizes, used = [], time.process_time()
        for turn in range(1, asked.snapshots + 1):
            snapshot = translator.translate(fleet.table(1, asked.engines, 3, turn), name)
            bench.server.publish(name, snapshot)
            await asyncio.sleep(0)
            if turn % (asked.snapshots // 4) == 0:
                gc.collect()
                sizes.append(rss_mb())
        last = snapshot.of_type(RDS.url)[names.ROUTES]
        async with asyncio.timeout(60):
            while not bench.server.all_acked(name, last):  # noqa: ASYNC110 - asked from outside
                await asyncio.sleep(0.01)
        cpu = (time.process_time() - used) / asked.snapshots * 1e3
        acked = bench.server.acked_versions(name, RDS, names.ROUTES).values()
        on_the_last = sum(version == last.version for version in acked)
        pushes = asked.snapshots * asked.clients
        report(
            f"{asked.snapshots} snapshots to {asked.clients} clients",
            rss_mb_at_each_quarter="/".join(f"{size:.1f}" for size in sizes),
            growth_mb=bounds.at_most("growth", sizes[-1] - sizes[0], 1, ".1f"),
            on_the_last=bounds.at_least("clients on the last", on_the_last, asked.clients),
            responses=bounds.at_most("responses", bench.counts.sent, pushes),
            cpu_ms_each=f"{cpu:.1f}",
        )
    bounds.conclude()


if __name__ == "__main__":
    asyncio.run(main())
