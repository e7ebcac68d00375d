"""Keeping the saved state up to date, off the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from headrace.control_plane.store import SavedState, StateStore
from headrace.control_plane.telemetry import Telemetry

_EVERY_S = 10.0
_PAUSE_S = 0.2
LIMIT_S = 2.0
"""Longest time that new shares wait for the disk."""


class Persistence:
    """Saves after every change, and what drifts (demand) now and then. A failure is told; serving goes on."""

    def __init__(
        self,
        store: StateStore | None,
        *,
        state: Callable[[], SavedState | None],
        telemetry: Telemetry,
        wall_clock: Callable[[], float],
    ) -> None:
        """`state()`: what to save now, None when there is nothing yet. Without a store nothing is saved."""
        self._store = store
        self._state = state
        self._telemetry = telemetry
        self._wall_clock = wall_clock
        self._changed = asyncio.Event()
        self._saving = threading.Lock()
        self._writing: asyncio.Future[None] | None = None
        """The latest write of `save`."""

    def changed(self) -> None:
        """Shares or members changed: save soon."""
        self._changed.set()

    async def run(self) -> None:
        """Save for ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _EVERY_S)
            self._changed.clear()
            if (state := self._state()) is not None:
                await asyncio.to_thread(self._save, state)
            await asyncio.sleep(_PAUSE_S)

    async def save(self) -> None:
        """Save what is now; returns when it is on the disk, told that it could not be, or after `LIMIT_S`.

        A disk that hangs gets no second write before the first has ended: it would hold another thread."""
        if await self._ended(self._writing) and (state := self._state()) is not None:
            self._writing = asyncio.ensure_future(asyncio.to_thread(self._save, state))
            await self._ended(self._writing)

    async def _ended(self, writing: asyncio.Future[None] | None) -> bool:
        """Whether a write ends in time."""
        if writing is not None:
            done, _ = await asyncio.wait({writing}, timeout=LIMIT_S)
            if not done:
                self._telemetry.state_not_saved(OSError(f"the disk takes more than {LIMIT_S:g} s"))
                return False
            writing.result()
        return True

    def save_now(self) -> None:
        """Save before the process ends."""
        if (state := self._state()) is not None:
            self._save(state)

    def _save(self, state: SavedState) -> None:
        if self._store is None:
            return
        try:
            with self._saving:  # a save that was cancelled goes on in its thread beside the last one
                self._store.save(state)
            self._telemetry.state_saved(self._wall_clock())
        except OSError as error:
            self._telemetry.state_not_saved(error)
