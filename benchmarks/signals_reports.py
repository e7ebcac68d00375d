"""Load reports at scale: CPU of the control plane, and time from a replica's DOWN to membership.

    python benchmarks/signals_reports.py [--replicas 1000] [--seconds 20]

The reporters run in a process of their own; both processes share the machine. One run.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import statistics
import time

from signals.admission import Admission, EngineRule
from signals.client import ReportClient
from signals.membership import Membership
from signals.messages import Distribution, Hello, Sample, State
from signals.replicas import MemberEvent
from signals.report_service import ReportService

MODEL = "meta-llama/Llama-3.3-70B-Instruct"
ENGINES = 20


def hello(number: int) -> Hello:
    return Hello(
        fleet="bench",
        engine=f"engine-{number % ENGINES}",
        region="r",
        cluster="c",
        replica_id=f"r{number}",
        incarnation=1,
        address="127.0.0.1",
        port=10_000 + number,
        served_models=[MODEL],
    )


def sample(state: State) -> Sample:
    return Sample(
        state=state,
        running=5.0,
        waiting=1.0,
        kv_usage_ratio=0.3,
        ttft_ms=Distribution(mean=100.0, p50=90.0, p99=200.0, count=10.0),
        tbot_ms=Distribution(mean=10.0, p50=9.0, p99=20.0, count=100.0),
        output_tokens_per_s=500.0,
        requests_per_s=2.0,
    )


async def report(target: str, replicas: int, changes: multiprocessing.Queue) -> None:
    states = [State.READY] * replicas
    clients = [
        ReportClient([target], hello(number), lambda number=number: sample(states[number]))
        for number in range(replicas)
    ]
    tasks = [asyncio.create_task(client.run()) for client in clients]
    await asyncio.gather(*(client.connected() for client in clients))
    await asyncio.sleep(3)
    order = list(range(replicas))
    random.Random(0).shuffle(order)
    for number in order:
        states[number] = State.DOWN
        changes.put((number, time.monotonic()))
        clients[number].notify()
        await asyncio.sleep(0.02)
    await asyncio.gather(*tasks)


def run_reporters(target: str, replicas: int, changes: multiprocessing.Queue) -> None:
    asyncio.run(report(target, replicas, changes))


async def measure(replicas: int, seconds: float) -> None:
    seen: dict[int, float] = {}
    all_there = asyncio.Event()

    def on_event(event: MemberEvent) -> None:
        if event.kind == "down":
            seen[int(event.replica.key.replica_id[1:])] = time.monotonic()

    def on_change() -> None:
        if sum(map(membership.view().ready_count, rules)) == replicas:
            all_there.set()

    membership = Membership(on_event=on_event, on_change=on_change)

    rules = {f"engine-{number}": EngineRule("r") for number in range(ENGINES)}
    service = ReportService(membership, Admission("bench", rules, insecure_dev=True))
    port = await service.start("127.0.0.1", 0)
    changes: multiprocessing.Queue = multiprocessing.get_context("spawn").Queue()
    process = multiprocessing.get_context("spawn").Process(
        target=run_reporters, args=(f"127.0.0.1:{port}", replicas, changes), daemon=True
    )
    process.start()
    await all_there.wait()
    began, cpu = time.monotonic(), sum(os.times()[:2])
    await asyncio.sleep(seconds)
    interval_s = service.interval_s
    cores = (sum(os.times()[:2]) - cpu) / (time.monotonic() - began)
    process.terminate()
    process.join()
    asked = {}
    while not changes.empty():
        number, at = changes.get()
        asked[number] = at
    times = sorted(1000 * (seen[number] - at) for number, at in asked.items() if number in seen)
    await service.stop()
    print(f"{replicas} replicas, interval {interval_s:g} s: {cores:.2f} cores of the control plane")
    print(
        f"DOWN to membership, {len(times)} changes: p50 {statistics.median(times):.1f} ms, "
        f"p99 {times[int(0.99 * len(times))]:.1f} ms (target, to Envoy: 250 ms)"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.replicas, arguments.seconds))
