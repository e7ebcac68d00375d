"""When to publish after a burst of changes: a pure decision, without a clock of its own."""

from __future__ import annotations


class Debounce:
    """Waits until changes have been quiet for `quiet_s`, but never longer than `longest_s` after the first.

    For topology; shares have an interval of their own, and endpoints are published at once.
    """

    def __init__(self, quiet_s: float, longest_s: float) -> None:
        """Raises ValueError unless 0 <= quiet_s <= longest_s."""
        if not 0 <= quiet_s <= longest_s:
            raise ValueError(f"expected 0 <= quiet_s <= longest_s, got {quiet_s} and {longest_s}")
        self._quiet_s = quiet_s
        self._longest_s = longest_s
        self._first: float | None = None
        self._last = 0.0

    def note(self, now: float) -> None:
        """Something changed."""
        self._first = now if self._first is None else self._first
        self._last = now

    @property
    def due_at(self) -> float | None:
        """When to publish if nothing more changes; None when nothing is waiting."""
        if self._first is None:
            return None
        return min(self._last + self._quiet_s, self._first + self._longest_s)

    def take(self, now: float) -> bool:
        """Whether to publish now; if so, everything noted so far is taken."""
        if self.due_at is None or now < self.due_at:
            return False
        self._first = None
        return True
