"""Sessions moved against the least possible, through random rounds.

The partition, and on the same rounds a ring hash (1,024 points) and Maglev (65,537 slots) with weights.

    python benchmarks/optimizer_partition.py [--rounds 500]
"""

from __future__ import annotations

import argparse
import hashlib
import itertools

import numpy as np

from optimizer import Partition

SESSIONS = 20_000


def digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def ring(weights: dict[str, float], keys: np.ndarray, points: int = 1024) -> np.ndarray:
    names = sorted(weights)
    spots, owners = [], []
    for i, name in enumerate(names):
        for k in range(round(weights[name] * points)):
            spots.append(digest(f"{name}#{k}"))
            owners.append(i)
    order = np.argsort(np.array(spots, dtype=np.uint64))
    place = np.searchsorted(np.array(spots, dtype=np.uint64)[order], keys) % len(order)
    return np.array([digest(names[o]) for o in np.array(owners)[order]], dtype=np.uint64)[place]


def maglev(weights: dict[str, float], keys: np.ndarray, size: int = 65537) -> np.ndarray:
    names = sorted(n for n in weights if weights[n] > 0)
    table = np.full(size, -1)
    skip = [digest(f"{n}/skip") % (size - 1) + 1 for n in names]
    at = [digest(f"{n}/offset") % size for n in names]
    top, credit, filled = max(weights.values()), [0.0] * len(names), 0
    while filled < size:
        for i, name in enumerate(names):
            credit[i] += weights[name] / top
            if credit[i] < 1.0:
                continue
            credit[i] -= 1.0
            while table[at[i]] >= 0:
                at[i] = (at[i] + skip[i]) % size
            table[at[i]] = i
            filled += 1
            if filled == size:
                break
    return np.array([digest(n) for n in names], dtype=np.uint64)[table[keys % np.uint64(size)]]


def walk(engines: int, rounds: int, seed: int = 1) -> list[dict[str, float]]:
    rng, out = np.random.default_rng(seed), []
    weight = np.ones(engines) / engines
    for _ in range(rounds + 1):
        out.append({f"e{i:03d}": float(w) for i, w in enumerate(weight) if w > 0})
        kind = rng.random()
        weight = np.where(weight > 0, weight, 1e-3) * np.exp(rng.normal(0, 0.1, engines))
        if kind < 0.1:
            weight[rng.integers(engines)] = 0.0
        elif kind > 0.97:
            weight = rng.dirichlet(np.ones(engines))
        weight /= weight.sum()
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=500)
    options = parser.parse_args()
    keys = np.random.default_rng(0).integers(0, 2**63, SESSIONS, dtype=np.uint64)
    for engines in (3, 10, 20, 100):
        rows = walk(engines, options.rounds)
        partition, moved, bound, most = Partition.fresh(rows[0]), 0.0, 0.0, 0
        for _old, new in itertools.pairwise(rows):
            after = partition.relabel(new)
            moved += after.moved_from(partition)
            before, now = partition.units, after.units
            bound += sum(max(0, w - before.get(n, 0)) for n, w in now.items()) / 2**20
            partition, most = after, max(most, len(after.entries))
        fresh = sum(
            Partition.fresh(new).moved_from(Partition.fresh(old)) for old, new in itertools.pairwise(rows)
        )
        print(
            f"{engines:>3} engines, {options.rounds} rounds: moved ÷ bound {moved / bound:.4f} (bound 1.02),"
            f" at most {most / engines:.1f} intervals an engine; without memory {fresh / bound:.2f}"
        )
        few = rows[: min(len(rows), 41)]
        for name, assign in (("ring hash", ring), ("maglev", maglev)):
            least = sum(
                0.5 * sum(abs(b.get(n, 0) - a.get(n, 0)) for n in {*a, *b})
                for a, b in itertools.pairwise(few)
            )
            owners = [assign(row, keys) for row in few]
            changed = sum(float((a != b).mean()) for a, b in itertools.pairwise(owners))
            print(f"      {name:<10} moved ÷ bound {changed / least:.2f} (first {len(few) - 1} rounds)")


if __name__ == "__main__":
    main()
