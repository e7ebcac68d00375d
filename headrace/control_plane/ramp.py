"""New replicas take their part of the traffic little by little, while their caches fill.

A replica ramps only beside others that can carry the rest: if a replica of its engine has been ready for a
whole ramp, or was there before a restart. So a fleet that starts, an engine that comes back from nothing, and
replicas restored from saved state count in full at once; and so do all that ramp once nobody is left to lean
on, or once their model is short of capacity. What counts in full stays so while its process lives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from math import floor, inf

from headrace.control_plane.residuals import Process, process_of
from headrace.policy.schema import Ramp
from optimizer import ramped_replicas
from signals.replicas import MembershipView, Presence, Replica, ReplicaKey

_STEP = 0.1
"""Weights move in such steps: each is an update of endpoints, and moves sessions."""


class Ramps:
    """Since when each process is ready. The only owner of that state."""

    def __init__(self) -> None:
        self._ready_at: dict[Process, float] = {}
        """-inf: counts in full."""
        self._first: dict[Process, float] = {}
        """When a process was first seen ready, however it counts; -inf: before this control plane began."""

    def update(
        self,
        members: MembershipView,
        ramp_of: Callable[[str], Ramp],
        short: Collection[str],
        now: float,
    ) -> dict[ReplicaKey, float]:
        """What each replica counts for that does not count in full, (0, 1).

        Args:
            members: everybody.
            ramp_of: the policy's ramp of an engine.
            short: engines whose model lacks capacity.
            now: monotonic seconds.
        """
        parts: dict[ReplicaKey, float] = {}
        seen: set[Process] = set()
        for engine, replicas in members.engines.items():
            reporters = [r for r in replicas if r.presence is not Presence.CONFIGURED]
            seen.update(map(process_of, reporters))
            ramp = ramp_of(engine)
            ready = [process_of(replica) for replica in reporters if replica.ready]
            self._enter(reporters, ramp.duration_s, now)
            if engine in short or not any(self._full(process, ramp.duration_s, now) for process in ready):
                self._ready_at.update(dict.fromkeys(ready, -inf))
            parts |= self._parts(ready, ramp, now)
        self._ready_at = {process: at for process, at in self._ready_at.items() if process in seen}
        self._first = {process: at for process, at in self._first.items() if process in seen}
        return parts

    def _enter(self, replicas: Iterable[Replica], duration_s: float, now: float) -> None:
        """Note who is ready for the first time, and whether there is somebody to lean on."""
        new, settled = [], False
        for replica in replicas:
            process = process_of(replica)
            if replica.presence is Presence.RESTORED:
                self._first.setdefault(process, -inf)
                self._ready_at.setdefault(process, -inf)
            if not replica.ready:
                continue
            if process not in self._first:
                new.append(process)
            elif now - self._first[process] >= duration_s:
                settled = True
        for process in new:
            self._first[process] = now
            self._ready_at[process] = now if settled else -inf

    def _full(self, process: Process, duration_s: float, now: float) -> bool:
        return now - self._ready_at[process] >= duration_s

    def _parts(self, ready: Iterable[Process], ramp: Ramp, now: float) -> Mapping[ReplicaKey, float]:
        ramping = (process for process in ready if not self._full(process, ramp.duration_s, now))
        return {
            process.key: stepped(
                ramped_replicas([now - self._ready_at[process]], ramp.duration_s, ramp.start)
            )
            for process in ramping
        }


def stepped(part: float) -> float:
    """A part in whole steps, and never nothing."""
    return max(_STEP, round(floor(part / _STEP + 1e-9) * _STEP, 6))
