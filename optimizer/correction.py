"""Slow online correction of a profile from what replicas report.

Three numbers stretch a profile: a factor on TBOT, a factor on load (λmax, knee and capacity together) and an
offset on TTFT. Any of their values leaves the curve monotone and convex. They follow the residuals of many
minutes, within bounds, and can be frozen; load is never stretched above the profile unless allowed, because a
report must not be able to attract traffic (DESIGN, signals). What plans use follows what was learned in steps
worth planning again for (`followed`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from optimizer.errors import check_number
from optimizer.profile import Harmonic, Profile, Table

FOLLOW_FACTOR = 0.04
FOLLOW_MS = 10.0
"""Plans go on with the correction they have until the learned one differs by as much."""
_FULL = 0.98
"""Part of a capacity that is surely below the pole of a profile that may be planned with."""
STEP_FACTOR = 0.02
STEP_MS = 5.0
"""Corrections are applied in such steps, so that few different curves have to be planned with."""


@dataclass(frozen=True, slots=True)
class Learning:
    """How fast and how far a correction may go."""

    half_life_s: float = 600.0
    """Age at which a sample counts half."""
    prior_s: float = 120.0
    """Seconds of samples that the profile itself is worth."""
    tbot_factor: tuple[float, float] = (0.5, 2.0)
    load_factor: tuple[float, float] = (0.5, 1.0)
    ttft_offset_ms: tuple[float, float] = (-500.0, 2000.0)


@dataclass(frozen=True, slots=True)
class Correction:
    """What was learned of one engine's replicas; immutable, `update` returns the next one."""

    tbot_factor: float = 1.0
    load_factor: float = 1.0
    ttft_offset_ms: float = 0.0
    frozen: bool = False
    """True: samples change nothing."""
    moments: tuple[float, float, float, float, float] = (0.0, 0.0, 0.0, 0.0, 0.0)
    """Discounted seconds, and their sums of u, u², y, u·y; u = load/capacity, y = TBOT(0)/TBOT."""

    def update(
        self,
        profile: Profile,
        *,
        load_rps: float,
        dt_s: float,
        tbot_ms: float | None = None,
        ttft_ms: float | None = None,
        learning: Learning | None = None,
    ) -> Correction:
        """The correction after `dt_s` at a load of one replica with these mean latencies.

        Missing, non-finite or non-positive latencies are left out; they are not zero.
        """
        if self.frozen or not math.isfinite(load_rps) or load_rps < 0 or not dt_s > 0:
            return self
        how = learning or Learning()
        fade = 0.5 ** (dt_s / how.half_life_s)
        moments = self.moments
        _, (idle, full) = profile.curve.latency(np.array([0.0, _FULL * profile.capacity_rps]))
        if tbot_ms is not None and math.isfinite(tbot_ms) and tbot_ms > 0 and idle > 0:
            u, y = load_rps / profile.capacity_rps, float(idle) / tbot_ms
            sample = (dt_s, dt_s * u, dt_s * u * u, dt_s * y, dt_s * u * y)
            moments = tuple(fade * old + new for old, new in zip(moments, sample, strict=True))
        factor, load_factor = _line(float(idle), float(full), moments, how)
        learned = dataclasses.replace(self, moments=moments, tbot_factor=factor, load_factor=load_factor)
        if ttft_ms is None or not math.isfinite(ttft_ms) or ttft_ms <= 0:
            return learned
        expected = profile.ttft_ms(load_rps / load_factor)
        if not math.isfinite(expected):
            return learned
        step = (1.0 - fade) * (ttft_ms - expected - self.ttft_offset_ms)
        return dataclasses.replace(
            learned, ttft_offset_ms=_clip(self.ttft_offset_ms + step, how.ttft_offset_ms)
        )

    def apply(self, profile: Profile) -> Profile:
        """The corrected profile, in steps of 2 % and 5 ms so that plans do not follow every sample."""
        tbot_factor, f = _stepped(self.tbot_factor, STEP_FACTOR), _stepped(self.load_factor, STEP_FACTOR)
        offset = _stepped(self.ttft_offset_ms, STEP_MS)
        if tbot_factor == 1.0 and f == 1.0 and offset == 0.0:
            return profile
        curve = profile.curve
        if isinstance(curve, Table):
            points = [
                (load * f, max(0.0, ttft + offset), tbot * tbot_factor) for load, ttft, tbot in curve.points
            ]
            return Profile(profile.capacity_rps * f, Table(tuple(points)))
        return Profile(
            profile.capacity_rps * f,
            Harmonic(
                lambda_max_rps=curve.lambda_max_rps * f,
                t0_ms=curve.t0_ms * tbot_factor,
                base_ms=max(0.0, curve.base_ms + offset),
                knee_rps=curve.knee_rps * f,
                slope=curve.slope / f,
                queue_ms=curve.queue_ms,
            ),
        )

    @property
    def neutral(self) -> bool:
        """Whether it leaves profiles as they are."""
        return (self.tbot_factor, self.load_factor, self.ttft_offset_ms) == (1.0, 1.0, 0.0)

    @property
    def text(self) -> str:
        """What it does to a profile, for an operator."""
        return (
            f"TBOT ×{self.tbot_factor:.2f}, load ×{self.load_factor:.2f}, TTFT {self.ttft_offset_ms:+.0f} ms"
        )

    def freeze(self, frozen: bool = True) -> Correction:
        """The same correction, deaf to samples or listening again."""
        return dataclasses.replace(self, frozen=frozen)


def followed(used: Correction, learned: Correction) -> Correction:
    """What to plan with after `used`: that itself until something worth planning for was learned.

    Every new correction makes a new curve, which must be planned from scratch and may move traffic.
    """
    near = (
        abs(learned.tbot_factor - used.tbot_factor) < FOLLOW_FACTOR
        and abs(learned.load_factor - used.load_factor) < FOLLOW_FACTOR
        and abs(learned.ttft_offset_ms - used.ttft_offset_ms) < FOLLOW_MS
    )
    if near:
        return used
    return Correction(
        tbot_factor=_stepped(learned.tbot_factor, STEP_FACTOR),
        load_factor=_stepped(learned.load_factor, STEP_FACTOR),
        ttft_offset_ms=_stepped(learned.ttft_offset_ms, STEP_MS),
    )


def _line(
    idle: float, full: float, moments: tuple[float, float, float, float, float], how: Learning
) -> tuple[float, float]:
    """(TBOT factor, load factor) of the line y = a − b·u through samples and prior; `idle` and `full`: the
    profile's TBOT at no load and at `_FULL` of its capacity."""
    if idle <= 0 or moments[0] <= 0:
        return 1.0, 1.0
    b0 = (1.0 - idle / full) / _FULL
    # The prior: the profile's own line, seen at an idle and at a full replica.
    n, su, suu, sy, suy = (
        m + how.prior_s / 2 * p for m, p in zip(moments, (2.0, 1.0, 1.0, 2.0 - b0, 1.0 - b0), strict=True)
    )
    spread = n * suu - su * su
    b = (su * sy - n * suy) / spread
    a = (sy + b * su) / n
    if a <= 0:
        return how.tbot_factor[1], how.load_factor[0]
    load_factor = (a / b) * b0 if b > 1e-9 and b0 > 1e-9 else 1.0
    return _clip(1.0 / a, how.tbot_factor), _clip(load_factor, how.load_factor)


def _stepped(value: float, step: float) -> float:
    return round(round(value / step) * step, 6)


def _clip(value: float, bounds: tuple[float, float]) -> float:
    return min(bounds[1], max(bounds[0], value))


def ramped_replicas(ages_s: Iterable[float], ramp_s: float = 60.0, start: float = 0.1) -> float:
    """Ready replicas, where a new one counts from `start` up to 1 over `ramp_s` while its caches fill."""
    check_number("ramp_s", ramp_s)
    return sum(
        1.0 if ramp_s <= 0 else min(1.0, start + (1.0 - start) * max(0.0, age) / ramp_s) for age in ages_s
    )


def with_exploration(
    shares: Mapping[str, Mapping[str, Mapping[str, float]]],
    unknown: Collection[str],
    candidates: Mapping[str, tuple[str, str]],
    part: float = 0.01,
) -> dict[str, dict[str, dict[str, float]]]:
    """Shares in which every engine nobody knows anything of gets a trickle, so that it can be known.

    Args:
        shares: a plan's.
        unknown: engines without a sample.
        candidates: engine -> the (front-end, key) that may send it the trickle: eligible, near and large.
        part: of that row's demand.
    """
    out = {f: {k: dict(row) for k, row in rows.items()} for f, rows in shares.items()}
    loaded = {
        name for rows in shares.values() for row in rows.values() for name, share in row.items() if share > 0
    }
    for engine in sorted(set(unknown) - loaded):
        if engine not in candidates:
            continue
        frontend, key = candidates[engine]
        row = out[frontend][key]
        for name in row:
            row[name] *= 1.0 - part
        row[engine] = part
    return out
