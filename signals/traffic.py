"""One Envoy's counters under the policy's names, and the sum of several Envoys'.

A sum is kept per Envoy and brought up to date with each of its flushes, so that a view of the whole fleet
adds up a few numbers an engine and not every counter there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from signals.counters import (
    ANSWERED,
    COMPLETED,
    CONNECT_FAILURES,
    FAILED,
    RETRIES,
    SENT,
    CounterTrack,
    EnvoyCounters,
)


@dataclass(frozen=True, slots=True)
class EnvoyNames:
    """What Envoy's names stand for. Names that are not listed are ignored."""

    keys: Mapping[str, str] = field(default_factory=dict)
    """`<model in Envoy's spelling>/<class>` of the demand counter -> key."""
    composites: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Composite cluster -> (key, engine that is tried first)."""
    members: Mapping[str, str] = field(default_factory=dict)
    """Member cluster -> engine."""
    sheds: Mapping[str, str] = field(default_factory=dict)
    """Cluster that refuses what the plan sheds -> key."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Final answers, and retries, of one front-end and key for requests first sent to one engine."""

    completed_rps: float
    completed_total: float
    retry_rps: float
    retry_total: float
    failed_rps: float = 0.0
    """Of the completed ones, 500 and above."""


@dataclass(frozen=True, slots=True)
class EngineTraffic:
    """What one front-end's Envoys see of one engine."""

    sent_rps: float
    """Attempts, retries included."""
    sent_total: float
    connect_failures_total: float
    sent_heard: float
    """Since its Envoys were first heard of, as the next one: their past says nothing of what is now."""
    connect_failures_heard: float
    active: float | None
    """Requests in flight at the latest flush; None when Envoy does not tell."""
    rtt_ms: float | None
    """Mean TCP connect time (Envoy counts whole ms), None until a connection was opened."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How requests of one front-end and key ended, since its Envoys were first heard of: these never fall.

    What a client gave up, and what no engine may serve, is in none of them.
    """

    ok: float = 0.0
    """Answers below 500, as an engine gave them; a stream that breaks later had begun with 200."""
    error: float = 0.0
    """500 and above, of an engine or of Envoy when nobody answered, and 429 of a tripped breaker."""
    shed: float = 0.0
    """429 as the plan says."""

    def __add__(self, other: Outcomes) -> Outcomes:
        return Outcomes(self.ok + other.ok, self.error + other.error, self.shed + other.shed)


NOTHING = Outcomes()


@dataclass(slots=True)
class DemandSum:
    """`rps` is None while every part is a base line only."""

    rps: float | None = None
    total: float = 0.0


@dataclass(slots=True)
class AnswerSum:
    """As `Answers`."""

    completed_rps: float = 0.0
    completed_total: float = 0.0
    retry_rps: float = 0.0
    retry_total: float = 0.0
    failed_rps: float = 0.0

    def answers(self) -> Answers:
        """The frozen value."""
        return Answers(
            self.completed_rps, self.completed_total, self.retry_rps, self.retry_total, self.failed_rps
        )


@dataclass(slots=True)
class EngineSum:
    """As `EngineTraffic`; connect times as a sum of ms and a number."""

    sent_rps: float = 0.0
    sent_total: float = 0.0
    connect_failures_total: float = 0.0
    sent_heard: float = 0.0
    connect_failures_heard: float = 0.0
    active: float | None = None
    connect_ms: float = 0.0
    connects: float = 0.0

    def traffic(self) -> EngineTraffic:
        """The frozen value."""
        rtt_ms = self.connect_ms / self.connects if self.connects else None
        return EngineTraffic(
            sent_rps=self.sent_rps,
            sent_total=self.sent_total,
            connect_failures_total=self.connect_failures_total,
            sent_heard=self.sent_heard,
            connect_failures_heard=self.connect_failures_heard,
            active=self.active,
            rtt_ms=rtt_ms,
        )


@dataclass(slots=True)
class Traffic:
    """Sums by key, by (key, engine) and by engine."""

    demand: dict[str, DemandSum] = field(default_factory=dict)
    answers: dict[tuple[str, str], AnswerSum] = field(default_factory=dict)
    engines: dict[str, EngineSum] = field(default_factory=dict)
    outcomes: dict[str, Outcomes] = field(default_factory=dict)


def traffic_of(envoy: EnvoyCounters, names: EnvoyNames) -> Traffic:
    """One Envoy's counters under the policy's names; classes of one engine add up."""
    traffic = Traffic()
    for spelling, track in envoy.demand.items():
        if key := names.keys.get(spelling):
            traffic.demand[key] = DemandSum(track.rate.value, track.total)
    for (metric, cluster), track in envoy.clusters.items():
        if composite := names.composites.get(cluster):
            _count_answers(traffic.answers.setdefault(composite, AnswerSum()), metric, track)
            _count_outcome(traffic.outcomes, composite[0], _outcome(metric, track))
        elif shed := names.sheds.get(cluster):
            _count_outcome(
                traffic.outcomes, shed, Outcomes(shed=track.heard) if metric == COMPLETED else NOTHING
            )
        elif engine := names.members.get(cluster):
            _count_attempts(traffic.engines.setdefault(engine, EngineSum()), metric, track)
    for cluster, active in envoy.active.items():
        if engine := names.members.get(cluster):
            found = traffic.engines.setdefault(engine, EngineSum())
            found.active = (found.active or 0.0) + active
    for cluster, (ms_rate, rate) in envoy.connect.items():
        if engine := names.members.get(cluster):
            found = traffic.engines.setdefault(engine, EngineSum())
            found.connect_ms += ms_rate.weighted
            found.connects += rate.weighted
    return traffic


def _count_outcome(found: dict[str, Outcomes], key: str, more: Outcomes) -> None:
    if more is not NOTHING:
        found[key] = found.get(key, NOTHING) + more


def _outcome(metric: str, track: CounterTrack) -> Outcomes:
    """Classes of answers are counted one by one: counters of one flush are read one after the other, so that
    a difference of two of them could fall."""
    if metric in ANSWERED:
        return Outcomes(ok=track.heard)
    return Outcomes(error=track.heard) if metric == FAILED else NOTHING


def _count_answers(found: AnswerSum, metric: str, track: CounterTrack) -> None:
    if metric == COMPLETED:
        found.completed_rps += track.rate.value or 0.0
        found.completed_total += track.total
    elif metric == RETRIES:
        found.retry_rps += track.rate.value or 0.0
        found.retry_total += track.total
    elif metric == FAILED:
        found.failed_rps += track.rate.value or 0.0


def _count_attempts(found: EngineSum, metric: str, track: CounterTrack) -> None:
    if metric == SENT:
        found.sent_rps += track.rate.value or 0.0
        found.sent_total += track.total
        found.sent_heard += track.heard
    elif metric == CONNECT_FAILURES:
        found.connect_failures_total += track.total
        found.connect_failures_heard += track.heard


def past(traffic: Traffic) -> Traffic:
    """What stays of an Envoy that is gone: what must never fall."""
    engines = {
        name: EngineSum(sent_heard=seen.sent_heard, connect_failures_heard=seen.connect_failures_heard)
        for name, seen in traffic.engines.items()
    }
    return Traffic(engines=engines, outcomes=dict(traffic.outcomes))


def add_up(parts: Iterable[tuple[Traffic, float]]) -> Traffic:
    """The sum of several Envoys' traffic; rates and gauges of each count by its factor, totals in full."""
    total = Traffic()
    for part, factor in parts:
        for key, demand in part.demand.items():
            into = total.demand.setdefault(key, DemandSum())
            into.total += demand.total
            if demand.rps is not None:
                into.rps = (into.rps or 0.0) + demand.rps * factor
        for pair, answers in part.answers.items():
            sum_ = total.answers.setdefault(pair, AnswerSum())
            sum_.completed_rps += answers.completed_rps * factor
            sum_.completed_total += answers.completed_total
            sum_.retry_rps += answers.retry_rps * factor
            sum_.retry_total += answers.retry_total
            sum_.failed_rps += answers.failed_rps * factor
        for engine, seen in part.engines.items():
            _add_engine(total.engines.setdefault(engine, EngineSum()), seen, factor)
        for key, outcomes in part.outcomes.items():
            _count_outcome(total.outcomes, key, outcomes)
    return total


def _add_engine(into: EngineSum, seen: EngineSum, factor: float) -> None:
    into.sent_rps += seen.sent_rps * factor
    into.sent_total += seen.sent_total
    into.connect_failures_total += seen.connect_failures_total
    into.sent_heard += seen.sent_heard
    into.connect_failures_heard += seen.connect_failures_heard
    if seen.active is not None:
        into.active = (into.active or 0.0) + seen.active * factor
    into.connect_ms += seen.connect_ms
    into.connects += seen.connects
