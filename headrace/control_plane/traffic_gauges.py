"""Gauges and counters of what Envoys see: demand, how requests ended, who answered, distances."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from headrace.control_plane.families import KEY, Sample, gauge, split_key
from headrace.policy import Policy
from signals.demand import DemandView


def traffic(policy: Policy, view: DemandView) -> Iterator[Metric]:
    """Yield every family that Envoys' counters give."""
    yield from _demand(policy, view)
    yield _requests(policy, view)
    yield gauge("headrace_retry_ratio", "retries per final answer", KEY, _retry_ratios(view))
    labels = (*KEY, "engine")
    yield gauge("headrace_share_realised_ratio", "shares of final answers", labels, _realised(view))
    yield _network(policy, view)


def _demand(policy: Policy, view: DemandView) -> Iterator[Metric]:
    rps: Iterator[Sample] = (
        ((frontend, *split_key(key)), point.rps)
        for (frontend, key), point in sorted(view.demand.items())
        if frontend in policy.frontends and key in policy.key_specs
    )
    yield gauge("headrace_demand_rps", "first attempts per second", KEY, rps)
    ages: Iterator[Sample] = (
        ((frontend,), age) for frontend, age in sorted(view.age_s.items()) if frontend in policy.frontends
    )
    yield gauge("headrace_demand_age_seconds", "since the last counters", ("frontend",), ages)


def _requests(policy: Policy, view: DemandView) -> Metric:
    """Ended requests. They count from when an Envoy was first heard of, so no scrape sees a jump when one
    connects that has long been running."""
    requests = CounterMetricFamily(
        "headrace_requests", "requests by how they ended", labels=(*KEY, "outcome")
    )
    for (frontend, key), found in sorted(view.outcomes.items()):
        if frontend in policy.frontends and key in policy.key_specs:
            for outcome in ("ok", "error", "shed"):
                requests.add_metric([frontend, *split_key(key), outcome], getattr(found, outcome))
    return requests


def _retry_ratios(view: DemandView) -> Iterator[Sample]:
    sums: dict[tuple[str, str], tuple[float, float]] = {}
    for (frontend, key, _), answers in view.answers.items():
        done, again = sums.get((frontend, key), (0.0, 0.0))
        sums[frontend, key] = (done + answers.completed_rps, again + answers.retry_rps)
    for (frontend, key), (done, again) in sorted(sums.items()):
        if done:
            yield (frontend, *split_key(key)), again / done


def _realised(view: DemandView) -> Iterator[Sample]:
    """Who answered first attempts; what was shed is not among them."""
    totals: dict[tuple[str, str], float] = {}
    for (frontend, key, _), found in view.answers.items():
        totals[frontend, key] = totals.get((frontend, key), 0.0) + found.completed_rps
    for (frontend, key, engine), found in sorted(view.answers.items()):
        if (total := totals[frontend, key]) > 0:
            yield (frontend, *split_key(key), engine), found.completed_rps / total


def _network(policy: Policy, view: DemandView) -> Metric:
    """Round trips by the policy, and the mean TCP connect time that Envoys measured."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for frontend in policy.frontends:
        for name, spec in policy.engines.items():
            found[frontend, spec.region, "policy"] = [policy.network_ms(frontend, name)]
    for (frontend, name), seen in view.engines.items():
        if seen.rtt_ms is not None and name in policy.engines:
            found.setdefault((frontend, policy.engines[name].region, "measured"), []).append(seen.rtt_ms)
    labels = ("frontend", "region", "source")
    samples: Iterator[Sample] = ((key, sum(ms) / len(ms) / 1000) for key, ms in sorted(found.items()))
    return gauge("headrace_network_rtt_seconds", "round trip", labels, samples)
