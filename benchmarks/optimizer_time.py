"""How long planning takes, PuLP included.

Wall and CPU time of cold, warm and quiet rounds at 100 × 1,000, then a curve of time against size beside the
same program written densely in PuLP for CBC and given directly to HiGHS (both with 32 tangents an engine).

    python benchmarks/optimizer_time.py [--rounds 6] [--no-curve]
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import highspy
import numpy as np
import pulp

from optimizer import Correction, Problem, Warm, followed, plan, replan
from optimizer.layout import build_rounds
from optimizer.simulation.fleets import fleet, noisy

COLD = 5
"""First plans that are timed."""


def timed(run: Callable[[], Any]) -> tuple[Any, float, float]:
    """(result, wall ms, CPU ms)."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = run()
    return result, 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)


def line(name: str, walls: list[float], cpus: list[float], bound_ms: float) -> None:
    missed = ": NOT MET" if np.median(walls) > bound_ms else ""
    print(
        f"{name:<50} wall {np.median(walls):7.1f} ms (worst {max(walls):7.1f}),"
        f" CPU {np.median(cpus):7.1f} ms; bound {bound_ms:,.0f} ms{missed}"
    )


def cold(name: str, problems: list[Problem]) -> None:
    """First plans, each of a planner that knows nothing."""
    runs = [timed(lambda each=each: plan(each)) for each in problems]
    line(f"{name}, cold, {len(runs)} times", [run[1] for run in runs], [run[2] for run in runs], 1000)


def rounds(problem: Problem, count: int, noise: float, bound_ms: float, name: str) -> None:
    """Full plans, each against the shares of the one before, under noise."""
    rng, warm = np.random.default_rng(0), Warm()
    shares = plan(problem, warm=warm).shares
    walls, cpus, exact = [], [], 0
    for _ in range(count):
        now = noisy(problem, rng, noise, previous_shares=shares)
        result, wall, cpu = timed(lambda now=now: plan(now, warm=warm))
        shares, exact = result.shares, exact + result.exact
        walls.append(wall)
        cpus.append(cpu)
    line(name, walls, cpus, bound_ms)
    if exact < count:
        print(f"    {count - exact} of {count} stopped before the optimum")


def quiet(problem: Problem, count: int, noise: float) -> None:
    """The planning loop as it runs: price check first, programs only when it does not settle the matter."""
    rng, warm = np.random.default_rng(0), Warm()
    shares = plan(problem, warm=warm).shares
    walls, cpus, settled = [], [], 0
    for _ in range(count):
        now = noisy(problem, rng, noise, previous_shares=shares)
        result, wall, cpu = timed(lambda now=now: replan(now, warm=warm))
        if result.plan is None:
            settled += 1
            walls.append(wall)
            cpus.append(cpu)
        elif result.decision.publish:
            shares = result.plan.shares
    name = f"quiet round, noise {noise:.1%} ({settled} of {count} are)"
    if walls:
        line(name, walls, cpus, 20)
    else:
        print(f"{name:<50} nothing to time; bound 20 ms: NOT MET")


def corrected(problem: Problem, spread: float = 0.1) -> Problem:
    """The same fleet after the profile of each engine was corrected by what it reported."""
    rng = np.random.default_rng(0)
    engines = {}
    for name, engine in sorted(problem.engines.items()):
        tbot, load, ttft = 1.0 + rng.normal(0.0, spread, 3)
        learned = Correction(float(tbot), min(1.0, float(load)), 100.0 * float(ttft - 1.0))
        profile = followed(Correction(), learned).apply(engine.profile)
        engines[name] = dataclasses.replace(engine, profile=profile)
    return dataclasses.replace(problem, engines=engines)


def dense(problem: Problem, tangents: int = 32) -> tuple[Any, np.ndarray]:
    """Costs and rows of the plain program: every pair a column, every tangent a row."""
    (round_,), _ = build_rounds(problem)
    layout = round_.layout
    at = np.linspace(0.0, 1.0, tangents) ** 0.5 * round_.capacity[:, None]
    heights = [round_.curves(np.ascontiguousarray(column)) for column in at.T]
    return round_, np.array([(h, slope) for h, slope in heights]).transpose(2, 0, 1) if layout else at


def dense_cbc(problem: Problem) -> float:
    round_, cuts = dense(problem)
    layout, (rows, engines) = round_.layout, round_.layout.mask.shape
    at = np.linspace(0.0, 1.0, cuts.shape[1]) ** 0.5 * round_.capacity[:, None]
    lp = pulp.LpProblem("dense", pulp.LpMinimize)
    x = [[lp.add_variable(f"x{i}_{j}", 0) for j in range(engines)] for i in range(rows)]
    h = [lp.add_variable(f"h{j}", 0) for j in range(engines)]
    lp += pulp.lpSum(layout.cost[i, j] * x[i][j] for i in range(rows) for j in range(engines)) + pulp.lpSum(h)
    for i in range(rows):
        lp += pulp.lpSum(x[i]) == float(round_.demand[i])
    for j in range(engines):
        load = pulp.lpSum(float(layout.work[i, j]) * x[i][j] for i in range(rows))
        lp += load <= float(round_.capacity[j])
        for (height, slope), load0 in zip(cuts[j], at[j], strict=True):
            lp += h[j] >= float(height) + float(slope) * (load - float(load0))
    lp.solve(pulp.PULP_CBC_CMD(msg=False))
    return float(pulp.value(lp.objective)) / float(round_.demand.sum())


def direct_highs(problem: Problem) -> float:
    """The same, with load columns, straight into HiGHS."""
    round_, cuts = dense(problem)
    layout, (rows, engines) = round_.layout, round_.layout.mask.shape
    at = np.linspace(0.0, 1.0, cuts.shape[1]) ** 0.5 * round_.capacity[:, None]
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    inf = highspy.kHighsInf
    pairs = rows * engines
    cost = np.concatenate([layout.cost.ravel(), np.ones(engines), np.zeros(engines)])
    upper = np.concatenate([np.full(pairs + engines, inf), round_.capacity])
    none = np.zeros(0, dtype=np.int32)
    highs.addCols(
        len(cost), cost, np.zeros(len(cost)), upper, 0, np.zeros(len(cost), dtype=np.int32), none, np.zeros(0)
    )
    for i in range(rows):
        index = np.arange(i * engines, (i + 1) * engines, dtype=np.int32)
        highs.addRow(round_.demand[i], round_.demand[i], engines, index, np.ones(engines))
    for j in range(engines):
        index = np.append(np.arange(j, pairs, engines), pairs + engines + j).astype(np.int32)
        highs.addRow(0.0, 0.0, rows + 1, index, np.append(layout.work[:, j], -1.0))
        for (height, slope), load0 in zip(cuts[j], at[j], strict=True):
            pair = np.array([pairs + j, pairs + engines + j], dtype=np.int32)
            highs.addRow(float(height - slope * load0), inf, 2, pair, np.array([1.0, -slope]))
    highs.run()
    return float(highs.getObjectiveValue()) / float(round_.demand.sum())


def curve() -> None:
    print(f"{'CPU ms':>9} {'plan cold':>12} {'plan warm':>12} {'dense PuLP+CBC':>16} {'direct HiGHS':>14}")
    for frontends, engines in ((3, 3), (10, 30), (20, 100), (50, 300), (100, 1000)):
        problem = fleet(7, frontends, engines)
        warm = Warm()
        first, _, cold = timed(lambda p=problem, w=warm: plan(p, warm=w))
        again = noisy(problem, np.random.default_rng(1), 0.03, previous_shares=first.shares)
        _, _, then = timed(lambda p=again, w=warm: plan(p, warm=w))
        small = frontends * engines <= 2000
        cbc = f"{timed(lambda p=problem: dense_cbc(p))[1]:16.0f}" if small else f"{'–':>16}"
        direct = (
            f"{timed(lambda p=problem: direct_highs(p))[2]:14.0f}"
            if frontends * engines <= 15000
            else f"{'–':>14}"
        )
        print(f"{frontends:>4} × {engines:<5}{cold:10.1f} {then:12.1f} {cbc} {direct}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--no-curve", action="store_true")
    options = parser.parse_args()
    big = fleet(1, 100, 1000)
    cold("100 × 1,000", [fleet(seed, 100, 1000) for seed in range(COLD)])
    free = dataclasses.replace(
        big, keys={k: dataclasses.replace(v, gamma_ms=0.0, kappa=0.0) for k, v in big.keys.items()}
    )
    rounds(free, options.rounds, 0.03, 150, "100 × 1,000 warm, γ = κ = 0, noise 3 %")
    rounds(big, options.rounds, 0.03, 350, "100 × 1,000 warm, γ = 5 ms, κ = 0.05, noise 3 %")
    for noise in (0.003, 0.013, 0.03):
        quiet(big, 3 * options.rounds, noise)
    own = corrected(big)
    curves = len({engine.profile.curve for engine in own.engines.values()})
    cold(f"each profile corrected ({curves} curves)", [own] * COLD)
    quiet(own, options.rounds, 0.013)
    rounds(fleet(1, 20, 40, 3), options.rounds, 0.03, 20, "20 × 40 × 3 classes warm, γ = 5 ms, κ = 0.05")
    if not options.no_curve:
        curve()


if __name__ == "__main__":
    main()
