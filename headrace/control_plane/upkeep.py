"""Loops of the control plane, and what becomes of a fault in one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.control_plane.telemetry import Telemetry

_LAG_EVERY_S = 0.5


async def run_all(loops: list[Coroutine[Any, Any, None]], stop: asyncio.Event, telemetry: Telemetry) -> None:
    """Run loops until `stop` is set."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_ends_all(loop, stop, telemetry)) for loop in loops]
        await stop.wait()
        for task in tasks:
            task.cancel()


async def _ends_all(loop: Coroutine[Any, Any, None], stop: asyncio.Event, telemetry: Telemetry) -> None:
    """Let a loop that fails end the process, to be started anew, rather than leave it half alive."""
    try:
        await loop
    except Exception as error:
        telemetry.log.exception("control_plane_failed", reason=repr(error))
        stop.set()
        raise


async def every(seconds: float, work: Callable[[], None], telemetry: Telemetry) -> None:
    """Do something again and again. A fault of ours in it is told and must not end the process."""
    while True:
        await asyncio.sleep(seconds)
        try:
            work()
        except Exception as error:
            telemetry.log.exception("upkeep_failed", work=work.__name__, error=repr(error))


async def watch_lag(clock: Callable[[], float], telemetry: Telemetry) -> None:
    """Measure by how much the event loop is late."""
    while True:
        due = clock() + _LAG_EVERY_S
        await asyncio.sleep(_LAG_EVERY_S)
        telemetry.loop_lag_s.observe(max(0.0, clock() - due))
