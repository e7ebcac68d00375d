"""Latency of one replica against its load.

A `Profile` gives TTFT and TBOT (ms) and the capacity of one replica as functions of its load in work/s:
requests per second of the request it was measured with. The planner needs the congestion terms
A(l) = l·(TTFT(l) − TTFT(0)) and B(l) = l·(TBOT(l) − TBOT(0)) convex; both curves here are so by
construction. Source: DESIGN plan page, "Profiles"; the harmonic law is the stationary solution of a step-time
model of continuous batching.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from optimizer.convex import isotonic, lower_hull
from optimizer.errors import ProblemError, check_number

Array = npt.NDArray[np.float64]
Values = float | Array
"""One number, or one for each load."""

POLE_MARGIN = 0.98
"""Largest part of the pole λmax that an engine may be planned up to."""


@dataclass(frozen=True, slots=True)
class Harmonic:
    """TBOT(l) = t0/(1 − u), TTFT(l) = base + slope·max(0, l − knee) + queue·u/(1 − u), u = l/λmax.

    `t0_ms`, `base_ms`, `queue_ms` in ms, `lambda_max_rps` and `knee_rps` in work/s per replica, `slope` in
    ms per work/s.
    """

    lambda_max_rps: float
    t0_ms: float = 0.0
    base_ms: float = 0.0
    knee_rps: float = 0.0
    slope: float = 0.0
    queue_ms: float = 0.0

    def __post_init__(self) -> None:
        check_number("lambda_max_rps", self.lambda_max_rps, above=True)
        for name in ("t0_ms", "base_ms", "knee_rps", "slope", "queue_ms"):
            check_number(name, getattr(self, name))

    @property
    def pole_rps(self) -> float:
        """Load at which latency is infinite."""
        return self.lambda_max_rps if self.t0_ms or self.queue_ms else math.inf

    @property
    def corners(self) -> tuple[float, ...]:
        """Loads at which a slope jumps."""
        return (self.knee_rps,) if self.slope else ()

    def latency(self, load: Array) -> tuple[Array, Array]:
        """(TTFT, TBOT) in ms at `load`; infinite from the pole on."""
        return harmonic_latency(load, *self.parameters)

    def congestion(self, load: Array) -> tuple[Array, Array, Array, Array]:
        """(A, A′, B, B′) at `load`, infinite from the pole on; at a corner the slope from the left."""
        return harmonic_congestion(load, *self.parameters)

    @property
    def parameters(self) -> tuple[float, float, float, float, float, float]:
        """In the order that the functions below take them."""
        return self.lambda_max_rps, self.t0_ms, self.base_ms, self.knee_rps, self.slope, self.queue_ms


def harmonic_latency(
    load: Array, pole: Values, t0: Values, base: Values, knee: Values, slope: Values, queue: Values
) -> tuple[Array, Array]:
    """As `Harmonic.latency`; every parameter is one number, or one for each load."""
    ratio = _ratio(load, pole, t0, queue)
    ttft = base + slope * np.maximum(0.0, load - knee) + times(queue, ratio)
    return ttft, times(t0, 1.0 + ratio)


def harmonic_congestion(
    load: Array, pole: Values, t0: Values, base: Values, knee: Values, slope: Values, queue: Values
) -> tuple[Array, Array, Array, Array]:
    """As `Harmonic.congestion`; every parameter is one number, or one for each load."""
    ratio = _ratio(load, pole, t0, queue)
    rise = ratio + ratio * (1.0 + ratio)
    above = slope * np.maximum(0.0, load - knee)
    a = load * above + times(queue * load, ratio)
    da = above + slope * load * (load > knee) + times(queue, rise)
    return a, da, times(t0 * load, ratio), times(t0, rise)


def _ratio(load: Array, pole: Values, t0: Values, queue: Values) -> Array:
    """u/(1 − u), infinite from the pole on; 0 where nothing has a pole."""
    u = load / pole
    ratio = np.where(u < 1.0, u / np.where(u < 1.0, 1.0 - u, 1.0), np.inf)
    return np.where(np.greater(t0, 0.0) | np.greater(queue, 0.0), ratio, 0.0)


def times(weight: Values, value: Array) -> Array:
    """weight·value, with 0·∞ = 0: what is not asked for costs nothing."""
    out: Array = np.multiply(weight, value, out=np.zeros_like(value), where=np.greater(weight, 0.0))
    return out


@dataclass(frozen=True, slots=True)
class Table:
    """Measured points (load, TTFT ms, TBOT ms), made monotone and convex.

    Each latency is first made non-decreasing (isotonic regression), interpolated linearly, and its
    congestion term replaced by the lower convex envelope. Beyond the last point the last slope goes on.
    """

    points: tuple[tuple[float, float, float], ...]
    _hull: tuple[Array, Array, Array] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.points:
            raise ProblemError("table", "is empty; expected at least one (load, TTFT, TBOT) point")
        for i, point in enumerate(self.points):
            for name, value in zip(("load_rps", "ttft_ms", "tbot_ms"), point, strict=True):
                check_number(f"table[{i}].{name}", value)
        loads = [point[0] for point in self.points]
        if len(set(loads)) != len(loads):
            raise ProblemError("table", f"a load appears twice in {loads}; expected each load once")
        object.__setattr__(self, "_hull", self._envelope())

    def _envelope(self) -> tuple[Array, Array, Array]:
        points = np.array(sorted(self.points), dtype=float)
        loads = points[:, 0]
        end = loads[-1] if loads[-1] > 0 else 1.0
        fine = np.linspace(0.0, end, 4097)
        terms = []
        for column in (1, 2):
            latency = np.interp(fine, loads, isotonic(points[:, column]))
            terms.append(lower_hull(fine, fine * (latency - latency[0])))
        return fine, terms[0], terms[1]

    @property
    def pole_rps(self) -> float:
        """A table has no pole."""
        return math.inf

    @property
    def corners(self) -> tuple[float, ...]:
        """Loads at which a slope jumps: none that matter at the resolution of the envelope."""
        return ()

    def _idle(self) -> tuple[float, float]:
        points = np.array(sorted(self.points), dtype=float)
        return float(isotonic(points[:, 1])[0]), float(isotonic(points[:, 2])[0])

    def congestion(self, load: Array) -> tuple[Array, Array, Array, Array]:
        """(A, A′, B, B′) at `load`; slopes from the left."""
        fine, a, b = self._hull
        cell = np.clip(np.searchsorted(fine, load, side="left") - 1, 0, len(fine) - 2)
        step = fine[cell + 1] - fine[cell]
        out = []
        for term in (a, b):
            slope = (term[cell + 1] - term[cell]) / step
            out += [term[cell] + slope * (load - fine[cell]), slope]
        return out[0], out[1], out[2], out[3]

    def latency(self, load: Array) -> tuple[Array, Array]:
        """(TTFT, TBOT) in ms at `load`."""
        a, _, b, _ = self.congestion(load)
        safe = np.maximum(load, 1e-12)
        ttft0, tbot0 = self._idle()
        return ttft0 + np.where(load > 0, a / safe, 0.0), tbot0 + np.where(load > 0, b / safe, 0.0)


@dataclass(frozen=True, slots=True)
class Profile:
    """One replica of an engine: its latency curve and how much work/s it takes within its SLOs."""

    capacity_rps: float
    curve: Harmonic | Table

    def __post_init__(self) -> None:
        check_number("capacity_rps", self.capacity_rps, above=True)

    @classmethod
    def parametric(
        cls,
        *,
        capacity_rps: float,
        lambda_max_rps: float,
        t0_ms: float = 0.0,
        ttft_base_ms: float = 0.0,
        ttft_knee_rps: float = 0.0,
        ttft_slope: float = 0.0,
        ttft_queue_ms: float = 0.0,
    ) -> Profile:
        """A harmonic profile; see `Harmonic` for the formulas and units."""
        curve = Harmonic(
            lambda_max_rps,
            t0_ms,
            ttft_base_ms,
            ttft_knee_rps,
            ttft_slope,
            ttft_queue_ms,
        )
        return cls(capacity_rps, curve)

    @classmethod
    def from_table(
        cls,
        points: Sequence[tuple[float, float, float]],
        capacity_rps: float | None = None,
    ) -> Profile:
        """A profile from measured (load work/s, TTFT ms, TBOT ms) points in any order.

        Without `capacity_rps` the largest measured load is the capacity.
        """
        curve = Table(tuple((float(a), float(b), float(c)) for a, b, c in points))
        return cls(
            max(point[0] for point in points) if capacity_rps is None else capacity_rps,
            curve,
        )

    def ttft_ms(self, load_rps: float) -> float:
        """Time to first token at a load of one replica, in ms; infinite at the pole."""
        return float(self.curve.latency(np.array([load_rps], dtype=float))[0][0])

    def tbot_ms(self, load_rps: float) -> float:
        """Time between output tokens at a load of one replica, in ms; infinite at the pole."""
        return float(self.curve.latency(np.array([load_rps], dtype=float))[1][0])

    def capacity_for(self, *, ttft_ms: float | None = None, tbot_ms: float | None = None) -> float:
        """The largest load of one replica within both SLOs, at most `capacity_rps`; 0 when none is."""

        def meets(load: float) -> bool:
            within_ttft = ttft_ms is None or self.ttft_ms(load) <= ttft_ms
            return within_ttft and (tbot_ms is None or self.tbot_ms(load) <= tbot_ms)

        if meets(self.capacity_rps):
            return self.capacity_rps
        low, high = 0.0, self.capacity_rps
        if not meets(low):
            return 0.0
        for _ in range(60):
            mid = (low + high) / 2
            low, high = (mid, high) if meets(mid) else (low, mid)
        return low

    def check_limit(self, field: str, limit_rps: float) -> None:
        """Refuse planning a replica up to `limit_rps` when that is too near the pole of its curve."""
        if limit_rps >= POLE_MARGIN * self.curve.pole_rps:
            raise ProblemError(
                field,
                f"capacity × max_utilization = {limit_rps:g} work/s is not below {POLE_MARGIN} × λmax"
                f" ({self.curve.pole_rps:g}); lower capacity_rps or max_utilization",
            )

    def to_dict(self) -> dict[str, Any]:
        """The profile as the policy file writes it."""
        if isinstance(self.curve, Table):
            rows = [
                {"load_rps": load, "ttft_ms": ttft, "tbot_ms": tbot} for load, ttft, tbot in self.curve.points
            ]
            return {"capacity_rps": self.capacity_rps, "table": rows}
        curve = self.curve
        ttft: dict[str, float] = {
            "base": curve.base_ms,
            "knee_rps": curve.knee_rps,
            "slope": curve.slope,
        }
        if curve.queue_ms:
            ttft["queue"] = curve.queue_ms
        return {
            "t0_ms": curve.t0_ms,
            "lambda_max_rps": curve.lambda_max_rps,
            "capacity_rps": self.capacity_rps,
            "ttft_ms": ttft,
        }
