"""What Envoys sent against what engines report: finds replicas that take requests and give no tokens.

A hung vLLM answers its health checks, so neither Envoy nor the engine sees it. Two patterns, each judged over
a dwell time from samples that are fresh:

- stuck, after `stuck_s` (above the longest prefill): it has requests, running or waiting, and gives no token;
- deaf, after `deaf_s`: it knows of no request and gives no token, though its part of what Envoys sent was
  `least_requests` meanwhile, and Envoys have as many more in flight to the engine than its replicas know of.

A suspect gets no traffic. It is released when tokens flow; else after `retry_s`, doubled each time, on trial
with `trial_penalty` of its traffic, until tokens flow or it is caught again. At most `most` of all replicas
are suspect at once: beyond that it is the signal that is wrong. Pure; times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from signals.readings import Signal
from signals.replicas import MembershipView, Presence, Replica, ReplicaKey

_RETRY_CAP_S = 600.0


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What all Envoys together do to one engine."""

    sent_rps: float
    active: float | None = None
    """Requests in flight, None when unknown."""


@dataclass(frozen=True, slots=True)
class LoadVerdict:
    """The outcome of one check; `suspicions` and `penalties` as `Membership.penalise` takes them."""

    suspicions: Mapping[ReplicaKey, str] = field(default_factory=dict)
    penalties: Mapping[ReplicaKey, float] = field(default_factory=dict)
    mismatch: Mapping[str, float] = field(default_factory=dict)
    """engine -> requests reported / requests sent, where both are known; 1 = they agree."""


@dataclass(slots=True)
class _Watch:
    incarnation: int
    stuck_since: float | None = None
    deaf_since: float | None = None
    suspect_since: float | None = None
    reason: str = ""
    on_trial: bool = False
    retry_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadCheckSettings:
    """Thresholds of `LoadCheck`."""

    stuck_s: float = 30.0
    deaf_s: float = 10.0
    least_requests: float = 5.0
    """Expected at a replica over `deaf_s`, and unaccounted for at its engine, before it is called deaf."""
    retry_s: float = 30.0
    trial_penalty: float = 0.05
    most: float = 0.5


class LoadCheck:
    """Remembers, per replica, since when it looks stuck or deaf."""

    def __init__(self, settings: LoadCheckSettings | None = None) -> None:
        self._settings = settings or LoadCheckSettings()
        self._watches: dict[ReplicaKey, _Watch] = {}

    def check(self, members: MembershipView, loads: Mapping[str, EngineLoad], now: float) -> LoadVerdict:
        """Judge every replica that reports, from the latest samples."""
        replicas = {
            replica.key: replica
            for found in members.engines.values()
            for replica in found
            if replica.presence is not Presence.CONFIGURED
        }
        self._watches = {key: watch for key, watch in self._watches.items() if key in replicas}
        for engine, found in members.engines.items():
            self._judge_engine(found, loads.get(engine), now)
        return LoadVerdict(
            suspicions=self._suspicions(replicas),
            penalties={
                key: self._settings.trial_penalty for key, watch in self._watches.items() if watch.on_trial
            },
            mismatch=dict(_mismatches(members, loads, now)),
        )

    def _judge_engine(self, replicas: tuple[Replica, ...], load: EngineLoad | None, now: float) -> None:
        judged = [replica for replica in replicas if replica.presence is Presence.REPORTING]
        taking = sum(replica.part for replica in replicas if replica.ready) or 1.0
        known = sum(_held(replica, now) or 0.0 for replica in judged)
        unknown = (load.active - known) if load and load.active is not None else 0.0
        for replica in judged:
            watch = self._watches.get(replica.key)
            if watch is None or watch.incarnation != replica.incarnation:
                watch = self._watches[replica.key] = _Watch(replica.incarnation)
            sent_rps = load.sent_rps * replica.part / taking if load and replica.ready else 0.0
            self._judge(watch, replica, sent_rps, unknown, now)

    def _judge(self, watch: _Watch, replica: Replica, sent_rps: float, unknown: float, now: float) -> None:
        tokens, held = replica.value(Signal.OUTPUT_TOKENS_PER_S, now), _held(replica, now)
        if tokens:
            self._clear(watch)
            return
        if tokens is None or held is None:
            watch.stuck_since = watch.deaf_since = None
            return
        settings = self._settings
        deaf = held == 0 and min(sent_rps * settings.deaf_s, unknown) >= settings.least_requests
        watch.stuck_since = _since(watch.stuck_since, now) if held else None
        watch.deaf_since = _since(watch.deaf_since, now) if deaf else None
        if watch.suspect_since is None:
            self._catch(watch, held, now)
        elif now - watch.suspect_since > watch.retry_s:
            watch.suspect_since, watch.stuck_since, watch.deaf_since, watch.on_trial = None, None, None, True

    def _catch(self, watch: _Watch, held: float, now: float) -> None:
        settings = self._settings
        if watch.stuck_since is not None and now - watch.stuck_since >= settings.stuck_s:
            watch.reason = f"{held:g} requests and no token for {settings.stuck_s:g} s"
        elif watch.deaf_since is not None and now - watch.deaf_since >= settings.deaf_s:
            watch.reason = f"Envoys send, it reports neither requests nor tokens for {settings.deaf_s:g} s"
        else:
            return
        watch.suspect_since, watch.on_trial = now, False
        watch.retry_s = min(2 * watch.retry_s or settings.retry_s, _RETRY_CAP_S)

    @staticmethod
    def _clear(watch: _Watch) -> None:
        watch.stuck_since = watch.deaf_since = watch.suspect_since = None
        watch.on_trial, watch.retry_s = False, 0.0

    def _suspicions(self, replicas: Mapping[ReplicaKey, Replica]) -> dict[ReplicaKey, str]:
        """The longest suspect first, as many as may be at once."""
        suspects = [
            (watch.suspect_since, key)
            for key, watch in self._watches.items()
            if watch.suspect_since is not None
        ]
        most = int(self._settings.most * len(replicas))
        return {key: self._watches[key].reason for _, key in sorted(suspects)[:most]}


def _since(began: float | None, now: float) -> float:
    return now if began is None else began


def _held(replica: Replica, now: float) -> float | None:
    """Requests that the replica knows of."""
    running = replica.value(Signal.RUNNING, now)
    return None if running is None else running + (replica.value(Signal.WAITING, now) or 0.0)


def _mismatches(
    members: MembershipView, loads: Mapping[str, EngineLoad], now: float
) -> Iterator[tuple[str, float]]:
    for engine, replicas in members.engines.items():
        told = [replica.value(Signal.REQUESTS_PER_S, now) for replica in replicas if replica.ready]
        load = loads.get(engine)
        if load and load.sent_rps > 0 and told and None not in told:
            yield engine, sum(value or 0.0 for value in told) / load.sent_rps
