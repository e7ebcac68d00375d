"""The agent beside an engine (a small HTTP server here) and a real report service."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from signals.adapters.kinds import VLLM
from signals.agent import Agent, AgentConfig
from signals.readings import Signal
from signals.replicas import ReplicaState

from .conftest import LLAMA, hello
from .vllm_page import page


@dataclass
class Target:
    """An engine's HTTP surface that can be told to fail."""

    port: int = 0
    page: dict[str, object] = field(default_factory=dict)
    health: int = 200
    probe: int = 200
    hangs: bool = False
    _runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._complete)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _metrics(self, request: web.Request) -> web.Response:
        if self.hangs:
            await asyncio.sleep(30)
        return web.Response(text=page(**self.page))

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=self.health)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": LLAMA}]})

    async def _complete(self, request: web.Request) -> web.Response:
        return web.json_response({}, status=self.probe)


@pytest.fixture
async def target():
    made = Target()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def agent(fleet, target):
    """Starts the agent for the target; ends it afterwards."""
    tasks = []

    def start(**options) -> Agent:
        options = {"interval_s": 0.02, "timeout_s": 0.1, "window_s": 1.0} | options
        greeting = hello(port=target.port, served_models=[])
        made = Agent(AgentConfig(VLLM, target.url, [fleet.target], greeting, **options))
        tasks.append(asyncio.create_task(made.run()))
        return made

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def command(fleet, target) -> asyncio.subprocess.Process:
    """`headrace agent` beside the target."""
    return await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).with_name("headrace")), "agent", "--kind", "vllm", "--engine", "us-h100"),
        *("--target", target.url, "--report", fleet.target, "--fleet", "prod", "--region", "us"),
        *("--cluster", "us-1", "--replica-id", "r1", "--interval", "0.05"),
        stderr=asyncio.subprocess.PIPE,
    )


def running(fleet):
    found = fleet.replicas().get("r1")
    return found and found.value(Signal.RUNNING, 0.0)


def state(fleet):
    found = fleet.replicas().get("r1")
    return found and found.state


async def test_an_engine_that_serves_is_ready_with_its_values(fleet, agent):
    agent()
    await fleet.until(lambda: state(fleet) is ReplicaState.READY, "ready")
    await fleet.until(lambda: Signal.RUNNING in fleet.replicas()["r1"].readings, "measured")
    replica = fleet.replicas()["r1"]
    assert replica.readings[Signal.RUNNING].value == 3.0
    assert replica.incarnation == 1_795_975_003_750


async def test_a_refusing_engine_is_down_at_once_and_its_next_process_a_new_incarnation(fleet, agent, target):
    agent()
    await fleet.until(lambda: state(fleet) is ReplicaState.READY, "ready")
    await target.stop()
    await fleet.until(lambda: state(fleet) is ReplicaState.DOWN, "down")
    target.page["started"] = 1_795_975_999.0
    await target.start()
    await fleet.until(lambda: state(fleet) is ReplicaState.READY, "ready again")
    assert fleet.replicas()["r1"].incarnation == 1_795_975_999_000


@pytest.mark.parametrize("fault", [{"hangs": True}, {"health": 503}])
async def test_an_engine_that_gives_no_good_answer_is_down_after_a_few(fleet, agent, target, fault):
    agent()
    await fleet.until(lambda: state(fleet) is ReplicaState.READY, "ready")
    for name, value in fault.items():
        setattr(target, name, value)
    await fleet.until(lambda: state(fleet) is ReplicaState.DOWN, "down")
    assert "no good answer 3 times" in fleet.replicas()["r1"].reason
    target.hangs, target.health = False, 200
    await fleet.until(lambda: state(fleet) is ReplicaState.READY, "back")


async def test_it_is_not_ready_before_a_token_came_back(fleet, agent, target):
    target.probe = 500
    agent(probe=True)
    await fleet.until(lambda: state(fleet) in (ReplicaState.STARTING, ReplicaState.DOWN), "not ready")
    target.probe = 200
    await fleet.until(lambda: state(fleet) is ReplicaState.READY, "ready")


async def test_a_sleeping_engine_is_starting(fleet, agent, target):
    target.page["awake"] = 0
    agent()
    await fleet.until(lambda: state(fleet) is ReplicaState.STARTING, "asleep")


async def test_a_drain_returns_when_no_envoy_sends_any_more(fleet, agent):
    running = agent()
    await fleet.until(lambda: state(fleet) is ReplicaState.READY, "ready")
    draining = asyncio.create_task(running.drain("rollout"))
    await fleet.until(lambda: state(fleet) is ReplicaState.DRAINING, "draining")
    assert fleet.replicas()["r1"].reason == "rollout"
    assert not draining.done()
    fleet.drained.set()
    async with asyncio.timeout(5):
        await draining


async def test_a_drain_of_a_dead_engine_waits_for_nobody(fleet, agent, target):
    running = agent()
    await fleet.until(lambda: state(fleet) is ReplicaState.READY, "ready")
    await target.stop()
    await fleet.until(lambda: state(fleet) is ReplicaState.DOWN, "down")
    async with asyncio.timeout(5):
        await running.drain("rollout")
    assert not fleet.drained.is_set()


async def test_one_look_without_reporting(target):
    greeting = hello(port=target.port)
    sample = await Agent(AgentConfig(VLLM, target.url, [], greeting, interval_s=0.01)).look_once()
    assert (sample.state.name, sample.running) == ("READY", 3.0)
    await target.stop()
    sample = await Agent(AgentConfig(VLLM, target.url, [], greeting, interval_s=0.01)).look_once()
    assert sample.state.name == "DOWN"


async def test_it_is_finished_when_the_engine_runs_nothing(fleet, agent, target):
    made = agent()
    await fleet.until(lambda: state(fleet) is ReplicaState.READY, "ready")
    finished = asyncio.create_task(made.finished())
    target.page |= {"running": 0, "waiting": 4}
    await fleet.until(lambda: running(fleet) == 0.0, "only queued")
    assert not finished.done()
    target.page |= {"running": 0, "waiting": 0}
    async with asyncio.timeout(5):
        await finished


async def test_it_is_finished_when_the_engine_is_gone(fleet, agent, target):
    made = agent()
    await fleet.until(lambda: state(fleet) is ReplicaState.READY, "ready")
    await target.stop()
    async with asyncio.timeout(5):
        await made.finished()


async def test_it_is_finished_when_there_never_was_an_engine(agent, target):
    await target.stop()
    async with asyncio.timeout(5):
        await agent().finished()


async def test_a_second_signal_ends_the_command_at_once(fleet, target):
    process = await command(fleet, target)
    try:
        await fleet.until(lambda: state(fleet) is ReplicaState.READY, "ready")
        process.terminate()
        await fleet.until(lambda: state(fleet) is ReplicaState.DRAINING, "draining")
        process.terminate()
        async with asyncio.timeout(5):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_the_command_drains_on_sigterm_and_ends(fleet, target):
    process = await command(fleet, target)
    try:
        await fleet.until(lambda: state(fleet) is ReplicaState.READY, "ready")
        process.terminate()
        await fleet.until(lambda: state(fleet) is ReplicaState.DRAINING, "draining")
        assert fleet.replicas()["r1"].reason == "agent was told to stop"
        fleet.drained.set()
        await fleet.until(lambda: fleet.acked, "acknowledged")
        target.page |= {"running": 1, "waiting": 0}
        await fleet.until(lambda: running(fleet) == 1.0, "one answer still runs, and is reported")
        target.page["running"] = 0
        async with asyncio.timeout(5):
            _, log = await process.communicate()
        assert process.returncode == 0, log
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    await fleet.until(lambda: fleet.replicas() == {}, "gone")
