"""The planning loop when a round has a fault of its own."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import Callable

from headrace.control_plane.planner import Planner
from headrace.control_plane.rounds import Inputs
from headrace.control_plane.telemetry import Telemetry
from headrace.log import make_logger


async def _soon() -> None:
    """The first round waits for nothing."""


async def faults(*rounds: Callable[[], Inputs | None]) -> tuple[list[dict], float]:
    """Run one round after the other; the `plan_failed` lines and how many rounds were counted as failed."""
    stream, done = io.StringIO(), asyncio.Event()
    left = list(rounds)

    def inputs() -> Inputs | None:
        if not left:
            done.set()
            return None
        return left.pop(0)()

    telemetry = Telemetry(make_logger(stream))
    planner = Planner(
        inputs=inputs,
        take=lambda found, inputs, trigger: True,
        interval_s=lambda: 0.0,
        telemetry=telemetry,
        clock=asyncio.get_running_loop().time,
    )
    running = asyncio.create_task(planner.run(_soon()))
    await asyncio.wait_for(done.wait(), 10)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    labels = {"trigger": "timer", "result": "failed"}
    counted = telemetry.registry.get_sample_value("headrace_plan_rounds_total", labels)
    return [line for line in lines if line["event"] == "plan_failed"], counted or 0.0


def broken(text: str) -> Callable[[], Inputs | None]:
    def inputs() -> Inputs | None:
        raise RuntimeError(text)

    return inputs


async def test_a_fault_is_counted_each_round_and_told_once_while_it_lasts():
    told, counted = await faults(broken("a"), broken("a"), broken("a"))
    assert [line["error"] for line in told] == ["RuntimeError('a')"]
    assert "Traceback" in told[0]["exception"]
    assert counted == 3.0


async def test_another_fault_is_told_of_its_own():
    told, _ = await faults(broken("a"), broken("b"))
    assert [line["error"] for line in told] == ["RuntimeError('a')", "RuntimeError('b')"]
