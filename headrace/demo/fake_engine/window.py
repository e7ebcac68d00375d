"""What an engine did lately: sliding sums and weighted quantiles for load reports."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Summary:
    """Weighted mean and quantiles of the values in a window."""

    mean: float
    p50: float
    p99: float
    count: float


class Series:
    """Values with weights in the last `span_s` seconds."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._entries: deque[tuple[float, float, float]] = deque()

    def add(self, at: float, value: float, weight: float = 1.0) -> None:
        """Note `value`, seen `weight` times, at `at` seconds."""
        self._entries.append((at, value, weight))
        self._expire(at)

    def total(self, now: float) -> float:
        """Return the weighted sum of the values."""
        self._expire(now)
        return sum(value * weight for _, value, weight in self._entries)

    def summary(self, now: float) -> Summary | None:
        """Return mean and quantiles (inverse of the distribution function), None for an empty window."""
        self._expire(now)
        if not self._entries:
            return None
        ordered = sorted((value, weight) for _, value, weight in self._entries)
        count = sum(weight for _, weight in ordered)
        mean = sum(value * weight for value, weight in ordered) / count
        return Summary(mean, _quantile(ordered, 0.5 * count), _quantile(ordered, 0.99 * count), count)

    def _expire(self, now: float) -> None:
        while self._entries and self._entries[0][0] <= now - self._span_s:
            self._entries.popleft()


class Window:
    """The series that a load report is made of. Times in seconds of one clock, latencies in milliseconds."""

    def __init__(self, span_s: float) -> None:
        self.span_s = span_s
        self.ttft_ms = Series(span_s)
        self.tbot_ms = Series(span_s)
        self.arrivals = Series(span_s)
        self.prompt_tokens = Series(span_s)
        self.cached_tokens = Series(span_s)
        self.output_tokens = Series(span_s)
        self.errors: dict[str, Series] = {}

    def error(self, at: float, kind: str) -> None:
        """Note an error answer of a kind from a fixed set."""
        self.errors.setdefault(kind, Series(self.span_s)).add(at, 1.0)

    def prefix_hit_ratio(self, now: float) -> float | None:
        """Return the part of prompt tokens that was cached, None without prompts."""
        asked = self.prompt_tokens.total(now)
        return self.cached_tokens.total(now) / asked if asked else None


def _quantile(ordered: list[tuple[float, float]], rank: float) -> float:
    seen = 0.0
    for value, weight in ordered:
        seen += weight
        if seen >= rank:
            return value
    return ordered[-1][0]
