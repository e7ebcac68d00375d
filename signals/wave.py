"""A wave of leaving: most of the fleet says DRAINING or DOWN within seconds.

A rollout drains a part of the fleet at a time. A wave over most of it is more likely a broken deployment
tool or a stolen credential than a wish, and following it would empty every Envoy. The first `share` of the
fleet is believed; what would go beyond is held at READY, and an operator is told (DESIGN, "Signals", trust).
"""

from __future__ import annotations

from collections import deque

from signals.replicas import ReplicaKey


class WaveGuard:
    """Decides whether one more replica's leaving is believed. Pure; times are monotonic seconds."""

    def __init__(self, *, share: float = 0.5, window_s: float = 10.0, least: int = 4) -> None:
        """A wave is more than `share` of the ready replicas, at least `least` of them and of two engines,
        leaving within `window_s`."""
        self._share = share
        self._window_s = window_s
        self._least = least
        self._left: deque[tuple[float, ReplicaKey]] = deque()

    def believes(self, key: ReplicaKey, ready: int, now: float) -> bool:
        """Whether `key` may leave while `ready` replicas, itself included, are ready."""
        while self._left and now - self._left[0][0] > self._window_s:
            self._left.popleft()
        leaving = len(self._left) + 1
        engines = {left.engine for _, left in self._left} | {key.engine}
        fleet = ready + len(self._left)
        if leaving >= self._least and len(engines) > 1 and leaving > self._share * fleet:
            return False
        self._left.append((now, key))
        return True
