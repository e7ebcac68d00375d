"""Is the plan as good as an independent convex solver's, and within every constraint?

Random instances of 1..30 front-ends × 1..60 engines, one and several classes, some with forbidden pairs and
some with a largest share, up to near saturation, against cvxpy + Clarabel on the same objective. Exits 1 when
a bound is broken. Needs `pip install -e '.[bench]'`.

    python benchmarks/optimizer_quality.py [--instances 200]
"""

from __future__ import annotations

import argparse
import dataclasses

import cvxpy as cp
import numpy as np

from optimizer import SHED, UNITS, Harmonic, Problem, plan
from optimizer.layout import Round, build_rounds
from optimizer.problem import Shares
from optimizer.simulation.fleets import fleet


def independent(problem: Problem) -> float:
    """The least objective of a fleet without history or shedding, ms per request; NaN when not found."""
    rounds, _ = build_rounds(problem)
    demand = sum(float(round_.demand.sum()) for round_ in rounds)
    return sum(component(round_) for round_ in rounds) / demand


def component(round_: Round) -> float:
    """The least cost rate of one connected part, ms·requests/s."""
    layout, d = round_.layout, round_.demand
    x = cp.Variable(layout.mask.shape, nonneg=True)
    load = cp.sum(cp.multiply(layout.work, x), axis=0)
    cost = cp.sum(cp.multiply(layout.network + layout.idle, x))
    for j in range(len(layout.engines)):
        curve, n = layout.grids[layout.grid_of[j]].curve, round_.scale[j]
        assert isinstance(curve, Harmonic), "made by optimizer.simulation.fleets"
        per = load[j] / n
        u = per / curve.lambda_max_rps
        pole = curve.lambda_max_rps * (cp.inv_pos(1 - u) - 1 - u)  # l·u/(1 − u)
        over = cp.pos(per - curve.knee_rps)
        knee = curve.slope * (cp.square(over) + curve.knee_rps * over)  # slope·l·max(0, l − knee)
        ttft, tbot = knee + curve.queue_ms * pole, curve.t0_ms * pole
        cost += n * (round_.rho[j] * ttft + round_.omega[j] * tbot)
    limits = [cp.sum(x, axis=1) == d, load <= round_.capacity, x <= np.outer(d, layout.max_share)]
    if not layout.mask.all():
        limits.append(cp.multiply(1.0 - layout.mask, x) == 0)
    program = cp.Problem(cp.Minimize(cost / d.sum()), limits)
    program.solve(solver=cp.CLARABEL)
    found = program.status in ("optimal", "optimal_inaccurate")
    return float(program.value) * float(d.sum()) if found else float("nan")


def instance(seed: int) -> Problem:
    """A random fleet: every third with forbidden pairs, every fifth with a largest share of an engine."""
    rng = np.random.default_rng(seed)
    classes = int(rng.choice([1, 1, 2, 3]))
    frontends, engines = int(rng.integers(1, 31)), int(rng.integers(1, 61))
    load = float(rng.choice([0.3, 0.6, 0.8, 0.9, 0.97, 0.995]))
    eligible = float(rng.uniform(0.3, 0.9)) if seed % 3 == 0 else 1.0
    problem = fleet(seed, frontends, engines, classes, load=load, eligible=eligible)
    if seed % 5 or engines < 4:
        return problem
    pool = {name: dataclasses.replace(engine, max_share=0.5) for name, engine in problem.engines.items()}
    return dataclasses.replace(problem, engines=pool)


def violation(problem: Problem, shares: Shares) -> float:
    """By how much a sum of shares, a largest share, eligibility or a capacity (relatively) is broken.

    A largest share may be exceeded by the two units of 2^20 that rounding to integers takes.
    """
    load, worst = dict.fromkeys(problem.engines, 0.0), 0.0
    for f, k in problem.rows:
        row = shares[f][k]
        worst = max(worst, abs(sum(row.values()) - 1.0))
        for name, share in row.items():
            if name == SHED:
                continue
            allowed = problem.engines[name].max_share if name in problem.eligible[f, k] else 0.0
            worst = max(worst, share - allowed - (2 / UNITS if 0.0 < allowed < 1.0 else 0.0))
            load[name] += share * problem.demand_rps[f][k] * problem.keys[k].work.get(name, 1.0)
    return max(worst, *(load[name] / problem.engines[name].capacity_rps - 1.0 for name in load))


class Found:
    """What was seen, and which bounds it broke."""

    def __init__(self) -> None:
        self.differences: list[float] = []
        self.gaps: list[float] = []
        self.violations: list[float] = []
        self.ratio: list[float] = []
        self.refused = self.unsolved = self.partial = self.limited = 0

    def add(self, problem: Problem) -> None:
        """Plan one instance, and compare it where nothing is refused."""
        result = plan(problem)
        self.violations.append(violation(problem, result.shares))
        self.partial += len(set(problem.eligible.values())) > 1
        self.limited += any(engine.max_share < 1.0 for engine in problem.engines.values())
        if result.shed_rps > 0:
            self.refused += 1
            return
        best = independent(problem)
        if not np.isfinite(best):
            self.unsolved += 1
            return
        self.differences.append(result.objective_ms / best - 1.0)
        self.gaps.append(result.gap)
        if len(problem.keys) > 1:
            self.ratio.append(result.e2e_ms / result.objective_ms)

    def report(self) -> bool:
        """Print it; whether every bound holds."""
        worst = max(self.differences, key=abs)
        print(
            f"{len(self.violations)} instances, {self.partial} with forbidden pairs, {self.limited} with a"
            f" largest share; {len(self.differences)} compared with Clarabel on the same objective, not:"
            f" {self.refused} that refuse traffic, {self.unsolved} that Clarabel does not solve"
        )
        print(f"mean difference {np.mean(self.differences):+.5%}")
        held = [
            bounded("worst difference", worst, 1e-3, "+.5%"),
            bounded("largest certified gap", max(self.gaps), 1e-3, ".5%"),
            bounded("largest violation of a constraint", max(0.0, *self.violations), 1e-6, ".1e"),
        ]
        if self.ratio:
            print(f"several classes, true mean ÷ objective: {min(self.ratio):.4f} to {max(self.ratio):.4f}")
        return all(held)


def bounded(name: str, value: float, bound: float, form: str) -> bool:
    """Print a value beside its bound; whether it is within."""
    holds = abs(value) <= bound
    print(f"{name}: {value:{form}}; bound {bound:{form.lstrip('+')}}{'' if holds else ': NOT MET'}")
    return holds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--instances", type=int, default=200)
    options = parser.parse_args()
    found = Found()
    for seed in range(options.instances):
        found.add(instance(seed))
    if not found.report():
        raise SystemExit(1)


if __name__ == "__main__":
    main()
