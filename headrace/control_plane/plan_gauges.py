"""Gauges of the plan in force: what it expects of every row and engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from headrace.control_plane.families import KEY, Sample, finite, gauge, one, split_key
from headrace.control_plane.limits import retry_budgets
from headrace.control_plane.rounds import Round
from headrace.control_plane.table import Limits
from headrace.policy import Policy
from optimizer import SHED, EnginePlan, Plan, Problem


def planned(policy: Policy, found: Round | None, now: Limits, envoys: Mapping[str, int]) -> Iterator[Metric]:
    """Yield every family that a plan gives; none without a plan. `now`: the limits in force; `envoys`:
    front-end -> connected Envoys."""
    if found is None or found.plan is None or found.problem is None:
        return
    plan = found.plan
    yield gauge("headrace_plan_gap_ratio", "certified gap of the plan", (), one(finite(plan.gap)))
    latency = "planned mean end-to-end latency of what is served"
    yield gauge("headrace_plan_latency_seconds", latency, KEY, _latencies(policy, plan, found.problem))
    engines = {name: plan.engines[name] for name in plan.engines if name in policy.engines}
    yield from _engines(engines)
    budgets = retry_budgets(found, now, envoys)
    ratios: Iterator[Sample] = (((name,), budgets.get(name)) for name in engines)
    text = "retries allowed at once over requests expected in flight"
    yield gauge("headrace_engine_retry_budget_ratio", text, ("engine",), ratios)


def _engines(engines: Mapping[str, EnginePlan]) -> Iterator[Metric]:
    for name, text, values in (
        ("load_rps", "planned load, work/s", {n: e.load_rps for n, e in engines.items()}),
        ("capacity_rps", "effective capacity, work/s", {n: e.capacity_rps for n, e in engines.items()}),
        ("utilization_ratio", "planned load over capacity", {n: _utilization(e) for n, e in engines.items()}),
        (
            "price_seconds",
            "price of one more unit of load",
            {n: e.price_ms / 1e3 for n, e in engines.items()},
        ),
    ):
        samples: Iterator[Sample] = (((engine,), value) for engine, value in values.items())
        yield gauge(f"headrace_engine_{name}", text, ("engine",), samples)


def _utilization(engine: EnginePlan) -> float | None:
    return engine.load_rps / engine.capacity_rps if engine.capacity_rps else None


def _latencies(policy: Policy, plan: Plan, problem: Problem) -> Iterator[Sample]:
    """Network, TTFT and output tokens × TBOT, by share of what is served; none where nothing is."""
    for frontend, rows in plan.shares.items():
        for key, shares in rows.items():
            if frontend not in policy.frontends or key not in policy.key_specs:
                continue
            served = {name: share for name, share in shares.items() if name != SHED}
            total, near = sum(served.values()), problem.network_ms[frontend]
            at = {name: plan.engines[name] for name in served}
            tokens = problem.keys[key].output_tokens
            ms = sum(
                share * (near[name] + at[name].ttft_ms + tokens * at[name].tbot_ms)
                for name, share in served.items()
            )
            yield (frontend, *split_key(key)), finite(ms / total / 1000) if total else None
