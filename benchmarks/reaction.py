"""Reaction: from a replica's DOWN or DRAINING report to the last request that Envoy sends it.

    python benchmarks/reaction.py [--repetitions 40] [--rps 200]

A control plane and an Envoy in processes of their own; four replicas that answer at once, their reporters and
the load in this one. Zero means that nothing arrived after the report was handed to the reporter. One run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

from headrace.child import Child
from headrace.envoy_bootstrap import Bootstrap
from headrace.envoy_process import EnvoyProcess
from signals.client import ReportClient
from signals.messages import Hello, Sample, State

MODEL = "acme/chat-3.1"
REPLICAS = 4
WATCH_S = 0.7
"""How long after a report arrivals still count; nearly three times the target."""
TARGET_MS = 250
POLICY = f"""
version: 1
fleet: bench
regions: {{west: {{jurisdiction: us, replica_cidrs: [127.0.0.0/8]}}}}
frontends: {{west: {{region: west}}}}
listeners: {{public: {{port: 0, address: 127.0.0.1, default_class: interactive}}}}
classes: {{interactive: {{output_tokens: 8}}}}
models: {{chat: {{served_as: [{MODEL}]}}}}
profiles:
  gpu: {{t0_ms: 1, lambda_max_rps: 1000, capacity_rps: 800, ttft_ms: {{base: 2}}}}
engines:
  west-gpu: {{model: chat, region: west, profile: gpu}}
planning: {{interval_s: 2}}
"""


class Replica:
    """Answers at once, notes when it was asked, and reports the state it is told to be in."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = State.READY
        self.last_arrival = 0.0
        self.asked = asyncio.Event()

    async def start(self, stack: contextlib.AsyncExitStack, reports: int) -> None:
        """Listen and report until the stack is closed; `reports` is the control plane's port."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_get("/health", self._health)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        hello = Hello(
            fleet="bench",
            engine="west-gpu",
            region="west",
            cluster="c",
            replica_id=f"r{self.number}",
            incarnation=1,
            address="127.0.0.1",
            port=runner.addresses[0][1],
            served_models=[MODEL],
        )
        self.reporter = ReportClient([f"127.0.0.1:{reports}"], hello, lambda: Sample(state=self.state))
        task = asyncio.create_task(self.reporter.run())
        stack.callback(task.cancel)

    def report(self, state: State) -> float:
        """Say a new state; returns when."""
        self.state = state
        self.reporter.notify()
        return time.monotonic()

    async def _answer(self, request: web.Request) -> web.Response:
        self.last_arrival = time.monotonic()
        self.asked.set()
        return web.json_response({})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()


async def start(stack: contextlib.AsyncExitStack, folder: Path) -> tuple[list[Replica], str]:
    """Control plane, replicas, Envoy; the URL to send to."""
    (folder / "policy.yaml").write_text(yaml.safe_dump(yaml.safe_load(POLICY)))
    argv = [sys.executable, "-m", "headrace", "serve", "--policy", str(folder / "policy.yaml")]
    for port in ("xds", "reports", "metrics", "admin"):
        argv += [f"--{port}", "127.0.0.1:0"]
    argv += ["--insecure-dev", "--ports-file", str(folder / "ports")]
    control = await Child.start("control-plane", argv, folder / "control-plane.log")
    stack.push_async_callback(control.stop)
    ports = await control.ports(folder / "ports")
    replicas = [Replica(number) for number in range(REPLICAS)]
    for replica in replicas:
        await replica.start(stack, ports["reports"])
    bootstrap = Bootstrap(frontend="west", fleet="bench", xds=[("127.0.0.1", ports["xds"])], node_id="west-1")
    envoy = await stack.enter_async_context(EnvoyProcess(bootstrap, directory=folder / "envoy"))
    await envoy.ready()
    return replicas, f"http://127.0.0.1:{envoy.ports['public']}/v1/chat/completions"


async def load(url: str, rps: float) -> None:
    """Requests of ever new sessions at a steady rate, until cancelled."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}

    async def one(session: aiohttp.ClientSession, number: int) -> None:
        async with session.post(url, json=body, headers={"x-session-id": str(number)}) as answer:
            await answer.read()
            answer.raise_for_status()

    number, began = 0, time.monotonic()
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        asyncio.TaskGroup() as group,
    ):
        while True:
            number += 1
            group.create_task(one(session, number))
            await asyncio.sleep(max(0.0, began + number / rps - time.monotonic()))


async def reactions(replicas: list[Replica], state: State, repetitions: int) -> list[float]:
    """Milliseconds from each report of `state` to the last request at that replica."""
    times = []
    for repetition in range(repetitions):
        replica = replicas[repetition % len(replicas)]
        at = replica.report(state)
        await asyncio.sleep(WATCH_S)
        times.append(max(0.0, replica.last_arrival - at) * 1000)
        replica.asked.clear()
        replica.report(State.READY)
        await asyncio.wait_for(replica.asked.wait(), 10)
    return sorted(times)


async def measure(repetitions: int, rps: float) -> None:
    with tempfile.TemporaryDirectory(prefix="headrace-reaction-") as folder:
        async with contextlib.AsyncExitStack() as stack:
            replicas, url = await start(stack, Path(folder))
            sending = asyncio.create_task(load(url, rps))
            await asyncio.sleep(3)
            for state in (State.DRAINING, State.DOWN):
                times = await reactions(replicas, state, repetitions)
                p99 = times[min(len(times) - 1, int(0.99 * len(times)))]
                print(
                    f"{state.name} report to the last request at the replica, {len(times)} times: "
                    f"p50 {statistics.median(times):.0f} ms, p99 {p99:.0f} ms, most {times[-1]:.0f} ms "
                    f"(target p99 {TARGET_MS} ms; a replica is asked every {1000 * REPLICAS / rps:.0f} ms)"
                )
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=40)
    parser.add_argument("--rps", type=float, default=200.0)
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.repetitions, arguments.rps))
