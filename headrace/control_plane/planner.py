"""The planning loop: a round every few seconds, and at once when something asks for one."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Awaitable, Callable

from headrace.control_plane.rounds import Inputs, Result, Round, plan_round
from headrace.control_plane.served import Row
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
        self._faults: set[str] = set()
        """Faults since the last good round: each is told once."""
        self._under_way: frozenset[Row] | None = None
        """Rows that go on moving altogether after the last round that was taken; None when it was the end."""
        self.wanted = asyncio.Event()
        """Set when a round is wanted now."""

    def want(self, trigger: str) -> None:
        """Ask for a round at once: `topology`, `policy` or `override`."""
        self._trigger = trigger
        self.wanted.set()

    def save(self) -> list[list[str]] | None:
        """As JSON: the (front-end, key) rows on the way altogether; None when no move is unfinished."""
        return None if self._under_way is None else sorted(map(list, self._under_way))

    def resume(self, rows: frozenset[Row] | None) -> None:
        """Go on with the move that an earlier run had not finished, if there was one."""
        self._under_way = rows
        self._warm.unfinished, self._warm.whole = rows is not None, rows or frozenset()

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
            if self._take(found, inputs, trigger):
                self._under_way = self._warm.whole if self._warm.unfinished else None
            else:
                self.resume(self._under_way)
                self.want(trigger)
            self._recovered()
        except Exception as error:  # a fault of ours must not end the loop: the last plan stays
            self._warm = Warm()
            self.resume(self._under_way)
            self._telemetry.rounds.labels(trigger, Result.FAILED).inc()
            if (where := _where(error)) not in self._faults:
                self._faults.add(where)
                self._telemetry.log.exception("plan_failed", error=repr(error))

    def _recovered(self) -> None:
        if self._faults:
            self._telemetry.log.info("plan_recovered", faults=len(self._faults))
            self._faults.clear()


def unfinished_rows(saved: object) -> frozenset[Row] | None:
    """What `Planner.save` wrote, read back. Raises ValueError for anything else."""
    if saved is None:
        return None
    if not isinstance(saved, list) or not all(map(_is_row, saved)):
        raise ValueError("unfinished: expected a list of pairs of a front-end and a key")
    return frozenset((frontend, key) for frontend, key in saved)


def _is_row(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(part, str) for part in value)


def _where(error: BaseException) -> str:
    """A fault by its kind and place: its text may hold numbers that differ each time."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} {frame.filename}:{frame.lineno}"
