"""What is simulated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from optimizer.errors import ProblemError, check_number
from optimizer.problem import Problem, Tuning

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens from `at_s` to `until_s`."""

    at_s: float
    until_s: float = math.inf
    frontend: str | None = None
    """Whose demand changes; None: every front-end's."""
    demand_factor: float = 1.0
    engine: str | None = None
    """Which engine changes; None: every engine."""
    lost: bool = False
    """The engine answers nothing; the planner learns it after `report_delay_s`."""
    slow: float = 1.0
    """Its latency is this much larger and its capacity this much smaller."""
    penalty: float = 1.0
    """What outlier detection tells the planner of it, after `report_delay_s`."""
    failing: float = 0.0
    """Fraction of attempts at the engine that fail."""


@dataclass(frozen=True, slots=True)
class Retries:
    """What front-ends do with failed attempts."""

    max_attempts: int = 3
    budget: float | None = 0.1
    """Retries in proportion to first attempts; None: without limit."""
    failure_work: float = 0.1
    """Work of a failed attempt relative to a served one."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fleet, what happens to it, and how well the planner sees it."""

    name: str
    problem: Problem
    """Fleet and mean demand; its previous shares are where a run starts."""
    duration_s: float = 1800.0
    tick_s: float = 1.0
    interval_s: float = 5.0
    """Planning period."""
    demand_window_s: float = 30.0
    """Of the measured demand, an exponential average with half of it as its time constant."""
    surges: bool = False
    """The average begins anew when demand surges beyond an engine's capacity (`Measured.begin_anew`)."""
    report_delay_s: float = 2.0
    """Age of what the planner knows: demand, latency, readiness."""
    actuation_delay_s: float = 1.0
    """From a plan to front-ends that route by it."""
    warm_up_s: float = 120.0
    """Not counted in the metrics."""
    dispersion: float = 0.0
    """Variance over mean of arrivals; 0: a fluid without noise."""
    settling_s: float = 5.0
    """Time constant with which an engine's latency follows its load."""
    patience_s: float = 30.0
    """Requests that would wait longer in an engine's queue fail."""
    curves: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """front-end -> factors of its demand, evenly over one period, interpolated; none: constant."""
    offsets_h: Mapping[str, float] = field(default_factory=dict)
    """front-end -> hours its curve lies behind."""
    period_s: float = 86400.0
    events: tuple[Event, ...] = ()
    capacity_error: Mapping[str, float] = field(default_factory=dict)
    """engine -> true capacity over what its profile says."""
    correct: bool = False
    """Learn the engines' true curves from what they report."""
    retries: Retries = Retries()
    ttft_slo_ms: float = 2000.0
    min_gain: float = 0.0075
    max_step: float | None = 0.2
    tuning: Tuning = field(default_factory=Tuning)
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("duration_s", "tick_s", "interval_s", "period_s", "patience_s", "settling_s"):
            check_number(name, getattr(self, name), above=True)
        for name in ("demand_window_s", "report_delay_s", "actuation_delay_s", "warm_up_s", "dispersion"):
            check_number(name, getattr(self, name))
        if self.warm_up_s >= self.duration_s:
            raise ProblemError("warm_up_s", f"{self.warm_up_s:g}; expected less than duration_s")
        for i, event in enumerate(self.events):
            self._check(i, event)

    def _check(self, i: int, event: Event) -> None:
        path = f"events[{i}]"
        if event.frontend is not None and event.frontend not in self.problem.demand_rps:
            raise ProblemError(f"{path}.frontend", f"{event.frontend!r} has no demand in this scenario")
        if event.engine is not None and event.engine not in self.problem.engines:
            raise ProblemError(f"{path}.engine", f"{event.engine!r} is no engine of this scenario")
        check_number(f"{path}.demand_factor", event.demand_factor)
        check_number(f"{path}.slow", event.slow, low=1.0)
        check_number(f"{path}.penalty", event.penalty, high=1.0, above=True)
        check_number(f"{path}.failing", event.failing, high=1.0)

    @property
    def ticks(self) -> int:
        """Number of ticks of a run."""
        return max(1, round(self.duration_s / self.tick_s))

    def mean_demand(self, rows: list[tuple[str, str]]) -> Array:
        """[T, R] mean requests/s."""
        time = np.arange(self.ticks) * self.tick_s
        out = np.zeros((self.ticks, len(rows)))
        for i, (frontend, key) in enumerate(rows):
            level = np.full(self.ticks, self.problem.demand_rps[frontend][key])
            curve = self.curves.get(frontend)
            if curve:
                at = (time / self.period_s - self.offsets_h.get(frontend, 0.0) / 24.0) % 1.0 * len(curve)
                level = level * np.interp(at, np.arange(len(curve) + 1), [*curve, curve[0]])
            for event in self.events:
                if event.frontend in (None, frontend) and event.demand_factor != 1.0:
                    now = (time >= event.at_s) & (time < event.until_s)
                    level = np.where(now, level * event.demand_factor, level)
            out[:, i] = level
        return out

    def arrivals(self, rows: list[tuple[str, str]]) -> Array:
        """[T, R] requests in each tick: the same draw for every policy.

        Negative binomial with the given index of dispersion (Poisson at 1); the mean itself at 0.
        """
        mean = self.mean_demand(rows) * self.tick_s
        if self.dispersion <= 0:
            return mean
        rng = np.random.default_rng(self.seed)
        if self.dispersion <= 1:
            return rng.poisson(mean).astype(float)
        excess = self.dispersion - 1.0
        rate = rng.gamma(np.maximum(mean / excess, 1e-12), excess)
        return rng.poisson(rate).astype(float)
