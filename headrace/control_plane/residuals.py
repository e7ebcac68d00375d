"""What a replica's own reports say against it: latency beyond its profile, and errors of its own."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from headrace.problem import PlanningRules
from optimizer import Profile
from signals.readings import Signal
from signals.replicas import MembershipView, Replica, ReplicaKey

_LOAD_TIME_CONSTANT_S = 10.0
_LOAD_MARGIN = 1.15
"""Predictions are made for this much more than the measured load: near its limit a replica's latency grows
faster than its load can be measured, and nobody is to be penalised for that."""
_LEAST_RPS = 0.5
"""Below this a replica's latency says nothing."""
_ERRORS = 0.2
"""Part of a replica's requests that end in its own errors at which it is failing."""
_LEAST_SPAN_S = 2.0
"""Reported rates are of at least so long."""


@dataclass(slots=True)
class _Load:
    """A replica's request rate, smoothed."""

    rps: float
    at: float

    def take(self, rps: float, now: float) -> None:
        keep = math.exp(-(now - self.at) / _LOAD_TIME_CONSTANT_S)
        self.rps, self.at = self.rps * keep + rps * (1.0 - keep), now


class Process(NamedTuple):
    """One process of a replica: a restarted one inherits no penalty."""

    key: ReplicaKey
    incarnation: int


def process_of(replica: Replica) -> Process:
    """The process that a replica is now."""
    return Process(replica.key, replica.incarnation)


class Residuals:
    """Observed over predicted latency. Owns the replicas' smoothed loads."""

    def __init__(self) -> None:
        self._loads: dict[Process, _Load] = {}

    def retain(self, seen: Collection[Process]) -> None:
        """Forget every process that is not among `seen`."""
        self._loads = {key: load for key, load in self._loads.items() if key in seen}

    def of(
        self, replica: Replica, profile: Profile, learned: Profile, tokens: float, now: float
    ) -> float | None:
        """Of a replica at its own load, the slower of two curves; None where that says nothing."""
        rps = replica.value(Signal.REQUESTS_PER_S, now)
        ttft, tbot = replica.value(Signal.TTFT_MEAN_MS, now), replica.value(Signal.TBOT_MEAN_MS, now)
        if rps is None or not replica.ready:
            return None
        load = self._loads.setdefault(process_of(replica), _Load(rps, now))
        load.take(rps, now)
        expected_at = load.rps * _LOAD_MARGIN
        if load.rps < _LEAST_RPS or expected_at >= profile.capacity_rps or not ttft:
            return None
        observed = ttft + tokens * (tbot or 0.0)
        curves = (profile,) if learned is profile else (profile, learned)
        predicted = max(
            curve.ttft_ms(expected_at) + (tokens * curve.tbot_ms(expected_at) if tbot else 0.0)
            for curve in curves
        )
        return observed / predicted if predicted > 0 else None


def erring(rules: PlanningRules, members: MembershipView, now: float) -> frozenset[ReplicaKey]:
    """Replicas of which many requests end in errors of their own, clearly more than of the model's all
    together: errors everywhere are no fault of one, and would take half of the fleet away."""
    by_model: dict[str, list[tuple[ReplicaKey, float, float]]] = {}
    for engine, replicas in members.engines.items():
        if spec := rules.policy.engines.get(engine):
            found = by_model.setdefault(spec.model, [])
            found += [(replica.key, *_errors(replica, now)) for replica in replicas if replica.ready]
    return frozenset(
        key
        for found in by_model.values()
        for usual in [sum(e for _, e, _ in found) / max(sum(rps for _, _, rps in found), 1e-9)]
        for key, errors, rps in found
        if errors >= 1.0 and errors / rps > _conspicuous(usual, rps)
    )


def _conspicuous(usual: float, rps: float) -> float:
    """The part of a replica's requests that must end in errors when `usual` do everywhere."""
    noise = math.sqrt(usual * (1.0 - usual) / (rps * _LEAST_SPAN_S))
    return max(_ERRORS, usual + _ERRORS / 2 + 3.0 * noise)


def _errors(replica: Replica, now: float) -> tuple[float, float]:
    """A replica's own errors and all its requests, per second."""
    errors = replica.value(Signal.ERRORS_INTERNAL_PER_S, now) or 0.0
    return errors, max(errors, replica.value(Signal.REQUESTS_PER_S, now) or 0.0)
