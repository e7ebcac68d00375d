"""How long a source counted between two messages: they may arrive late, and clocks may be set.

Two clocks tell the interval: the source's, by what it writes into its messages, and the receiver's, by when
they arrive. A message that is late shows on the receiver's only; a clock that is set shows on the source's
only. Sources flush at an even pace, so the one of the two that is nearer to the interval before is right.
Pure.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Pace:
    """Of one source whose messages arrive in order. The only owner of what is known of it."""

    _arrived_at: float | None = None
    _source_s: float | None = None
    _usual_s: float | None = None
    _read_at: float = 0.0

    def read_at(self, source_s: float | None, now: float) -> float:
        """When the counters of a message that arrives `now` were read; `source_s` is what it says itself.

        Seconds on a clock of its own, which begins with the receiver's: only differences count."""
        if self._arrived_at is None:
            self._read_at = now
        else:
            by_arrival = now - self._arrived_at
            by_source = by_arrival
            if source_s is not None and self._source_s is not None:
                by_source = source_s - self._source_s
            self._usual_s = self._interval(by_source, by_arrival)
            self._read_at += self._usual_s
        self._arrived_at, self._source_s = now, source_s
        return self._read_at

    def _interval(self, by_source: float, by_arrival: float) -> float:
        if by_source <= 0.0:
            return by_arrival
        usual = self._usual_s
        if usual is None:  # the longer one: too few requests do less harm than such as never came
            return max(by_source, by_arrival)
        return min(by_source, by_arrival, key=lambda interval: abs(interval - usual))
