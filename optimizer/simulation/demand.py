"""Demand as the planner knows it: averages of what arrived, which may begin anew after a step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

FAST_WINDOW_S = 4.0
"""Window of the estimate that sees a surge; its standard deviation is √(dispersion · rps / window)."""
ENTER = 1.25
SIGMAS = 4.0
DISPERSION = 4.0
"""Index of dispersion that a surge has to stand out of."""


class Measured:
    """Requests/s of every row [R]: exponential averages, time constant half of a window.

    Such an average is as old as a plain mean over the window, which is how the control plane measures. With
    `begin_anew` an average forgets what was before; its first samples then count alike.
    """

    def __init__(self, first: Array, window_s: float, tick_s: float) -> None:
        self.rps = first
        self._fast = first
        self._windows_s, self._tick_s = (window_s, FAST_WINDOW_S), tick_s
        self._age_s = np.full(len(first), np.inf)

    def add(self, rate: Array) -> None:
        """Take one tick's arrivals [R], requests/s."""
        self._age_s = self._age_s + self._tick_s
        slow, fast = (self._weight(window_s) for window_s in self._windows_s)
        self.rps = self.rps + slow * (rate - self.rps)
        self._fast = self._fast + fast * (rate - self._fast)

    def begin_anew(self, rate: Array, work: Array, capacity: Array) -> None:
        """Forget the averages of surging rows when an engine would be beyond its `capacity` [E].

        A row surges when the fast estimate is above the average by a quarter and by more than noise
        explains. It goes on from this tick's `rate` [R]. `work` [R, E]: work/s on an engine per request/s.
        """
        noise = SIGMAS * np.sqrt(DISPERSION * np.maximum(self.rps, 1.0) / FAST_WINDOW_S)
        surging = self._fast > np.maximum(ENTER * self.rps, self.rps + noise)
        if surging.any() and np.any(self._fast @ work > capacity):
            self.rps, self._fast = (np.where(surging, rate, old) for old in (self.rps, self._fast))
            self._age_s = np.where(surging, self._tick_s, self._age_s)

    def _weight(self, window_s: float) -> Array:
        """[R] of the newest tick in an average over what came since it began."""
        if window_s <= 0:
            return np.ones(len(self._age_s))
        tick, age = (1.0 - np.exp(-2.0 * seconds / window_s) for seconds in (self._tick_s, self._age_s))
        weight: Array = tick / age
        return weight
