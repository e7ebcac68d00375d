"""Penalties of replicas and engines from what they report, what Envoys sent, and what the profile predicts.

One call a round (`Protection.judge`). A replica's residual is the geometric mean of observed / predicted over
TTFT and TBOT, at the load that it reports; an engine's is the lower median of its replicas', so that one slow
replica costs its own EDS weight and not the engine's capacity. Groups: a replica among those of its engine,
an engine among those of its model. Rules: `outliers`; hung replicas: `load_check`. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median_low

from signals.demand import DemandView
from signals.load_check import EngineLoad, LoadCheck, LoadCheckSettings
from signals.outliers import Hold, OutlierDetector, OutlierSettings, Penalty, SavedPenalty
from signals.readings import Signal
from signals.replicas import MembershipView, Presence, Replica, ReplicaKey

Predict = Callable[[str, float], "tuple[float, float] | None"]
"""(engine, requests/s at one replica) -> (TTFT ms, TBOT ms) by its profile; None when there is none."""

_LEAST_COUNT = 5.0
"""Observations in a window before a mean is believed."""

_Unit = tuple[ReplicaKey, int]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one round."""

    replicas: Mapping[ReplicaKey, Penalty] = field(default_factory=dict)
    engines: Mapping[str, Penalty] = field(default_factory=dict)
    weights: Mapping[ReplicaKey, float] = field(default_factory=dict)
    """Fraction of a healthy replica's traffic, for `Membership.penalise`."""
    suspicions: Mapping[ReplicaKey, str] = field(default_factory=dict)
    """Quarantined as hung, for `Membership.penalise`."""
    mismatch: Mapping[str, float] = field(default_factory=dict)
    """engine -> requests reported / sent."""

    def capacity(self, engine: str) -> float:
        """Fraction of the engine's capacity to reckon with."""
        found = self.engines.get(engine)
        return 1.0 if found is None else found.value


@dataclass(frozen=True, slots=True)
class SavedProtection:
    """What a restart should know."""

    engines: tuple[SavedPenalty[str], ...] = ()
    replicas: tuple[SavedPenalty[_Unit], ...] = ()


class Protection:
    """Owns the detectors of replicas and engines, and the check for hung replicas."""

    def __init__(
        self, outliers: OutlierSettings | None = None, load_check: LoadCheckSettings | None = None
    ) -> None:
        self._engines: OutlierDetector[str] = OutlierDetector(outliers)
        self._replicas: OutlierDetector[_Unit] = OutlierDetector(outliers)
        self._load_check = LoadCheck(load_check)

    def judge(
        self,
        members: MembershipView,
        traffic: DemandView,
        models: Mapping[str, str],
        predict: Predict,
        now: float,
    ) -> Verdict:
        """One round. `models` names every engine of the policy and its model."""
        for engine, replicas in members.engines.items():
            if engine in models:
                self._observe(engine, models[engine], replicas, predict, now)
        units = {
            (replica.key, replica.incarnation) for found in members.engines.values() for replica in found
        }
        self._replicas.retain(units)
        self._engines.retain(set(models))
        self._replicas.update(now)
        self._engines.update(now)
        hung = self._load_check.check(members, loads(traffic), now)
        penalties = {key: found for (key, _), found in self._replicas.penalties(now).items()}
        weights = {key: found.value for key, found in penalties.items() if found.value < 1.0}
        for key, value in hung.penalties.items():
            weights[key] = min(value, weights.get(key, 1.0))
        return Verdict(penalties, self._engines.penalties(now), weights, hung.suspicions, hung.mismatch)

    def fail_engine(self, engine: str, model: str, now: float) -> None:
        """Envoys see connect failures or hard 5xx from the whole engine."""
        self._engines.fail(engine, model, now)

    def hold_engine(self, engine: str, model: str, hold: Hold, now: float) -> None:
        """An operator's hand on an engine. ValueError without a reason or with a wrong fraction."""
        self._engines.hold(engine, model, hold, now)

    def release_engine(self, engine: str) -> None:
        """Take every penalty and hold off an engine. KeyError when none is known."""
        self._engines.release(engine)

    def hold_replica(self, replica: Replica, hold: Hold, now: float) -> None:
        """An operator's hand on one replica, until its process is replaced."""
        self._replicas.hold((replica.key, replica.incarnation), replica.key.engine, hold, now)

    def release_replica(self, replica: Replica) -> None:
        """Take every penalty and hold off a replica. KeyError when none is known."""
        self._replicas.release((replica.key, replica.incarnation))

    def save(self, now: float) -> SavedProtection:
        """Penalties and holds, for saved state."""
        return SavedProtection(tuple(self._engines.save(now)), tuple(self._replicas.save(now)))

    def restore(self, saved: SavedProtection, now: float) -> None:
        """Take up an earlier run's penalties and holds."""
        self._engines.restore(saved.engines, now)
        self._replicas.restore(saved.replicas, now)

    def _observe(
        self, engine: str, model: str, replicas: tuple[Replica, ...], predict: Predict, now: float
    ) -> None:
        residuals = []
        for replica in replicas:
            residual = residual_of(replica, predict, now)
            if residual is not None:
                self._replicas.observe((replica.key, replica.incarnation), engine, residual, now)
                residuals.append(residual)
        if residuals:
            self._engines.observe(engine, model, median_low(residuals), now)


def _units(members: MembershipView) -> set[_Unit]:
    return {(replica.key, replica.incarnation) for found in members.engines.values() for replica in found}


def residual_of(replica: Replica, predict: Predict, now: float) -> float | None:
    """Observed / predicted of a reporting replica; None when it did too little, or does not tell enough."""
    load_rps = replica.value(Signal.REQUESTS_PER_S, now)
    if replica.presence is not Presence.REPORTING or load_rps is None:
        return None
    predicted = predict(replica.key.engine, load_rps)
    if predicted is None:
        return None
    logs = list(_log_ratios(replica, predicted, now))
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def _log_ratios(replica: Replica, predicted: tuple[float, float], now: float) -> Iterator[float]:
    signals = (
        (Signal.TTFT_MEAN_MS, Signal.TTFT_COUNT, predicted[0]),
        (Signal.TBOT_MEAN_MS, Signal.TBOT_COUNT, predicted[1]),
    )
    for mean, count, expected in signals:
        observed, observations = replica.value(mean, now), replica.value(count, now)
        if observed and expected > 0 and (observations or 0.0) >= _LEAST_COUNT:
            yield math.log(observed / expected)


def loads(traffic: DemandView) -> dict[str, EngineLoad]:
    """engine -> what all front-ends together do to it."""
    found: dict[str, EngineLoad] = {}
    for (_, engine), seen in traffic.engines.items():
        known = found.get(engine, EngineLoad(0.0))
        active = known.active if seen.active is None else (known.active or 0.0) + seen.active
        found[engine] = EngineLoad(known.sent_rps + seen.sent_rps, active)
    return found
