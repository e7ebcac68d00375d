"""When the first round may be planned: once it is known who is there."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable

from headrace.control_plane.observations import without_replicas
from headrace.policy import Policy
from signals.replicas import MembershipView
from xds_server.debounce import Debounce

_SETTLE_S = 5.0
"""After a restart from saved state: how long reporters get to come back before the first round. It is the
validity of a report at the default interval, so whoever is silent then is not merely reconnecting."""
_QUIET_S = 0.5
"""How long members must have been the same before the first round."""


class FirstRound:
    """Waits for members, or for their return. `policy()` and `members()` give what is so at the time."""

    def __init__(
        self,
        policy: Callable[[], Policy],
        members: Callable[[], MembershipView],
        clock: Callable[[], float],
    ) -> None:
        self._policy = policy
        self._members = members
        self._clock = clock

    async def opened(self, wait_s: float) -> None:
        """Wait at a start without state: an empty answer would empty running Envoys.

        Known is who is there when every engine has a ready replica and no more come in, or when reporters had
        the time that their longest back-off takes, `wait_s`. With nobody there at all it waits for ever.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._hold(lambda: not self._lacking())
        await self._hold(self._somebody_is_there)

    async def returned(self, wanted: asyncio.Event) -> None:
        """Wait after a restart: members are the saved and the reported ones until the reporters had time to
        come back; only what is `wanted` at once, as when an engine is lost or found, does not wait."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(wanted.wait(), _SETTLE_S)

    async def _hold(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds and the members have not changed for a while."""
        arrivals, version = Debounce(_QUIET_S, math.inf), -1
        while True:
            if version != self._members().version:
                version = self._members().version
                arrivals.note(self._clock())
            if holds() and arrivals.take(self._clock()):
                return
            await asyncio.sleep(_QUIET_S / 5)

    def _lacking(self) -> frozenset[str]:
        return without_replicas(self._policy(), self._members())

    def _somebody_is_there(self) -> bool:
        """Whether any engine that is to serve has a ready replica, or none is to serve."""
        serving = sum(spec.state == "active" for spec in self._policy().engines.values())
        return not serving or len(self._lacking()) < serving
