"""Absolute counters of one Envoy turned into totals and smoothed rates.

A counter that arrives absolute loses nothing while nobody listens: the difference over a gap is exact. A
decrease, or absence from a flush, is a restart of its source at zero. Times are monotonic seconds of the
receiver.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from signals.metrics_codec import Flush

DEMAND_PREFIX, DEMAND_SUFFIX = "demand.", ".http_local_rate_limit.enabled"
COMPLETED, RETRIES = "cluster.upstream_rq_completed", "cluster.upstream_rq_retry"
SENT, CONNECT_FAILURES = "cluster.upstream_rq_total", "cluster.upstream_cx_connect_fail"
ANSWERED = tuple(f"cluster.upstream_rq_{kind}xx" for kind in (2, 3, 4))
FAILED = "cluster.upstream_rq_5xx"
_CLUSTER_COUNTERS = frozenset({COMPLETED, RETRIES, SENT, CONNECT_FAILURES, *ANSWERED, FAILED})
_ACTIVE, _CONNECT_MS = "cluster.upstream_rq_active", "cluster.upstream_cx_connect_ms"
_CONNECT_TIME_CONSTANT_S = 300.0

Name = TypeVar("Name")


@dataclass(slots=True)
class Average:
    """Exponential time average of a rate that is sampled at irregular intervals, without start-up bias."""

    weighted: float = 0.0
    weight: float = 0.0

    def add(self, amount: float, over_s: float, time_constant_s: float) -> None:
        """Account for `amount` that came in the last `over_s` seconds.

        Two late flushes that arrive together do no harm: a short interval has little weight.
        """
        over_s = max(over_s, 1e-3)
        keep = math.exp(-over_s / time_constant_s)
        self.weighted = self.weighted * keep + (1.0 - keep) * amount / over_s
        self.weight = self.weight * keep + (1.0 - keep)

    @property
    def value(self) -> float | None:
        """Amount per second, None before the first interval."""
        return self.weighted / self.weight if self.weight else None


@dataclass(slots=True)
class CounterTrack:
    """One absolute counter of one source."""

    last: float
    at: float
    total: float
    """All the source has counted, what came before it was first heard of included; restarts add up."""
    past: float = 0.0
    """What came before it was first heard of."""
    rate: Average = field(default_factory=Average)
    _before: tuple[tuple[float, float], ...] = ()
    """(total, at) at the two updates before this one, the later first."""

    @property
    def latest(self) -> tuple[float, float] | None:
        """What came lately, per second: (at least, at most) of the rates over one interval and over two.

        No memory, so no lag; the longer interval keeps the noise of the shorter one at bay. None before the
        first interval."""
        rates = [(self.total - total) / (self.at - at) for total, at in self._before if self.at > at]
        return (min(rates), max(rates)) if rates else None

    @property
    def heard(self) -> float:
        """What was counted since it was first heard of; never falls."""
        return self.total - self.past

    def update(self, value: float, now: float, time_constant_s: float) -> None:
        """Take the counter's value at `now`."""
        delta = value - self.last if value >= self.last else value
        self._before = ((self.total, self.at), *self._before[:1])
        self.total += delta
        self.rate.add(delta, now - self.at, time_constant_s)
        self.last, self.at = value, now


@dataclass(slots=True)
class EnvoyCounters:
    """What one Envoy has told, under Envoy's own names."""

    heard_at: float | None = None
    demand: dict[str, CounterTrack] = field(default_factory=dict)
    """`<model spelling>/<class>` -> requests."""
    clusters: dict[tuple[str, str], CounterTrack] = field(default_factory=dict)
    """(metric, cluster) -> events."""
    active: dict[str, float] = field(default_factory=dict)
    """cluster -> requests in flight at the latest flush."""
    connect: dict[str, tuple[Average, Average]] = field(default_factory=dict)
    """cluster -> (connect ms per s, connections per s): the ratio is the mean connect time."""

    def observe(self, flush: Flush, now: float, time_constant_s: float) -> None:
        """Take one flush."""
        demand: dict[str, float] = {}
        clusters: dict[tuple[str, str], float] = {}
        for point in flush.points:
            if not 0.0 <= point.value < math.inf:
                continue  # NaN would spoil the average for ever
            if point.name in _CLUSTER_COUNTERS:
                clusters[point.name, point.cluster] = point.value
            elif point.name == _ACTIVE:
                self.active[point.cluster] = point.value
            elif point.name == _CONNECT_MS and point.count:
                self._connected(point.cluster, point.value, point.count, now)
            elif point.name.startswith(DEMAND_PREFIX) and point.name.endswith(DEMAND_SUFFIX):
                demand[point.name[len(DEMAND_PREFIX) : -len(DEMAND_SUFFIX)]] = point.value
        _advance(self.demand, demand, self.heard_at, now, time_constant_s)
        _advance(self.clusters, clusters, self.heard_at, now, time_constant_s)
        self.heard_at = now

    def _connected(self, cluster: str, milliseconds: float, connections: int, now: float) -> None:
        over_s = now - self.heard_at if self.heard_at is not None else 1.0
        ms_rate, rate = self.connect.setdefault(cluster, (Average(), Average()))
        ms_rate.add(milliseconds, over_s, _CONNECT_TIME_CONSTANT_S)
        rate.add(connections, over_s, _CONNECT_TIME_CONSTANT_S)


def _advance(
    tracks: dict[Name, CounterTrack],
    values: Mapping[Name, float],
    heard_at: float | None,
    now: float,
    time_constant_s: float,
) -> None:
    """Bring one Envoy's counters to `now`.

    Envoy sends a counter only once it was used. So one that appears in an Envoy already heard stood at zero
    then; in one never heard before it is a base line.
    """
    for name, value in values.items():
        track = tracks.get(name)
        if track is None and heard_at is None:
            tracks[name] = CounterTrack(last=value, at=now, total=value, past=value)
            continue
        if track is None:
            assert heard_at is not None
            track = tracks[name] = CounterTrack(last=0.0, at=heard_at, total=0.0)
        track.update(value, now, time_constant_s)
    for name in tracks.keys() - values.keys():
        tracks[name].update(0.0, now, time_constant_s)
