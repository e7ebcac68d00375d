"""Two counts of the same attempts, kept side by side: Envoy's load reports (LRS) and its counters.

Load reports are large, late and lose what happens while nobody listens, so nothing is planned from them; but
they come another way, and a counter that is lost or misread shows as a ratio that is not 1. Both are summed
over the same time and fade with `TIME_CONSTANT_S`; a flush more or less in a sum is a few percent at most.

Pure: no I/O and no clock; times are monotonic seconds of the receiver.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

TIME_CONSTANT_S = 600.0
LEAST = 100.0
"""Attempts below which a ratio says nothing."""
_LATE = 1.5
"""Intervals after which a report does not follow the last one: what lies between is in neither sum."""
_FORGET_AFTER_S = 3600.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """One Envoy at its latest load report."""

    at: float
    counted: Mapping[str, float]
    """engine -> all attempts by the counters until then."""


@dataclass(slots=True)
class _Sums:
    """Attempts of a front-end, both ways."""

    at: float
    reported: float = 0.0
    counted: float = 0.0

    def add(self, reported: float, counted: float, now: float) -> None:
        keep = math.exp(-(now - self.at) / TIME_CONSTANT_S)
        self.reported, self.counted = self.reported * keep + reported, self.counted * keep + counted
        self.at = now


class AttemptsCheck:
    """Owns both sums of every front-end."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._sums: dict[str, _Sums] = {}

    def observe(
        self,
        frontend: str,
        node_id: str,
        *,
        reported: float,
        counted: Mapping[str, float] | None,
        interval_s: float,
        now: float,
    ) -> None:
        """Take one load report: attempts at engines in the last `interval_s`, and engine -> all attempts that
        this Envoy's counters tell of until now (None: it has sent no counters yet)."""
        self._forget(now)
        before = self._seen.pop((frontend, node_id), None)
        if counted is None:
            return
        self._seen[frontend, node_id] = _Seen(now, dict(counted))
        if before is None or now - before.at > _LATE * interval_s:
            return
        since = sum(total - before.counted.get(engine, 0.0) for engine, total in counted.items())
        self._sums.setdefault(frontend, _Sums(now)).add(reported, since, now)

    def ratios(self) -> dict[str, float]:
        """front-end -> attempts by load reports over attempts by counters, where there are enough."""
        return {
            frontend: sums.reported / max(sums.counted, 1.0)
            for frontend, sums in self._sums.items()
            if max(sums.reported, sums.counted) >= LEAST
        }

    def _forget(self, now: float) -> None:
        self._seen = {key: seen for key, seen in self._seen.items() if now - seen.at <= _FORGET_AFTER_S}
        self._sums = {name: sums for name, sums in self._sums.items() if now - sums.at <= _FORGET_AFTER_S}
