"""What the policies that steer by what they see are shown: latency and load of every engine. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.control_plane.learning import mean_by_requests
from headrace.problem import PlanningRules
from optimizer import SHED, Observed
from signals.demand import DemandView
from signals.readings import Signal
from signals.replicas import MembershipView, Presence, Replica

POLICIES = frozenset({"feedback", "dgd"})
"""Those that look at it."""
_LEAST_RPS = 0.05
"""Less is the memory of an average."""


@dataclass(slots=True)
class _Answered:
    """What Envoys saw an engine answer, per second."""

    requests: float = 0.0
    work: float = 0.0
    tokens: float = 0.0


def observed(
    rules: PlanningRules, members: MembershipView, traffic: DemandView, now: float
) -> dict[str, Observed]:
    """engine -> the mean latency that its replicas report, TTFT and a TBOT for each token of the mean answer,
    and the work/s that Envoys saw it answer.

    All of its ready replicas count, those that are slow too. Engines that answer nothing, or tell no latency
    that is fresh, are left out: policies take those from the profile.
    """
    found = {}
    for name, answered in _answered(rules, traffic).items():
        if answered.requests >= _LEAST_RPS:
            tokens = answered.tokens / answered.requests
            latency_ms = _latency_ms(members.engines.get(name, ()), tokens, now)
            if latency_ms is not None:
                found[name] = Observed(latency_ms, answered.work)
    return found


def _answered(rules: PlanningRules, traffic: DemandView) -> dict[str, _Answered]:
    found: dict[str, _Answered] = {}
    for (_, key, engine), answers in traffic.answers.items():
        if engine != SHED and key in rules.keys and engine in rules.engines:
            total, rps = found.setdefault(engine, _Answered()), answers.completed_rps
            total.requests += rps
            total.work += rps * rules.keys[key].work.get(engine, 1.0)
            total.tokens += rps * rules.keys[key].output_tokens
    return found


def _latency_ms(replicas: tuple[Replica, ...], tokens: float, now: float) -> float | None:
    told = [
        (replica, rps)
        for replica in replicas
        if replica.ready and replica.presence is Presence.REPORTING
        if (rps := replica.value(Signal.REQUESTS_PER_S, now)) is not None
    ]
    ttft, tbot = (mean_by_requests(told, s, now) for s in (Signal.TTFT_MEAN_MS, Signal.TBOT_MEAN_MS))
    if ttft is None or (tbot is None and tokens > 0):
        return None
    return ttft + tokens * (tbot or 0.0)
