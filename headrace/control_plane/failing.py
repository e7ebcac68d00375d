"""Engines at which requests fail, as Envoys see it: an outlier of errors, not of latency. Pure.

Of the requests first sent to an engine, some are tried again (there, then at the fallback) and some end in
its error. Where one replica of several fails, few are; where all do, each needs every attempt. Errors that
come with the requests, or from everywhere, are not one engine's: it is judged against the model's others.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_low

from headrace.policy import Policy
from signals.demand import DemandView

_FRESH_S = 10.0
"""A front-end that is silent for longer says nothing of now."""
_LEAST_RPS = 1.25
"""Of the fast estimate, which looks back 4 s: five requests. Of an engine with fewer nothing bad is said."""
_LEAST_GOOD_RPS = 0.25
_FAILING = 0.7
_WELL = 0.1


def failing(view: DemandView, policy: Policy) -> frozenset[str]:
    """Engines that fail: nearly every request, and more than twice the part that is usual for the model."""
    parts = _parts(view, policy, _LEAST_RPS)
    return frozenset(
        engine
        for engine, part in parts.items()
        if part >= _FAILING and part > 2.0 * _usual(parts, policy, engine)
    )


def serving(view: DemandView, policy: Policy) -> frozenset[str]:
    """Engines that answer what they are sent."""
    return frozenset(e for e, part in _parts(view, policy, _LEAST_GOOD_RPS).items() if part <= _WELL)


def _parts(view: DemandView, policy: Policy, least_rps: float) -> dict[str, float]:
    """engine -> part of the requests first sent there that failed there."""
    attempts = policy.protection.retries.same_engine + 1
    bad: dict[str, float] = {}
    all_: dict[str, float] = {}
    for (frontend, _, engine), seen in view.answers.items():
        if engine in policy.engines and view.age_s.get(frontend, 0.0) <= _FRESH_S:
            bad[engine] = bad.get(engine, 0.0) + seen.retry_rps / attempts + seen.failed_rps
            all_[engine] = all_.get(engine, 0.0) + seen.completed_rps
    return {engine: min(1.0, bad[engine] / rps) for engine, rps in all_.items() if rps >= least_rps}


def _usual(parts: Mapping[str, float], policy: Policy, engine: str) -> float:
    """What is usual at the model's other engines."""
    model = policy.engines[engine].model
    others = [p for name, p in parts.items() if name != engine and policy.engines[name].model == model]
    return median_low(others) if others else 0.0
