"""Penalties for units (replicas, or whole engines) that are slower than they should be at their load.

The measure is the residual r = observed / predicted at that load, never raw latency: raw latency grows with
the very load that a penalty moves away, which makes a feedback loop that oscillates. Within a group (an
engine's replicas, or a model's engines) the residual is taken relative to the group's lower median where
that exceeds 1: when all are slow it is the prediction that is wrong, and nobody is penalised.

| step | rule |
|---|---|
| smooth | r is averaged in logarithms with time constant `smooth_s` |
| enter | r >= `enter` without a break for `dwell_s`: the penalty is halved, and again every `dwell_s` |
| hold | between `leave` and `enter` nothing changes (hysteresis) |
| leave | r <= `leave` for `dwell_s`: the penalty returns by `step` every `dwell_s` |
| fail | connect failure or hard 5xx: `floor` at once, returns like the others; 4xx and overload never count |
| unknown | no residual for `stale_s`: returns by `step` every `stale_s`, so that no penalty is for ever |
| bounds | never below `floor`; at most `most` of a group below 1 at once, and nobody in a group of one |
| hand | an operator's hold overrides all of it until it expires or is released |

The penalty multiplies a replica's EDS weight, or an engine's effective capacity. Pure; monotonic seconds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from statistics import median_low
from typing import Generic, TypeVar

Unit = TypeVar("Unit")


class Cause(Enum):
    """Why a unit's penalty is what it is."""

    NONE = "none"
    SLOW = "slow"
    FAILING = "failing"
    RETURNING = "returning"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class OutlierSettings:
    """Thresholds; see the table above."""

    enter: float = 2.0
    leave: float = 1.3
    dwell_s: float = 10.0
    smooth_s: float = 5.0
    floor: float = 0.1
    step: float = 0.1
    stale_s: float = 60.0
    most: float = 0.5


@dataclass(frozen=True, slots=True)
class Hold:
    """An operator's hand on a unit."""

    penalty: float
    reason: str
    until: float


@dataclass(frozen=True, slots=True)
class Penalty:
    """A unit's penalty and why."""

    value: float
    """Fraction of a healthy unit's traffic or capacity, in [floor, 1]."""
    cause: Cause
    residual: float | None
    """Smoothed, relative to the group; None without a recent one."""
    since: float
    """When the cause began."""
    hold: Hold | None = None

    @property
    def explanation(self) -> str:
        """One line for an operator."""
        if self.hold is not None:
            return f"held at {self.hold.penalty:g} by hand: {self.hold.reason}"
        seen = "unknown" if self.residual is None else f"{self.residual:.2f} times the prediction"
        return f"{self.value:.2f} ({self.cause.value}): {seen}"


@dataclass(frozen=True, slots=True)
class SavedPenalty(Generic[Unit]):
    """A penalty as saved state keeps it: no time of this process's clock in it."""

    unit: Unit
    group: str
    value: float
    hold: Hold | None
    """`until` is what is left of it, in seconds."""


@dataclass(slots=True)
class _Track:
    group: str
    log_residual: float | None = None
    vouched: bool = False
    """The residual is not measured."""
    seen_at: float = 0.0
    over_since: float | None = None
    under_since: float | None = None
    value: float = 1.0
    cause: Cause = Cause.NONE
    since: float = 0.0
    moved_at: float = -math.inf
    hold: Hold | None = None

    def move(self, value: float, cause: Cause, now: float) -> None:
        if cause is not self.cause:
            self.cause, self.since = cause, now
        self.value, self.moved_at = value, now


class OutlierDetector(Generic[Unit]):
    """Penalties of all units. The only owner of that state."""

    def __init__(self, settings: OutlierSettings | None = None) -> None:
        self.settings = settings or OutlierSettings()
        """Thresholds; may be replaced at any time."""
        self._tracks: dict[Unit, _Track] = {}
        self._present: frozenset[Unit] | None = None
        """Who could serve; None: whoever was observed."""

    def observe(self, unit: Unit, group: str, residual: float, now: float) -> None:
        """Take one measurement: observed / predicted. Ignored unless finite and positive."""
        if not (math.isfinite(residual) and residual > 0):
            return
        track = self._track(unit, group, now)
        value = math.log(residual)
        if track.log_residual is None or now - track.seen_at > self.settings.stale_s:
            track.log_residual = value
        else:
            keep = math.exp(-(now - track.seen_at) / self.settings.smooth_s)
            track.log_residual += (1.0 - keep) * (value - track.log_residual)
        track.seen_at, track.vouched = now, False

    def fail(self, unit: Unit, group: str, now: float) -> None:
        """A connect failure or hard 5xx that Envoys saw: penalised at once."""
        track = self._track(unit, group, now)
        if self._may_penalise(track):
            track.move(self.settings.floor, Cause.FAILING, now)
            # What was measured before says nothing of how it is now.
            track.log_residual, track.seen_at, track.under_since = None, now, None

    def know(self, groups: Mapping[Unit, str], now: float) -> None:
        """Take the units that could serve now, by group: `most` is of these, whether observed or not."""
        self._present = frozenset(groups)
        for unit, group in groups.items():
            self._track(unit, group, now)

    def vouch(self, unit: Unit, group: str, now: float) -> None:
        """A unit that failed is seen to serve: as good as a residual of 1, where there is none."""
        track = self._track(unit, group, now)
        if track.value < 1.0 and (track.log_residual is None or track.vouched):
            self.observe(unit, group, 1.0, now)
            track.vouched = True

    def update(self, now: float) -> None:
        """Move the penalties, the slowest units first; call it every round."""
        relative = self._relative(now)
        for unit, track in sorted(self._tracks.items(), key=lambda item: -relative.get(item[0], 0.0)):
            if track.hold is not None and now >= track.hold.until:
                track.hold = None
            self._update(track, relative.get(unit), now)

    def hold(self, unit: Unit, group: str, hold: Hold, now: float) -> None:
        """An operator sets a penalty in [0, 1] by hand, until `hold.until`. ValueError without a reason."""
        if not hold.reason:
            raise ValueError("a hold needs a reason")
        if not 0.0 <= hold.penalty <= 1.0:
            raise ValueError(f"a penalty is a fraction in [0, 1], not {hold.penalty:g}")
        self._track(unit, group, now).hold = hold

    def release(self, unit: Unit) -> None:
        """Take the operator's hand, and any penalty, off a unit. KeyError when it is not known."""
        track = self._tracks[unit]
        self._tracks[unit] = _Track(track.group, track.log_residual, seen_at=track.seen_at)

    def retain(self, units: Collection[Unit]) -> None:
        """Forget every unit that is not among `units`."""
        self._tracks = {unit: track for unit, track in self._tracks.items() if unit in units}

    def penalties(self, now: float) -> dict[Unit, Penalty]:
        """Every known unit's penalty, with its explanation."""
        relative = self._relative(now)
        return {unit: _penalty(track, relative.get(unit), now) for unit, track in self._tracks.items()}

    def save(self, now: float) -> list[SavedPenalty[Unit]]:
        """What a restart should know: penalties below 1, and holds."""
        return [
            SavedPenalty(unit, track.group, track.value, track.hold and _shifted(track.hold, -now))
            for unit, track in self._tracks.items()
            if track.value < 1.0 or track.hold is not None
        ]

    def restore(self, saved: Iterable[SavedPenalty[Unit]], now: float) -> None:
        """Take up an earlier run's penalties; they return by the rules."""
        for entry in saved:
            track = self._track(entry.unit, entry.group, now)
            track.move(min(max(entry.value, self.settings.floor), 1.0), Cause.RETURNING, now)
            track.hold = entry.hold and _shifted(entry.hold, now)

    def _track(self, unit: Unit, group: str, now: float) -> _Track:
        track = self._tracks.get(unit)
        if track is None or track.group != group:
            track = self._tracks[unit] = _Track(group, since=now)
        return track

    def _relative(self, now: float) -> dict[Unit, float]:
        """The residuals against those of their groups, of units with a recent one."""
        fresh = {
            unit: (track.group, track.log_residual)
            for unit, track in self._tracks.items()
            if track.log_residual is not None and now - track.seen_at <= self.settings.stale_s
        }
        groups: dict[str, list[float]] = {}
        for group, value in fresh.values():
            groups.setdefault(group, []).append(value)
        base = {group: max(0.0, median_low(values)) for group, values in groups.items()}
        return {unit: math.exp(value - base[group]) for unit, (group, value) in fresh.items()}

    def _update(self, track: _Track, relative: float | None, now: float) -> None:
        settings = self.settings
        over = relative is not None and relative >= settings.enter
        under = relative is not None and relative <= settings.leave
        track.over_since = _since(track.over_since, now) if over else None
        track.under_since = _since(track.under_since, now) if under else None
        if over:
            if self._due(track, track.over_since, now, settings.dwell_s) and self._may_penalise(track):
                track.move(max(settings.floor, track.value / 2), Cause.SLOW, now)
        elif under:
            self._give_back_if(self._due(track, track.under_since, now, settings.dwell_s), track, now)
        elif relative is None:
            self._give_back_if(self._due(track, track.seen_at, now, settings.stale_s), track, now)

    @staticmethod
    def _due(track: _Track, since: float | None, now: float, pause_s: float) -> bool:
        return since is not None and now - since >= pause_s and now - track.moved_at >= pause_s

    def _give_back_if(self, due: bool, track: _Track, now: float) -> None:
        if due and track.value < 1.0:
            value = min(1.0, round(track.value + self.settings.step, 6))
            track.move(value, Cause.NONE if value == 1.0 else Cause.RETURNING, now)

    def _may_penalise(self, track: _Track) -> bool:
        """A unit that is penalised already, or one more that leaves most of its group alone."""
        group = [
            other
            for unit, other in self._tracks.items()
            if other.group == track.group and (self._present is None or unit in self._present)
        ]
        others = sum(other.value < 1.0 for other in group if other is not track)
        return others + 1 <= self.settings.most * len(group)


def _penalty(track: _Track, residual: float | None, now: float) -> Penalty:
    hold = track.hold if track.hold is not None and now < track.hold.until else None
    return Penalty(
        value=track.value if hold is None else hold.penalty,
        cause=track.cause if hold is None else Cause.HELD,
        residual=residual,
        since=track.since,
        hold=hold,
    )


def _since(began: float | None, now: float) -> float:
    return now if began is None else began


def _shifted(hold: Hold, seconds: float) -> Hold:
    return replace(hold, until=hold.until + seconds)
