"""Is the plan as good as an independent convex solver's, and within every constraint?

Random instances of 1..30 front-ends × 1..60 engines, one and several classes, up to near saturation, against
cvxpy + Clarabel on the same objective. Needs `pip install -e '.[bench]'`.

    python benchmarks/optimizer_quality.py [--instances 200]
"""

from __future__ import annotations

import argparse

import cvxpy as cp
import numpy as np

from optimizer import SHED, Harmonic, Problem, plan
from optimizer.layout import build_rounds
from optimizer.simulation.fleets import fleet


def independent(problem: Problem) -> float:
    """The least objective of one connected fleet without history or shedding, ms per request."""
    (round_,), _ = build_rounds(problem)
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
    limits = [cp.sum(x, axis=1) == d, load <= round_.capacity]
    if not layout.mask.all():
        limits.append(cp.multiply(1.0 - layout.mask, x) == 0)
    program = cp.Problem(cp.Minimize(cost / d.sum()), limits)
    program.solve(solver=cp.CLARABEL)
    return float(program.value) if program.status in ("optimal", "optimal_inaccurate") else float("nan")


def violation(problem: Problem, shares) -> float:  # noqa: ANN001 — a plan's shares
    """Largest relative excess over a capacity."""
    load = dict.fromkeys(problem.engines, 0.0)
    for f, rows in shares.items():
        for k, row in rows.items():
            for name, share in row.items():
                if name != SHED:
                    load[name] += share * problem.demand_rps[f][k] * problem.keys[k].work.get(name, 1.0)
    return max(load[e] / problem.engines[e].capacity_rps - 1.0 for e in load)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--instances", type=int, default=200)
    options = parser.parse_args()
    differences, gaps, violations, ratio = [], [], [], []
    for seed in range(options.instances):
        rng = np.random.default_rng(seed)
        classes = int(rng.choice([1, 1, 2, 3]))
        problem = fleet(
            seed,
            int(rng.integers(1, 31)),
            int(rng.integers(1, 61)),
            classes,
            load=float(rng.choice([0.3, 0.6, 0.8, 0.9, 0.97, 0.995])),
        )
        result = plan(problem)
        if result.shed_rps > 0:
            continue
        best = independent(problem)
        if not np.isfinite(best):
            continue
        differences.append(result.objective_ms / best - 1.0)
        gaps.append(result.gap)
        violations.append(violation(problem, result.shares))
        if classes > 1:
            ratio.append(result.e2e_ms / result.objective_ms)
    worst = max(differences, key=abs)
    print(f"{len(differences)} instances, against Clarabel on the same objective")
    print(f"difference: worst {worst:+.5%}, mean {np.mean(differences):+.5%}; bound 0.1 %")
    print(f"certified gap: largest {max(gaps):.5%}; bound 0.1 %")
    print(f"largest excess over a capacity: {max(0.0, *violations):.1e}; bound 1e-6")
    if ratio:
        print(f"several classes, true mean ÷ objective: {min(ratio):.4f} to {max(ratio):.4f}")


if __name__ == "__main__":
    main()
