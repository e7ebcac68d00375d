"""How long one change takes from membership to published snapshots, for a large fleet.

    .venv/bin/python benchmarks/publish.py [--frontends 20] [--engines 200] [--replicas 8]

Prints the first publication (everything is encoded, and betterproto2 builds its classes, once a process), one
replica draining, one share moving, and nothing changed. The bound beside them is a publication of unchanged
content. The control plane publishes in turns: where every share moves, it prints how long others waited for
theirs at most.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from headrace.control_plane.publisher import Publisher
from headrace.control_plane.served import Served
from headrace.policy import load
from optimizer import Partition
from signals.membership import Membership
from signals.replicas import Announcement, ReplicaKey, ReplicaState, Report
from xds_server.server import XdsServer


def policy_document(frontends: int, engines: int) -> dict[str, Any]:
    """A fleet of one model and three classes, all engines eligible everywhere."""
    places = [f"r{i:03}" for i in range(frontends)]
    return {
        "version": 1,
        "fleet": "bench",
        "regions": {name: {} for name in places},
        "frontends": {name: {"region": name} for name in places},
        "listeners": {"public": {"port": 0, "default_class": "interactive"}},
        "classes": {"interactive": {}, "batch": {}, "bulk": {}},
        "models": {"m": {"served_as": ["acme/model-1.0"]}},
        "profiles": {
            "p": {"t0_ms": 20, "lambda_max_rps": 6, "capacity_rps": 5, "ttft_ms": {"base": 100, "slope": 0}}
        },
        "engines": {
            f"e{i:04}": {"model": "m", "region": places[i % frontends], "profile": "p"}
            for i in range(engines)
        },
        "network": {
            "rtt_ms": {
                a: {b: 10 + abs(i - j) for j, b in enumerate(places) if j > i} for i, a in enumerate(places)
            }
        },
    }


def filled(membership: Membership, engines: int, replicas: int) -> None:
    """Every engine with its replicas, all ready."""
    for engine in range(engines):
        for replica in range(replicas):
            key = ReplicaKey(f"e{engine:04}", "", f"r{replica}")
            hello = Announcement(key, 1, f"10.{engine // 250}.{engine % 250}.{replica + 1}", 8000)
            membership.join(hello, Report(1, 60.0, ReplicaState.READY), 0.0)


def timed(what: str, work: Callable[[], object], repeat: int) -> Iterator[str]:
    """Median milliseconds of a piece of work."""
    taken = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        taken.append((time.perf_counter() - start) * 1000)
    yield f"{what:28} {sorted(taken)[len(taken) // 2]:9.1f} ms"


async def longest_turn(publisher: Publisher) -> float:
    """Longest time, ms, for which a publication lets nothing else run."""
    publisher.want()
    task, longest = asyncio.create_task(publisher.publish_in_turns()), 0.0
    while not task.done():
        start = time.perf_counter()
        await asyncio.sleep(0)
        longest = max(longest, time.perf_counter() - start)
    return longest * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frontends", type=int, default=20)
    parser.add_argument("--engines", type=int, default=200)
    parser.add_argument("--replicas", type=int, default=8)
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "policy.yaml"
        path.write_text(yaml.safe_dump(policy_document(arguments.frontends, arguments.engines)))
        policy = load(path)
    membership = Membership()
    filled(membership, arguments.engines, arguments.replicas)
    xds = XdsServer(clock=time.monotonic, fleet="bench")
    publisher = Publisher(xds, membership, policy, on_problems=lambda *problems: print(problems))
    names = sorted(policy.engines)
    shares = dict.fromkeys(names[:16], 1 / 16)
    partitions = {(f, k): Partition.fresh(shares) for f in policy.frontends for k in policy.key_specs}
    publisher.served = Served(1, partitions)

    def drain() -> None:
        nonlocal sequence
        sequence += 1
        state = ReplicaState.DRAINING if sequence % 2 else ReplicaState.READY
        membership.apply(key, stream, Report(sequence, 60.0, state), 0.0)
        publisher.publish()

    def move() -> None:
        nonlocal sequence
        sequence += 1
        row = (next(iter(policy.frontends)), next(iter(policy.key_specs)))
        step = 0.01 * (sequence % 3)
        new = {**shares, names[0]: 1 / 16 + step, names[1]: 1 / 16 - step}
        publisher.served = Served(sequence, {**publisher.served.partitions, row: Partition.fresh(new)})
        publisher.publish()

    key, sequence = ReplicaKey(names[0], "", "r0"), 1
    print(f"{arguments.frontends} front-ends, {arguments.engines} engines × {arguments.replicas}, 3 classes")
    for line in timed("first", publisher.publish, 1):
        print(line)
    other = Partition.fresh(dict.fromkeys(names[8:24], 1 / 16))
    publisher.served = Served(2, dict.fromkeys(partitions, other))
    start = time.perf_counter()
    longest = asyncio.run(longest_turn(publisher))
    taken = (time.perf_counter() - start) * 1000
    print(f"{'every share moves':28} {taken:9.1f} ms, of which at one go {longest:.1f} ms")
    stream = membership.join(Announcement(key, 1, "10.0.0.1", 8000), Report(2, 60.0, ReplicaState.READY), 0.0)
    sequence = 2
    for what, work in (
        ("one replica drains", drain),
        ("one share moves", move),
        ("nothing changed", publisher.publish),
    ):
        for line in timed(what, work, 5):
            print(line)


if __name__ == "__main__":
    main()
