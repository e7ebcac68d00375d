"""Demand, retries and distances as Envoys count them.

Time constants, all constructor arguments of `Demand`:

| what | rule |
|---|---|
| smoothing | exponential average, time constant `window_s / 2` (as old as a plain mean over `window_s`) |
| gap | flushes stop and resume: the difference is an even rate over the whole gap |
| late | a flush counts for when it was read, not for when it arrived (`pace`) |
| live | an Envoy flushed within `stale_after_s` |
| held | no Envoy of the front-end did: its demand stays as it was for `hold_s` |
| decaying | from then on it halves every `half_life_s` |
| sibling gone | an Envoy stops, others of its front-end go on: its part fades with the smoothing |

(A sibling's clients come back through the others, so holding its part would count them twice.)

Pure: no I/O and no clock; times are monotonic seconds of the receiver.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from signals.counters import Average, CounterTrack, EnvoyCounters
from signals.metrics_codec import Flush
from signals.pace import Pace
from signals.traffic import Answers, EngineTraffic, EnvoyNames, Outcomes, Traffic, add_up, past, traffic_of

__all__ = [
    "Answers",
    "Demand",
    "DemandPoint",
    "DemandState",
    "DemandView",
    "EngineTraffic",
    "EnvoyNames",
    "Outcomes",
]

_FORGET_AFTER_S = 3600.0

Pair = tuple[str, str]


class DemandState(Enum):
    """How far a front-end's demand can be trusted."""

    LIVE = "live"
    HELD = "held"
    DECAYING = "decaying"


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
    outcomes: Mapping[Pair, Outcomes] = field(default_factory=dict)
    """(front-end, key)."""


@dataclass(slots=True)
class _Envoy:
    counters: EnvoyCounters
    heard_at: float
    traffic: Traffic
    pace: Pace


@dataclass(slots=True)
class _Frontend:
    """The Envoys of one front-end, and their sum as long as none has flushed since."""

    envoys: dict[str, _Envoy] = field(default_factory=dict)
    past: Traffic = field(default_factory=Traffic)
    """What stays of Envoys that were forgotten."""
    demand: Traffic | None = None
    answers: dict[tuple[str, str, str], Answers] = field(default_factory=dict)
    engines: dict[Pair, EngineTraffic] = field(default_factory=dict)
    outcomes: dict[Pair, Outcomes] = field(default_factory=dict)

    def add_up(self, name: str, factors: Mapping[str, float]) -> Traffic:
        """The sum over the Envoys; `factors` by node id where a rate does not count in full."""
        if self.demand is None or factors:
            parts = [(envoy.traffic, factors.get(node, 1.0)) for node, envoy in self.envoys.items()]
            alone = len(parts) == 1 and not factors and not self.past.engines and not self.past.outcomes
            total = parts[0][0] if alone else add_up([*parts, (self.past, 1.0)])
            self.answers = {(name, *pair): found.answers() for pair, found in total.answers.items()}
            self.engines = {(name, engine): found.traffic() for engine, found in total.engines.items()}
            self.outcomes = {(name, key): found for key, found in total.outcomes.items()}
            # What a factor went into is not kept: factors change with time alone.
            self.demand = None if factors else total
            return total
        return self.demand

    def forget(self, node_id: str) -> None:
        """Keep of an Envoy what must never fall."""
        self.past = add_up([(self.past, 1.0), (past(self.envoys.pop(node_id).traffic), 1.0)])
        self.demand = None


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
        self.window_s = window_s
        """May be changed at any time."""
        self._names = names or EnvoyNames()
        self._stale_after_s = stale_after_s
        self._hold_s = hold_s
        self._half_life_s = half_life_s
        self._frontends: dict[str, _Frontend] = {}
        self._saved: Mapping[Pair, float] = {}
        self._saved_at = 0.0

    @property
    def names(self) -> EnvoyNames:
        """May be replaced at any time (policy reload): counters are kept under Envoy's names."""
        return self._names

    @names.setter
    def names(self, names: EnvoyNames) -> None:
        self._names = names
        for frontend in self._frontends.values():
            frontend.demand = None
            for envoy in frontend.envoys.values():
                envoy.traffic = traffic_of(envoy.counters, names)

    def observe(self, frontend: str, node_id: str, flush: Flush, now: float) -> None:
        """Take one flush of the Envoy `node_id` of `frontend`."""
        found = self._frontends.setdefault(frontend, _Frontend())
        envoy = found.envoys.get(node_id)
        counters = EnvoyCounters() if envoy is None else envoy.counters
        pace = Pace() if envoy is None else envoy.pace
        counters.observe(flush, pace.read_at(flush.read_at, now), self.window_s / 2)
        found.envoys[node_id] = _Envoy(counters, now, traffic_of(counters, self._names), pace)
        found.demand = None

    def latest(self, frontend: str, key: str, now: float) -> tuple[float, float]:
        """(at least, at most) what came lately for one pair, req/s (`CounterTrack.latest`)."""
        tracks = self._tracks(frontend, key)
        found = [track.latest or (0.0, 0.0) for envoy, track in tracks if self._heard(envoy, now)]
        return sum(low for low, _ in found), sum(high for _, high in found)

    def begin_anew(self, frontend: str, key: str, rps: float, now: float) -> None:
        """Forget the average of one pair: it is what comes from now on, and `rps` for the second before.

        Envoys that are heard get parts of it as they have them now. Nothing happens to a pair of which no
        such Envoy has told."""
        tracks = self._tracks(frontend, key)
        rates = [(track.rate.value or 0.0) * self._heard(envoy, now) for envoy, track in tracks]
        heard = sum(self._heard(envoy, now) for envoy, _ in tracks)
        for (envoy, track), rate in zip(tracks, rates, strict=True):
            if heard:
                part = rate / sum(rates) if any(rates) else self._heard(envoy, now) / heard
                track.rate = Average()
                track.rate.add(rps * part, 1.0, self.window_s / 2)
                envoy.traffic = traffic_of(envoy.counters, self._names)
                self._frontends[frontend].demand = None

    def _heard(self, envoy: _Envoy, now: float) -> bool:
        return now - envoy.heard_at <= self._stale_after_s

    def _tracks(self, frontend: str, key: str) -> list[tuple[_Envoy, CounterTrack]]:
        """The counters of one pair that have told a rate, with the Envoys they are of."""
        found = self._frontends.get(frontend, _Frontend())
        spellings = [spelling for spelling, name in self._names.keys.items() if name == key]
        return [
            (envoy, track)
            for envoy in found.envoys.values()
            for spelling in spellings
            if (track := envoy.counters.demand.get(spelling)) and track.rate.value is not None
        ]

    def attempts(self, frontend: str, node_id: str) -> dict[str, float] | None:
        """Engine -> attempts by one Envoy's counters until now; None when it has sent none."""
        found = self._frontends.get(frontend)
        if found is None or node_id not in found.envoys:
            return None
        engines = found.envoys[node_id].traffic.engines
        return {engine: seen.sent_total for engine, seen in engines.items()}

    def restore(self, saved: Mapping[Pair, float], now: float) -> None:
        """Start from the demand (req/s) of an earlier run.

        It stands for pairs that no Envoy has told of yet, and for `stale_after_s` it is not undercut: the
        first Envoy heard after a restart is not the whole front-end.
        """
        self._saved, self._saved_at = dict(saved), now

    def view(self, now: float) -> DemandView:
        """All that is known at `now`."""
        self._forget(now)
        demand: dict[Pair, DemandPoint] = {}
        answers: dict[tuple[str, str, str], Answers] = {}
        engines: dict[Pair, EngineTraffic] = {}
        outcomes: dict[Pair, Outcomes] = {}
        ages: dict[str, float] = {}
        for name, frontend in self._frontends.items():
            if not frontend.envoys:
                outcomes |= {(name, key): found for key, found in frontend.past.outcomes.items()}
                continue
            ages[name] = min(now - envoy.heard_at for envoy in frontend.envoys.values())
            total = frontend.add_up(name, self._factors(frontend, ages[name], now))
            for key, found in total.demand.items():
                if found.rps is not None:
                    state = self._state(ages[name])
                    demand[name, key] = DemandPoint(found.rps, found.total, ages[name], state)
            answers |= frontend.answers
            engines |= frontend.engines
            outcomes |= frontend.outcomes
        return DemandView(demand | self._from_saved(demand, ages, now), answers, engines, ages, outcomes)

    def _forget(self, now: float) -> None:
        for frontend in self._frontends.values():
            for node_id, envoy in list(frontend.envoys.items()):
                if now - envoy.heard_at > _FORGET_AFTER_S:
                    frontend.forget(node_id)

    def _factors(self, frontend: _Frontend, frontend_age_s: float, now: float) -> dict[str, float]:
        """What still counts of the rates of Envoys not heard lately, by node id."""
        return {
            node_id: self._factor(now - envoy.heard_at, frontend_age_s)
            for node_id, envoy in frontend.envoys.items()
            if now - envoy.heard_at > self._stale_after_s
        }

    def _factor(self, age_s: float, frontend_age_s: float) -> float:
        """`frontend_age_s` is the age of the Envoy's liveliest sibling."""
        if age_s > self._stale_after_s >= frontend_age_s:
            return math.exp(-(age_s - self._stale_after_s) / (self.window_s / 2))
        return self._decay(age_s)

    def _state(self, age_s: float) -> DemandState:
        if age_s <= self._stale_after_s:
            return DemandState.LIVE
        return DemandState.HELD if age_s <= self._hold_s else DemandState.DECAYING

    def _decay(self, age_s: float) -> float:
        return float(0.5 ** (max(0.0, age_s - self._hold_s) / self._half_life_s))

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
