"""What replicas teach about their engine's profile, and which engines have never served anybody.

A sample is learned from only when it says something about the profile. Nothing is learned of an engine

- whose profile is not to be corrected now, by the policy (`frozen`, `ignore`);
- that is an outlier, or held by hand: an engine that became slow is to be penalised, not believed;
- whose reports and Envoys' counters disagree on how much it serves;
- without a replica that is ready, reports, is neither penalised nor new, and tells load and latency;
- loaded beyond the capacity of its profile, where latency is that of a queue.

Plans take up what was learned once in `half_life_s` / 10, and only where it is worth it (`followed`):
between, curves stand still and quiet rounds stay quiet. Pure but for its state; monotonic seconds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.problem import PlanningRules
from optimizer import SHED, Correction, Learning, Profile, followed
from signals.demand import DemandView
from signals.outliers import Penalty
from signals.readings import Signal
from signals.replicas import MembershipView, Presence, Replica

_LEAST_RPS = 0.5
"""Below this an engine's latency says nothing."""
_LEAST_SENT_RPS = 0.05
"""Less is the memory of an average, or a stray retry."""
_AGREE = (0.7, 1.4)
"""Requests reported over requests sent, within which reports are believed."""
_LONGEST_S = 60.0
"""What one sample stands for at most."""
_SERVED_S = 60.0
"""An engine that has served for so long is known."""
_PRIOR = 0.2
"""The profile itself is worth the samples of this many half-lives."""
_FOLLOW = 0.1
"""Plans follow what was learned this often, in half-lives."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What an engine's healthy replicas said, as one of them."""

    load_rps: float
    """work/s of one replica."""
    tbot_ms: float | None
    ttft_ms: float | None


@dataclass(frozen=True, slots=True)
class Learned:
    """What is known of one engine."""

    profile: str
    """Digest of the profile that is corrected: of another one nothing is known."""
    correction: Correction = field(default_factory=Correction)
    used: Correction = field(default_factory=Correction)
    """What plans use."""
    served_s: float = 0.0
    """For how long it was seen to serve."""
    paused: str = ""
    """Why nothing was learned in the last round; empty when something was."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What one round knows."""

    members: MembershipView
    traffic: DemandView
    penalties: Mapping[str, Penalty]
    """engine -> its outlier penalty."""
    mismatch: Mapping[str, float]
    """engine -> requests reported / requests sent."""


class Learner:
    """Corrections of all engines. The only owner of that state; `update` is called before each round."""

    def __init__(self) -> None:
        self._engines: dict[str, Learned] = {}
        self._rules: PlanningRules | None = None
        """Whose engines and profiles they are."""
        self._updated_at: float | None = None
        self._followed_at: float | None = None

    def update(self, rules: PlanningRules, seen: Observed, now: float) -> None:
        """Learn from what is known now."""
        last = now if self._updated_at is None else self._updated_at
        elapsed_s, self._updated_at = min(now - last, _LONGEST_S), now
        self._fit(rules)
        if elapsed_s > 0:
            works = mean_work(rules, seen.traffic)
            sent = _sent_rps(seen.traffic)
            for name in self._engines:
                self._engines[name] = _next(
                    rules,
                    name,
                    self._engines[name],
                    seen,
                    works.get(name, 1.0),
                    sent.get(name, 0.0),
                    elapsed_s,
                    now,
                )
        self._follow(rules.policy.planning.learning.half_life_s, now)

    def corrections(self, rules: PlanningRules) -> dict[str, Correction]:
        """engine -> what to plan with; engines whose profile stands as it is are left out."""
        return {
            name: found.used
            for name, found in self._engines.items()
            if name in rules.engines
            and not found.used.neutral
            and rules.policy.engines[name].learning != "ignore"
        }

    def unknown(self) -> frozenset[str]:
        """Engines that were never seen to serve for long enough."""
        return frozenset(name for name, found in self._engines.items() if found.served_s < _SERVED_S)

    def known(self) -> Mapping[str, Learned]:
        """engine -> what is known of it."""
        return self._engines

    def save(self) -> dict[str, Any]:
        """What a restart should know, as plain values."""
        return {
            name: {
                "profile": found.profile,
                "learned": _plain(found.correction),
                "used": _plain(found.used),
                "served_s": found.served_s,
            }
            for name, found in self._engines.items()
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take up what `save` wrote. Raises ValueError, KeyError or TypeError when it did not."""
        self._engines = {
            str(name): Learned(
                profile=str(entry["profile"]),
                correction=_correction(entry["learned"]),
                used=_correction(entry["used"]),
                served_s=float(entry["served_s"]),
            )
            for name, entry in saved.items()
        }
        self._rules = None

    def _fit(self, rules: PlanningRules) -> None:
        """Know the policy's engines with their profiles, and forget all others."""
        if rules is self._rules:
            return
        found = {}
        for name, engine in rules.engines.items():
            known, profile = self._engines.get(name), digest(engine.profile)
            found[name] = known if known and known.profile == profile else Learned(profile)
        self._engines, self._rules = found, rules

    def _follow(self, half_life_s: float, now: float) -> None:
        if self._followed_at is None:
            self._followed_at = now
        if now - self._followed_at >= _FOLLOW * half_life_s:
            self._followed_at = now
            for name, found in self._engines.items():
                self._engines[name] = replace(found, used=followed(found.used, found.correction))


def _next(
    rules: PlanningRules,
    name: str,
    found: Learned,
    seen: Observed,
    work: float,
    sent_rps: float,
    elapsed_s: float,
    now: float,
) -> Learned:
    """What is known of an engine after another round."""
    served_s = found.served_s + (elapsed_s if sent_rps >= _LEAST_SENT_RPS else 0.0)
    profile = rules.engines[name].profile
    sample = sample_of(seen.members.engines.get(name, ()), work, now)
    paused = _why_not(rules, name, seen) or _says_nothing(sample, profile)
    if paused or sample is None:
        return replace(found, served_s=served_s, paused=paused)
    half_life_s = rules.policy.planning.learning.half_life_s
    correction = found.correction.update(
        profile,
        load_rps=sample.load_rps,
        dt_s=elapsed_s,
        tbot_ms=sample.tbot_ms,
        ttft_ms=sample.ttft_ms,
        learning=Learning(half_life_s=half_life_s, prior_s=_PRIOR * half_life_s),
    )
    return replace(found, correction=correction, served_s=served_s, paused="")


def _why_not(rules: PlanningRules, name: str, seen: Observed) -> str:
    """Why nothing may be learned of an engine now, whatever it reports; empty when it may."""
    policy = rules.policy
    mode = policy.engines[name].learning
    if mode != "learn":
        return f"{mode} by the policy"
    penalty = seen.penalties.get(name)
    if penalty is not None and (penalty.value < 1.0 or penalty.hold is not None):
        return f"penalised: {penalty.explanation}"
    if penalty is not None and (penalty.residual or 0.0) >= policy.protection.penalties.enter_ratio:
        return f"an outlier: {penalty.residual:.2f} times the prediction"
    ratio = seen.mismatch.get(name)
    if ratio is not None and not _AGREE[0] <= ratio <= _AGREE[1]:
        return f"reports {ratio:.2f} times the requests that Envoys sent"
    return ""


def _says_nothing(sample: Sample | None, profile: Profile) -> str:
    if sample is None:
        return "no healthy replica tells load and latency"
    if sample.load_rps > profile.capacity_rps:
        return "loaded beyond its profile"
    return ""


def sample_of(replicas: tuple[Replica, ...], work: float, now: float) -> Sample | None:
    """The mean of the replicas that are like each other: ready, heard, neither penalised nor new.

    While more requests wait than run, the time to first token is left out: it is a queue's.
    """
    told = [
        (replica, rps)
        for replica in replicas
        if replica.ready and replica.part == 1.0 and replica.presence is Presence.REPORTING
        if (rps := replica.value(Signal.REQUESTS_PER_S, now)) is not None
    ]
    total = sum(rps for _, rps in told)
    if total < _LEAST_RPS:
        return None
    queueing = _sum(told, Signal.WAITING, now) > _sum(told, Signal.RUNNING, now)
    tbot = mean_by_requests(told, Signal.TBOT_MEAN_MS, now)
    ttft = mean_by_requests(told, Signal.TTFT_MEAN_MS, now)
    if tbot is None and ttft is None:
        return None
    return Sample(work * total / len(told), tbot, None if queueing else ttft)


def _sum(told: list[tuple[Replica, float]], signal: Signal, now: float) -> float:
    return sum(replica.value(signal, now) or 0.0 for replica, _ in told)


def mean_by_requests(told: list[tuple[Replica, float]], signal: Signal, now: float) -> float | None:
    """The mean by requests, of the replicas that tell it; None without any."""
    values = [(rps, value) for replica, rps in told if rps > 0 and (value := replica.value(signal, now))]
    total = sum(rps for rps, _ in values)
    return sum(rps * value for rps, value in values) / total if total else None


def mean_work(rules: PlanningRules, traffic: DemandView) -> dict[str, float]:
    """engine -> mean work of the requests that it answers, in reference requests."""
    rates: dict[str, float] = {}
    loads: dict[str, float] = {}
    for (_, key, engine), answers in traffic.answers.items():
        if engine != SHED and key in rules.keys and engine in rules.engines:
            rates[engine] = rates.get(engine, 0.0) + answers.completed_rps
            work = rules.keys[key].work.get(engine, 1.0)
            loads[engine] = loads.get(engine, 0.0) + work * answers.completed_rps
    return {engine: loads[engine] / rate for engine, rate in rates.items() if rate > 0}


def _sent_rps(traffic: DemandView) -> dict[str, float]:
    sent: dict[str, float] = {}
    for (_, engine), seen in traffic.engines.items():
        sent[engine] = sent.get(engine, 0.0) + seen.sent_rps
    return sent


def digest(profile: Profile) -> str:
    """Tells profiles apart."""
    text = json.dumps(profile.to_dict(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(found: Correction) -> list[Any]:
    return [found.tbot_factor, found.load_factor, found.ttft_offset_ms, list(found.moments)]


def _correction(saved: Any) -> Correction:
    tbot, load, ttft, moments = saved
    s, su, suu, sy, suy = map(float, moments)
    return Correction(float(tbot), float(load), float(ttft), moments=(s, su, suu, sy, suy))
