"""From measurements of one replica to a profile, with how well it fits.

TBOT of continuous batching follows t0/(1 − λ/λmax), so 1/TBOT is a straight line in the load λ: ordinary
least squares gives t0 and λmax with their errors. Past the knee, where queues grow and TBOT no longer does,
the law ends: loads there are left out. TTFT is made monotone and fitted by a hinge. Where the law does not
hold (short answers, mixture-of-experts), the monotone, convex table of the measurements is the profile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimizer.convex import isotonic, lower_hull
from optimizer.errors import ProblemError, check_number
from optimizer.profile import POLE_MARGIN, Profile

Array = npt.NDArray[np.float64]

TABLE_ABOVE = 0.15
"""Mean relative error of TBOT under the law from which a table is the better profile."""

KNEE_ABOVE = 0.06
"""Mean relative error of TBOT from which the largest load is taken to be past the knee."""

QUEUE_ABOVE = 8.0
"""TTFT over the least one from which a load is taken to be past the knee."""

UNBOUNDED = 100.0
"""λmax over the largest measured load, when TBOT does not rise with load."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One load of a replica: requests/s, mean TTFT and TBOT in ms."""

    load_rps: float
    ttft_ms: float
    tbot_ms: float


@dataclass(frozen=True, slots=True)
class Fit:
    """A profile and its quality. Errors are one standard error; NaN with too few points to tell."""

    profile: Profile
    form: str
    """`parametric` or `table`."""
    t0_ms: float
    t0_error_ms: float
    lambda_max_rps: float
    lambda_max_error_rps: float
    r_squared: float
    """Of the line 1/TBOT."""
    tbot_error: float
    """Mean relative error of the profile's TBOT at the measured loads."""
    ttft_error: float
    points: int
    notes: tuple[str, ...]


def fit_profile(
    measurements: Sequence[Measurement],
    *,
    ttft_slo_ms: float | None = None,
    tbot_slo_ms: float | None = None,
    form: str = "auto",
) -> Fit:
    """Fit a profile.

    Args:
        measurements: in any order; equal loads are averaged.
        ttft_slo_ms: the capacity is the largest load within it.
        tbot_slo_ms: likewise.
        form: `parametric`, `table`, or `auto`: a table when the law misses by more than `TABLE_ABOVE`.

    Raises:
        ProblemError: fewer than two distinct loads, a value out of range, or SLOs that no load meets.
    """
    if form not in ("auto", "parametric", "table"):
        raise ProblemError("form", f"{form!r}; expected auto, parametric or table")
    load, ttft, tbot = _clean(measurements)
    notes: list[str] = []
    kept = _before_the_knee(load, ttft, tbot)
    if kept < len(load) and form != "table":
        notes.append(f"loads above {load[kept - 1]:.4g} requests/s are past the knee and left out of the law")
    line = _line(load[:kept], tbot[:kept], notes)
    base, knee, slope = hinge(load[:kept], isotonic(ttft[:kept]))
    capacity = min(float(load[kept - 1]), 0.95 * line.lambda_max)
    law = Profile.parametric(
        capacity_rps=capacity,
        lambda_max_rps=line.lambda_max,
        t0_ms=line.t0,
        ttft_base_ms=base,
        ttft_knee_rps=knee,
        ttft_slope=slope,
    )
    inside = np.flatnonzero(load[:kept] < line.lambda_max)
    miss = _error(law, load[inside], ttft[inside], tbot[inside])[0] if len(inside) == kept else math.inf
    if form == "auto":
        form = "table" if miss > TABLE_ABOVE else "parametric"
        if form == "table":
            notes.append(f"TBOT misses the law by {miss:.0%}: the measurements themselves are the profile")
    profile = law if form == "parametric" else _table(load, ttft, tbot)
    profile = _within_slos(profile, ttft_slo_ms, tbot_slo_ms)
    if np.any(np.diff(tbot) < 0) or np.any(np.diff(ttft) < 0):
        notes.append("latency falls somewhere as load rises: made monotone")
    used = load <= (load[kept - 1] if form == "parametric" else load[-1])
    tbot_error, ttft_error = _error(profile, load[used], ttft[used], tbot[used])
    return Fit(
        profile=profile,
        form=form,
        t0_ms=line.t0,
        t0_error_ms=line.t0_error,
        lambda_max_rps=line.lambda_max,
        lambda_max_error_rps=line.lambda_max_error,
        r_squared=line.r_squared,
        tbot_error=tbot_error,
        ttft_error=ttft_error,
        points=len(load),
        notes=tuple(notes),
    )


def little_rps(concurrency: float, ttft_ms: float, tbot_ms: float, output_tokens: float) -> float:
    """Requests/s of a closed loop of `concurrency` users, by Little's law."""
    check_number("concurrency", concurrency, above=True)
    check_number("output_tokens", output_tokens, above=True)
    return 1e3 * concurrency / (ttft_ms + max(0.0, output_tokens - 1.0) * tbot_ms)


def _clean(measurements: Sequence[Measurement]) -> tuple[Array, Array, Array]:
    for i, point in enumerate(measurements):
        check_number(f"measurements[{i}].load_rps", point.load_rps)
        check_number(f"measurements[{i}].ttft_ms", point.ttft_ms)
        check_number(f"measurements[{i}].tbot_ms", point.tbot_ms, above=True)
    rows = np.array([(p.load_rps, p.ttft_ms, p.tbot_ms) for p in measurements], dtype=float).reshape(-1, 3)
    loads, of = np.unique(rows[:, 0], return_inverse=True)
    if len(loads) < 2:
        raise ProblemError(
            "measurements", f"{len(loads)} distinct load(s); how latency rises needs at least two"
        )
    count = np.bincount(of)
    return loads, np.bincount(of, rows[:, 1]) / count, np.bincount(of, rows[:, 2]) / count


def _before_the_knee(load: Array, ttft: Array, tbot: Array) -> int:
    """How many loads, from the least, follow the law: none is dropped below four."""
    kept = len(load)
    while kept > 4:
        line = _line(load[:kept], tbot[:kept], [])
        fitted = line.t0 / np.maximum(1e-9, 1.0 - load[:kept] / line.lambda_max)
        queued = ttft[kept - 1] > QUEUE_ABOVE * ttft[:kept].min()
        if not queued and float(np.mean(np.abs(fitted - tbot[:kept]) / tbot[:kept])) <= KNEE_ABOVE:
            return kept
        kept -= 1
    return len(load)  # nothing like the law anywhere: let the table decide


@dataclass(frozen=True, slots=True)
class _Line:
    t0: float
    t0_error: float
    lambda_max: float
    lambda_max_error: float
    r_squared: float


def _line(load: Array, tbot: Array, notes: list[str]) -> _Line:
    """1/TBOT = a − b·load by least squares; t0 = 1/a, λmax = a/b, errors by the delta method."""
    design = np.stack([np.ones_like(load), -load], axis=1)
    inverse = 1.0 / tbot
    a, b = np.linalg.lstsq(design, inverse, rcond=None)[0]
    residual = inverse - design @ np.array([a, b])
    spread = float(((inverse - inverse.mean()) ** 2).sum())
    r_squared = 1.0 - float((residual**2).sum()) / spread if spread > 1e-12 * inverse.mean() ** 2 else 1.0
    if b <= 1e-9 * a / load[-1] or a <= 0:
        notes.append("TBOT does not rise with load: λmax is unknown, taken far beyond the measured loads")
        return _Line(float(np.mean(tbot)), math.nan, UNBOUNDED * float(load[-1]), math.nan, r_squared)
    free = len(load) - 2
    if free < 1:
        return _Line(1.0 / a, math.nan, a / b, math.nan, r_squared)
    covariance = np.linalg.inv(design.T @ design) * float((residual**2).sum()) / free
    at = np.array([1.0 / b, -a / b**2])
    return _Line(
        t0=1.0 / a,
        t0_error=math.sqrt(covariance[0, 0]) / a**2,
        lambda_max=a / b,
        lambda_max_error=math.sqrt(float(at @ covariance @ at)),
        r_squared=r_squared,
    )


def hinge(load: Array, value: Array) -> tuple[float, float, float]:
    """(base, knee, slope) of base + slope·max(0, load − knee) with least squares, slope ≥ 0."""
    best = (math.inf, float(value.mean()), 0.0, 0.0)
    for knee in np.unique(np.concatenate([load[:-1], (load[1:] + load[:-1]) / 2])):
        over = np.maximum(0.0, load - knee)
        design = np.stack([np.ones_like(load), over], axis=1)
        base, slope = np.linalg.lstsq(design, value, rcond=None)[0]
        if slope < 0 or base < 0:
            base, slope = max(0.0, float(value.mean())), 0.0
        miss = float(((base + slope * over - value) ** 2).sum())
        if miss < best[0] * (1.0 - 1e-9):
            best = (miss, float(base), float(knee), float(slope))
    _, base, knee, slope = best
    return (base, knee, slope) if slope > 0 else (base, 0.0, 0.0)


def _table(load: Array, ttft: Array, tbot: Array) -> Profile:
    """The measurements, monotone and convex, from an idle replica to the largest load."""
    if load[0] > 0:
        load = np.concatenate([[0.0], load])
        ttft, tbot = np.concatenate([ttft[:1], ttft]), np.concatenate([tbot[:1], tbot])
    columns = [lower_hull(load, isotonic(value)) for value in (ttft, tbot)]
    return Profile.from_table(list(zip(load.tolist(), *(c.tolist() for c in columns), strict=True)))


def _within_slos(profile: Profile, ttft_slo_ms: float | None, tbot_slo_ms: float | None) -> Profile:
    pole = profile.curve.pole_rps
    capacity = min(profile.capacity_rps, 0.999 * POLE_MARGIN * pole)
    profile = Profile(capacity, profile.curve)
    within = profile.capacity_for(ttft_ms=ttft_slo_ms, tbot_ms=tbot_slo_ms)
    if within <= 0:
        raise ProblemError(
            "slo",
            f"no load meets it: an idle replica has TTFT {profile.ttft_ms(0):.1f} ms,"
            f" TBOT {profile.tbot_ms(0):.1f} ms",
        )
    return Profile(within, profile.curve)


def _error(profile: Profile, load: Array, ttft: Array, tbot: Array) -> tuple[float, float]:
    """Mean relative errors of TBOT and TTFT."""
    fitted_ttft, fitted_tbot = profile.curve.latency(load)
    return (
        float(np.mean(np.abs(fitted_tbot - tbot) / tbot)),
        float(np.mean(np.abs(fitted_ttft - ttft) / np.maximum(ttft, 1e-9))),
    )
