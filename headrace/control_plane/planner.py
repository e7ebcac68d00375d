"""The planning loop: a round every few seconds, and at once when something asks for one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from headrace.control_plane.rounds import Inputs, Result, Round, plan_round
from headrace.control_plane.telemetry import Stopwatch, Telemetry
from optimizer import Warm


class Planner:
    """Runs rounds in a thread, so that endpoints never wait for a solver. Owns the solver's warm state."""

    def __init__(
        self,
        *,
        inputs: Callable[[], Inputs | None],
        take: Callable[[Round, Inputs, str], bool],
        interval_s: Callable[[], float],
        telemetry: Telemetry,
        clock: Callable[[], float],
    ) -> None:
        """`inputs()` gives what is known, or None when nothing must change now.
        `take(round, inputs, trigger)` gets every outcome, and says False when it is void since policy or
        shares changed meanwhile."""
        self._inputs = inputs
        self._take = take
        self._interval_s = interval_s
        self._telemetry = telemetry
        self._clock = clock
        self._warm = Warm()
        self._trigger = "timer"
        self._fault = ""
        """The fault of the last round, told once while it lasts."""
        self.wanted = asyncio.Event()
        """Set when a round is wanted now."""

    def want(self, trigger: str) -> None:
        """Ask for a round at once: `topology`, `policy` or `override`."""
        self._trigger = trigger
        self.wanted.set()

    def save(self) -> list[list[str]] | None:
        """As JSON: the (front-end, key) rows on the way altogether; None when no move is unfinished."""
        warm = self._warm
        return sorted(map(list, warm.whole)) if warm.unfinished else None

    def resume(self, saved: list[list[str]] | None) -> None:
        """Go on with the move that an earlier run had not finished. Raises ValueError for what is none."""
        if saved is None:
            return
        self._warm.whole = frozenset((frontend, key) for frontend, key in saved)
        self._warm.unfinished = True

    async def run(self, begin: Awaitable[None]) -> None:
        """Plan for ever, from the time when `begin` is done."""
        await begin
        while True:
            trigger, self._trigger = self._trigger, "timer"
            self.wanted.clear()
            await self._round(trigger)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wanted.wait(), self._interval_s())

    async def _round(self, trigger: str) -> None:
        watch = Stopwatch(self._telemetry.stage_s, self._clock)
        try:
            watch.enter("collect")
            inputs = self._inputs()
            watch.enter("")
            if inputs is None:
                self._telemetry.skipped(trigger)
                return
            found = await asyncio.to_thread(plan_round, inputs, self._warm, watch.enter)
            watch.enter("")
            if not self._take(found, inputs, trigger):
                self.want(trigger)
            self._fault = ""
        except Exception as error:  # a fault of ours must not end the loop: the last plan stays
            self._warm = Warm()
            self._telemetry.rounds.labels(trigger, Result.FAILED).inc()
            if repr(error) != self._fault:
                self._fault = repr(error)
                self._telemetry.log.exception("plan_failed", error=self._fault)
