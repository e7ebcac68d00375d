"""Sessions moved against the least possible, through random rounds. Exits 1 when a bound is broken.

The partition, and on the same rounds a ring hash (1,024 points) and Maglev (65,537 slots) with weights. Then
the worst that shares can do to a partition: little by little they gather at one engine and are handed on.

    python benchmarks/optimizer_partition.py [--rounds 500]
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np

from optimizer import UNITS, Partition
from optimizer.partition import most_entries

SESSIONS = 20_000
BOUND = 1.02
"""Moved ÷ least that the random rounds may not exceed."""


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
    table = [-1] * size
    skip = [digest(f"{n}/skip") % (size - 1) + 1 for n in names]
    at = [digest(f"{n}/offset") % size for n in names]
    turns = [weights[n] / max(weights.values()) for n in names]
    credit, filled = [0.0] * len(names), 0
    while filled < size:
        for i, turn in enumerate(turns):
            credit[i] += turn
            if credit[i] < 1.0:
                continue
            credit[i] -= 1.0
            while table[at[i]] >= 0:
                at[i] = (at[i] + skip[i]) % size
            table[at[i]] = i
            filled += 1
            if filled == size:
                break
    return np.array([digest(n) for n in names], dtype=np.uint64)[np.array(table)[keys % np.uint64(size)]]


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


class Walked:
    """What a partition went through; movement in parts of the hash space."""

    def __init__(self, shares: dict[str, float]) -> None:
        self.partition = Partition.fresh(shares)
        self.moved = self.least = self.worst = 0.0
        self.most, self.part_of_bound = 0, 0.0

    def to(self, shares: dict[str, float]) -> None:
        """Go on to other shares."""
        after, before = self.partition.relabel(shares), self.partition.units
        moved = after.moved_from(self.partition)
        least = sum(max(0, width - before.get(name, 0)) for name, width in after.units.items()) / UNITS
        self.moved, self.least = self.moved + moved, self.least + least
        self.worst = max(self.worst, moved - least)
        self.most = max(self.most, len(after.entries))
        self.part_of_bound = max(self.part_of_bound, len(after.entries) / most_entries(len(after.units)))
        self.partition = after

    def __str__(self) -> str:
        return (
            f"moved ÷ least {self.moved / self.least:.4f}, at most {self.most} intervals,"
            f" {self.part_of_bound:.0%} of their bound 8 N + 16"
        )


def hand_on(engines: int, piece: int, turns: int = 60) -> Walked:
    """All but two engines give a piece each to one, which then gives all to the one it touches least."""
    names = [f"e{i:03d}" for i in range(engines)]
    units = dict.fromkeys(names, UNITS // engines)
    gathers = names[-1]
    walked = Walked({name: width / UNITS for name, width in units.items()})
    for _ in range(turns):
        owners = [name for name, _ in walked.partition.entries]
        around = [pair for pair in itertools.pairwise(owners) if gathers in pair]
        touched = Counter(name for pair in around for name in pair)
        heir = min(names[:-1], key=lambda name: (touched[name], units[name], name))
        units[heir] += units[gathers] - 1
        units[gathers] = 1
        walked.to({name: width / UNITS for name, width in units.items()})
        for giver in names[:-1]:
            if giver != heir and units[giver] > piece + 1:
                units[giver] -= piece
                units[gathers] += piece
                walked.to({name: width / UNITS for name, width in units.items()})
    return walked


def moved_by(assign: Callable[..., np.ndarray], rows: list[dict[str, float]], keys: np.ndarray) -> float:
    """Sessions that change their destination, in parts of all, summed over the rounds."""
    owners = (assign(row, keys) for row in rows)
    return sum(float((before != after).mean()) for before, after in itertools.pairwise(owners))


def random_rounds(engines: int, rounds: int, keys: np.ndarray) -> bool:
    """Print one size; whether the partition keeps both bounds."""
    rows = walk(engines, rounds)
    walked = Walked(rows[0])
    for new in rows[1:]:
        walked.to(new)
    holds = walked.moved <= BOUND * walked.least and walked.part_of_bound <= 1.0
    print(
        f"{engines:>3} engines, {rounds} rounds: {walked} ({most_entries(engines)});"
        f" bound {BOUND}{'' if holds else ': NOT MET'}"
    )
    fresh = sum(
        Partition.fresh(new).moved_from(Partition.fresh(old)) for old, new in itertools.pairwise(rows)
    )
    others = {"without memory": fresh, "ring hash": moved_by(ring, rows, keys)}
    others["maglev"] = moved_by(maglev, rows, keys)
    for name, moved in others.items():
        print(f"      {name:<14} moved ÷ least {moved / walked.least:.2f}, same rounds")
    return holds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=500)
    options = parser.parse_args()
    keys = np.random.default_rng(0).integers(0, 2**63, SESSIONS, dtype=np.uint64)
    holds = [random_rounds(engines, options.rounds, keys) for engines in (3, 10, 20, 100)]
    for engines, piece in ((10, 1000), (30, 300)):
        walked = hand_on(engines, piece)
        holds.append(walked.part_of_bound <= 1.0)
        print(f"{engines:>3} engines handing on: {walked}; a round at most {walked.worst:.2%} above")
    if not all(holds):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
