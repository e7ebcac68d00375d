"""What the simulation has to show: the load curve with noise (S2), the step and `feedback`'s limit (S3).

S2: every policy on the same draws of demand; `global` must not be worse than any of them beyond the interval.
S3: `feedback` is calm below its stability limit and oscillates above; `global` settles, without turning back.
Exits 1 when something does not hold.

    python benchmarks/simulation_claims.py [--seeds 5] [--loads 0.4 0.8 1.0]
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from pathlib import Path

import numpy as np

from headrace.scenario_file import ScenarioFile, read_scenario
from optimizer import POLICIES, Tuning
from optimizer.simulation import Event, Metrics, Scenario, reversals, settled_at, simulate

SCENARIOS = Path(__file__).parents[1] / "examples" / "scenarios"
STUDENT = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Degrees of freedom -> half-width of the 95 % interval of a mean in its standard errors."""
WORTH = 0.0075
"""Part of the latency below which `global` moves nothing (`min_gain`): nearer than that is a tie."""


def scenario(name: str) -> ScenarioFile:
    file = read_scenario(SCENARIOS / name)
    assert isinstance(file, ScenarioFile), name
    return file


def interval(values: np.ndarray) -> tuple[float, float]:
    """(mean, half-width of its 95 % interval)."""
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return float(values.mean()), STUDENT[len(values) - 1] * error


def unserved(runs: list[Metrics]) -> float:
    """Part of the requests that were refused or failed."""
    return float(np.mean([run.refused + run.failed for run in runs]))


def compare(name: str, ours: list[Metrics], theirs: list[Metrics]) -> bool:
    """Print one policy's line; whether `global` is not worse."""
    mean, half = interval(np.array([run.ttft_mean_ms for run in theirs]))
    pairs = zip(ours, theirs, strict=True)
    more, width = interval(np.array([a.ttft_mean_ms - b.ttft_mean_ms for a, b in pairs]))
    tie = abs(more) <= max(width, WORTH * mean)
    verdict = "tie" if tie else "global better" if more < 0 else "GLOBAL WORSE"
    print(
        f"  {name:<18} {mean:9.1f} ± {half:7.1f} ms, {unserved(theirs):6.2%} not served;"
        f" global − it {more:+10.1f} ± {width:7.1f}: {verdict}"
    )
    return tie or more < 0


def load_curve(seeds: int, loads: list[float], dispersion: float) -> bool:
    """S2, shortened, at every load."""
    file = scenario("s2-load-curve.yaml")
    holds = True
    for load in loads:
        base = dataclasses.replace(file.build(load), duration_s=600, warm_up_s=200, dispersion=dispersion)
        draws = [dataclasses.replace(base, seed=seed) for seed in range(1, seeds + 1)]
        runs = {policy: [simulate(draw, policy).metrics for draw in draws] for policy in POLICIES}
        ours = runs.pop("global")
        mean, half = interval(np.array([run.ttft_mean_ms for run in ours]))
        print(f"demand × {load:g}: global {mean:.1f} ± {half:.1f} ms, {unserved(ours):.2%} not served")
        for name, theirs in runs.items():
            holds &= compare(name, ours, theirs)
    return holds


def step() -> bool:
    """S3 as shipped: from when on `global`'s shares stay after each step."""
    s3 = scenario("s3-step.yaml").build()
    trace = simulate(s3, "global")
    (event,) = s3.events
    limit_s = s3.report_delay_s + s3.demand_window_s + s3.interval_s
    holds = True
    for what, begin, end in (("up", event.at_s, event.until_s), ("down", event.until_s, s3.duration_s)):
        mine = (trace.time_s >= begin) & (trace.time_s < end)
        share = trace.fleet_share[mine]
        settled_s, turns = settled_at(trace.time_s[mine], share, begin) - begin, reversals(share)
        holds &= turns == 0 and (what == "down" or settled_s <= limit_s)
        note = f"bound {limit_s:g} s" if what == "up" else "no surge: the average goes on, no bound"
        print(
            f"  global, step {what}: settled {settled_s:g} s after it ({note}), {turns} reversals (bound 0)"
        )
    return holds


def peak(s3: Scenario, part_of_limit: float, alpha: float, limit: float) -> Scenario:
    """S3 from its step on, engines that follow at once and one of them 1 % slower for ten seconds.

    Three publications old is what `feedback` sees then: d = 2. Demand alone loads all engines alike, and
    nothing would disturb it. At equal utilisation u the loop gain is gain · u·ℓ′/ℓ.
    """
    (event,) = s3.events
    rates = {
        f: {k: rps * (event.demand_factor if f == event.frontend else 1.0) for k, rps in row.items()}
        for f, row in s3.problem.demand_rps.items()
    }
    total = sum(engine.profile.capacity_rps for engine in s3.problem.engines.values())
    per_capacity = sum(rps for row in rates.values() for rps in row.values()) / total
    profile = next(iter(s3.problem.engines.values())).profile
    at = profile.capacity_rps * per_capacity
    low, mid, high = (float(profile.curve.latency(np.array([at * x]))[0][0]) for x in (0.9999, 1.0, 1.0001))
    slope = (high - low) / 0.0002 / mid
    return dataclasses.replace(
        s3,
        problem=dataclasses.replace(s3.problem, demand_rps=rates),
        duration_s=event.until_s - event.at_s,
        warm_up_s=0.0,
        settling_s=0.1,
        events=(Event(50, 60, engine="a", slow=1.01),),
        tuning=Tuning(feedback_gain=part_of_limit * limit / slope, feedback_ewma=alpha),
    )


def feedback() -> bool:
    """Reversals of `feedback`'s shares in the second half of S3's peak, below and above the limit."""
    s3 = scenario("s3-step.yaml").build()
    holds = True
    for alpha, limit in ((1.0, 2 * math.sin(math.pi / 10)), (0.3, 0.537)):
        for part in (0.85, 1.2):
            asked = peak(s3, part, alpha, limit)
            share = simulate(asked, "feedback").fleet_share
            turns = reversals(share[len(share) // 2 :])
            holds &= turns == 0 if part < 1 else turns > 10
            print(
                f"  feedback, EWMA {alpha:g}, loop gain {part:g} × {limit:.3f} (setting"
                f" {asked.tuning.feedback_gain:.4f}): {turns} reversals in"
                f" {asked.duration_s / 2:g} s ({'bound 0' if part < 1 else 'must exceed 10'})"
            )
    return holds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5, choices=range(3, 11))
    parser.add_argument("--dispersion", type=float, default=1.0, help="variance over mean of arrivals")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1])
    options = parser.parse_args()
    print("S3, demand at B 60 -> 120 -> 60, report delay 10 s")
    met = [step(), feedback()]
    print(f"S2, mean TTFT with network, {options.seeds} draws of dispersion {options.dispersion:g}")
    met.append(load_curve(options.seeds, options.loads, options.dispersion))
    if not all(met):
        print("NOT MET")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
