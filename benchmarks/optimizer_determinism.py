"""Is the plan the same integers from every start?

Each instance (churn and κ on) is planned cold, from warm states left by other rounds, with its rows and
engines written in another order, and in another process. Prints how many instances differ.

    python benchmarks/optimizer_determinism.py [--instances 100] [--largest 100x300]
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import subprocess
import sys

import numpy as np

from optimizer import Plan, Problem, Warm, plan
from optimizer.simulation.fleets import fleet, noisy


def instance(seed: int, largest: tuple[int, int]) -> Problem:
    rng = np.random.default_rng(1000 + seed)
    frontends = int(rng.integers(1, largest[0] + 1))
    engines = int(rng.integers(1, largest[1] + 1))
    classes = int(rng.integers(1, 4)) if frontends * engines <= 2000 else 1
    base = fleet(
        seed,
        frontends,
        engines,
        classes,
        load=float(rng.uniform(0.2, 0.97)),
        eligible=float(rng.choice([1.0, 0.5])),
    )
    return noisy(base, rng, 0.05, previous_shares=plan(base).shares)


def digest(result: Plan) -> str:
    plain = {
        f: {k: dict(sorted(row.items())) for k, row in rows.items()} for f, rows in result.shares.items()
    }
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def shuffled(problem: Problem, rng: np.random.Generator) -> Problem:
    def mix(mapping):  # noqa: ANN001, ANN202 — any mapping
        keys = list(mapping)
        rng.shuffle(keys)
        return {key: mapping[key] for key in keys}

    return dataclasses.replace(
        problem,
        demand_rps={f: mix(row) for f, row in mix(problem.demand_rps).items()},
        network_ms={f: mix(row) for f, row in mix(problem.network_ms).items()},
        engines=mix(problem.engines),
        keys=mix(problem.keys),
        eligible={
            row: frozenset(sorted(e, reverse=True))
            for row, e in mix({k: problem.eligible[k] for k in problem.eligible}).items()
        }
        if len(problem.eligible) < 50
        else problem.eligible,
    )


def answers(seed: int, largest: tuple[int, int]) -> dict[str, str]:
    problem, rng = instance(seed, largest), np.random.default_rng(seed)
    out = {"cold": digest(plan(problem))}
    for start in range(6):
        warm = Warm()
        other = noisy(problem, rng, 0.02 + 0.1 * start)
        plan(dataclasses.replace(other, previous_shares=None) if start % 2 else other, warm=warm)
        out[f"warm {start}"] = digest(plan(problem, warm=warm))
    out["shuffled"] = digest(plan(shuffled(problem, rng)))
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--instances", type=int, default=100)
    parser.add_argument("--largest", default="100x300")
    parser.add_argument("--child", type=int)
    options = parser.parse_args()
    largest = tuple(map(int, options.largest.split("x")))
    if options.child is not None:
        print(digest(plan(instance(options.child, largest))))
        return
    different = inexact = 0
    for seed in range(options.instances):
        found = answers(seed, largest)
        command = [sys.executable, __file__, "--child", str(seed), "--largest", options.largest]
        found["process"] = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        inexact += not plan(instance(seed, largest)).exact
        odd = [name for name, value in found.items() if value != found["cold"]]
        if odd:
            different += 1
            print(f"instance {seed} differs: {', '.join(odd)}")
    print(
        f"{different} of {options.instances} instances differ (bound 0); {inexact} stopped before the optimum"
    )


if __name__ == "__main__":
    main()
