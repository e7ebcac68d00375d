"""When counters were read, on the receiver's clock: a flush may arrive late, and its counts are not.

The clock of the source is used for differences only. What a message took at least lately is taken for what it
always takes; what it took more is its lateness. A clock that is set shows as a message that is earlier than
any, or as one that was written before the one before it: then the measure begins anew. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_DRIFT = 1e-3
"""Seconds per second that clocks may drift apart."""


@dataclass(slots=True)
class Lateness:
    """Of one source whose messages arrive in order; the only owner of its measure."""

    _offset: float = math.inf
    """Receiver's less source's clock, of the quickest message lately."""
    _arrived_at: float = 0.0
    _written_at: float = -math.inf

    def read_at(self, source_s: float | None, now: float) -> float:
        """When a message that arrives `now` was written, at most `now`; `source_s` is what it says itself."""
        if source_s is None:
            return now
        usual = self._offset + _DRIFT * (now - self._arrived_at)
        took = now - source_s
        self._offset = took if source_s + usual <= self._written_at else min(usual, took)
        self._arrived_at, self._written_at = now, source_s + self._offset
        return self._written_at
