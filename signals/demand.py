"""Demand, retries and distances as Envoys count them.

Time constants, all constructor arguments of `Demand`:

| what | rule |
|---|---|
| smoothing | exponential average, time constant `window_s / 2` (as old as a plain mean over `window_s`) |
| gap | flushes stop and resume: the difference is an even rate over the whole gap |
| live | an Envoy flushed within `stale_after_s` |
| held | no Envoy of the front-end did: its demand stays as it was for `hold_s` |
| decaying | from then on it halves every `half_life_s` |
| sibling gone | an Envoy stops, others of its front-end go on: its part fades with the smoothing |

(A sibling's clients come back through the others, so holding its part would count them twice.)

Pure: no I/O and no clock; times are monotonic seconds of the receiver.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from signals.counters import COMPLETED, CONNECT_FAILURES, RETRIES, SENT, CounterTrack, EnvoyCounters
from signals.metrics_codec import Flush

_FORGET_AFTER_S = 3600.0

Pair = tuple[str, str]


class DemandState(Enum):
    """How far a front-end's demand can be trusted."""

    LIVE = "live"
    HELD = "held"
    DECAYING = "decaying"


@dataclass(frozen=True, slots=True)
class EnvoyNames:
    """What Envoy's names stand for. Names that are not listed are ignored."""

    keys: Mapping[str, str] = field(default_factory=dict)
    """`<model in Envoy's spelling>/<class>` of the demand counter -> key."""
    composites: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Composite cluster -> (key, engine that is tried first)."""
    members: Mapping[str, str] = field(default_factory=dict)
    """Member cluster -> engine."""


@dataclass(frozen=True, slots=True)
class DemandPoint:
    """Demand of one front-end for one key."""

    rps: float
    total: float
    """Requests counted by every Envoy heard of, since it started; exact over gaps, restarts add up."""
    age_s: float
    """Since the latest flush of any Envoy of the front-end."""
    state: DemandState


@dataclass(frozen=True, slots=True)
class Answers:
    """Final answers, and retries, of one front-end and key for requests first sent to one engine."""

    completed_rps: float
    completed_total: float
    retry_rps: float
    retry_total: float


@dataclass(frozen=True, slots=True)
class EngineTraffic:
    """What one front-end's Envoys see of one engine."""

    sent_rps: float
    """Attempts, retries included."""
    sent_total: float
    connect_failures_total: float
    active: float | None
    """Requests in flight at the latest flush; None when Envoy does not tell."""
    rtt_ms: float | None
    """Mean TCP connect time (Envoy counts whole ms), None until a connection was opened."""


@dataclass(frozen=True, slots=True)
class DemandView:
    """What is known at one moment. A pair that is absent was never seen, which is not zero."""

    demand: Mapping[Pair, DemandPoint]
    """(front-end, key)."""
    answers: Mapping[tuple[str, str, str], Answers]
    """(front-end, key, engine)."""
    engines: Mapping[Pair, EngineTraffic]
    """(front-end, engine)."""
    age_s: Mapping[str, float]
    """front-end -> seconds since its latest flush."""


@dataclass(slots=True)
class _Sum:
    """A counter summed over Envoys and clusters. `rps` is None while every part is a base line only."""

    total: float = 0.0
    rps: float | None = None

    def add(self, track: CounterTrack, factor: float) -> None:
        self.total += track.total
        if (rate := track.rate.value) is not None:
            self.rps = (self.rps or 0.0) + rate * factor


class Demand:
    """Every Envoy's counters; the only owner of that state."""

    def __init__(
        self,
        names: EnvoyNames | None = None,
        *,
        window_s: float = 30.0,
        stale_after_s: float = 15.0,
        hold_s: float = 120.0,
        half_life_s: float = 120.0,
    ) -> None:
        self.names = names or EnvoyNames()
        """May be replaced at any time (policy reload): counters are kept under Envoy's names."""
        self.window_s = window_s
        """May be changed at any time."""
        self._stale_after_s = stale_after_s
        self._hold_s = hold_s
        self._half_life_s = half_life_s
        self._envoys: dict[Pair, EnvoyCounters] = {}
        self._saved: Mapping[Pair, float] = {}
        self._saved_at = 0.0

    def observe(self, frontend: str, node_id: str, flush: Flush, now: float) -> None:
        """Take one flush of the Envoy `node_id` of `frontend`."""
        envoy = self._envoys.setdefault((frontend, node_id), EnvoyCounters(frontend))
        envoy.observe(flush, now, self.window_s / 2)

    def restore(self, saved: Mapping[Pair, float], now: float) -> None:
        """Start from the demand (req/s) of an earlier run.

        It stands for pairs that no Envoy has told of yet, and for `stale_after_s` it is not undercut: the
        first Envoy heard after a restart is not the whole front-end.
        """
        self._saved, self._saved_at = dict(saved), now

    def view(self, now: float) -> DemandView:
        """All that is known at `now`."""
        self._forget(now)
        ages: dict[str, float] = {}
        for envoy, age_s in self._ages(now):
            ages[envoy.frontend] = min(ages.get(envoy.frontend, math.inf), age_s)
        parts = [(envoy, self._factor(age_s, ages[envoy.frontend])) for envoy, age_s in self._ages(now)]
        return DemandView(
            demand=self._demand(parts, ages, now),
            answers=self._answers(parts),
            engines=self._engines(parts),
            age_s=ages,
        )

    def _ages(self, now: float) -> Iterator[tuple[EnvoyCounters, float]]:
        for envoy in self._envoys.values():
            assert envoy.heard_at is not None, "an Envoy is only kept with its first flush"
            yield envoy, now - envoy.heard_at

    def _forget(self, now: float) -> None:
        ages = {name: now - (envoy.heard_at or 0.0) for name, envoy in self._envoys.items()}
        for name, age_s in ages.items():
            if age_s > _FORGET_AFTER_S:
                del self._envoys[name]

    def _state(self, age_s: float) -> DemandState:
        if age_s <= self._stale_after_s:
            return DemandState.LIVE
        return DemandState.HELD if age_s <= self._hold_s else DemandState.DECAYING

    def _decay(self, age_s: float) -> float:
        return float(0.5 ** (max(0.0, age_s - self._hold_s) / self._half_life_s))

    def _factor(self, age_s: float, frontend_age_s: float) -> float:
        """What still counts of an Envoy's rates; `frontend_age_s` is the age of its liveliest sibling."""
        if age_s > self._stale_after_s >= frontend_age_s:
            return math.exp(-(age_s - self._stale_after_s) / (self.window_s / 2))
        return self._decay(age_s)

    def _demand(
        self, parts: list[tuple[EnvoyCounters, float]], ages: Mapping[str, float], now: float
    ) -> dict[Pair, DemandPoint]:
        sums: dict[Pair, _Sum] = {}
        for envoy, factor in parts:
            for spelling, track in envoy.demand.items():
                if key := self.names.keys.get(spelling):
                    sums.setdefault((envoy.frontend, key), _Sum()).add(track, factor)
        points = {
            pair: DemandPoint(part.rps, part.total, ages[pair[0]], self._state(ages[pair[0]]))
            for pair, part in sums.items()
            if part.rps is not None
        }
        return points | self._from_saved(points, ages, now)

    def _from_saved(
        self, points: Mapping[Pair, DemandPoint], ages: Mapping[str, float], now: float
    ) -> dict[Pair, DemandPoint]:
        age_s = now - self._saved_at
        state = DemandState.DECAYING if age_s > self._hold_s else DemandState.HELD
        held = {}
        for pair, rps in self._saved.items():
            point = points.get(pair)
            heard = pair[0] in ages and age_s > self._stale_after_s
            if not heard and (point is None or point.rps < rps):
                total = point.total if point else 0.0
                held[pair] = DemandPoint(rps * self._decay(age_s), total, age_s, state)
        return held

    def _answers(self, parts: list[tuple[EnvoyCounters, float]]) -> dict[tuple[str, str, str], Answers]:
        sums: dict[tuple[str, str, str], dict[str, _Sum]] = {}
        for envoy, factor in parts:
            for (metric, cluster), track in envoy.clusters.items():
                if composite := self.names.composites.get(cluster):
                    by_metric = sums.setdefault((envoy.frontend, *composite), {})
                    by_metric.setdefault(metric, _Sum()).add(track, factor)
        return {name: _to_answers(by_metric) for name, by_metric in sums.items()}

    def _engines(self, parts: list[tuple[EnvoyCounters, float]]) -> dict[Pair, EngineTraffic]:
        sums: dict[Pair, _EngineSums] = {}
        for envoy, factor in parts:
            for (metric, cluster), track in envoy.clusters.items():
                if engine := self.names.members.get(cluster):
                    seen = sums.setdefault((envoy.frontend, engine), _EngineSums())
                    seen.counters.setdefault(metric, _Sum()).add(track, factor)
            for cluster, active in envoy.active.items():
                if engine := self.names.members.get(cluster):
                    seen = sums.setdefault((envoy.frontend, engine), _EngineSums())
                    seen.active = (seen.active or 0.0) + active * factor
            for cluster, (ms_rate, rate) in envoy.connect.items():
                if engine := self.names.members.get(cluster):
                    seen = sums.setdefault((envoy.frontend, engine), _EngineSums())
                    seen.connect_ms += ms_rate.weighted
                    seen.connects += rate.weighted
        return {pair: seen.traffic() for pair, seen in sums.items()}


@dataclass(slots=True)
class _EngineSums:
    counters: dict[str, _Sum] = field(default_factory=dict)
    active: float | None = None
    connect_ms: float = 0.0
    connects: float = 0.0

    def traffic(self) -> EngineTraffic:
        sent = self.counters.get(SENT, _Sum())
        return EngineTraffic(
            sent_rps=sent.rps or 0.0,
            sent_total=sent.total,
            connect_failures_total=self.counters.get(CONNECT_FAILURES, _Sum()).total,
            active=self.active,
            rtt_ms=self.connect_ms / self.connects if self.connects else None,
        )


def _to_answers(by_metric: Mapping[str, _Sum]) -> Answers:
    completed, retries = by_metric.get(COMPLETED, _Sum()), by_metric.get(RETRIES, _Sum())
    return Answers(completed.rps or 0.0, completed.total, retries.rps or 0.0, retries.total)
