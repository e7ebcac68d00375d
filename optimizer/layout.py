"""A problem as arrays: connected components, each with a static layout and the numbers of one round.

A component holds the rows i = (front-end, key) and engines e that eligibility connects; components share
nothing and are planned alone. Arrays are indexed [R] by row, [E] by engine, [R, E] by pair, in the order of
the sorted names, so that equal input gives equal arrays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from optimizer.curves import Curves
from optimizer.grid import Grid, Index, make_grid
from optimizer.problem import SHED, UNITS, Engine, Problem
from optimizer.profile import times

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

TIE_BREAK_MS = 0.01
"""Each pair's cost is lowered by at most this, by a hash of the names: equal engines are told apart the
same way everywhere. Lowered, so that a bound for the perturbed cost holds for the true one."""

FINE = ((16, 256), (32, 8))
"""(largest number of engines, divisions of each grid gap): small fleets get a finer grid."""

TINY_DEMAND = 1e-6
"""A row without demand is planned with this part of the median demand: it needs shares too."""


LayoutCache = dict[object, tuple[object, "Layout"]]
"""(rows, engines) -> (everything static the layout was made from, layout)."""


@dataclass(frozen=True)
class Layout:
    """The part of a component that only policy, distances and membership change."""

    rows: tuple[tuple[str, str], ...]
    engines: tuple[str, ...]
    mask: Mask
    """[R, E] eligible."""
    network: Array
    """[R, E] round trip, ms; 0 where not eligible."""
    idle: Array
    """[R, E] TTFT(0) + o·TBOT(0), ms."""
    tie_break: Array
    """[R, E] in [0, TIE_BREAK_MS)."""
    work: Array
    """[R, E] work of one request."""
    tokens: Array
    """[R] output tokens."""
    gamma: Array
    """[R] ms per moved request/s."""
    kappa: Array
    """[R] extra work of a moved request."""
    priority: tuple[int, ...]
    max_share: Array
    """[E]"""
    tolerance: Array
    """[E] load over effective capacity that published shares may reach by noise before they must go."""
    grids: tuple[Grid, ...]
    """One per distinct (curve, limit)."""
    grid_of: Index
    """[E] index into grids."""

    @cached_property
    def cost(self) -> Array:
        """[R, E] idle latency with network, ms, perturbed; infinite where not eligible."""
        return np.where(self.mask, self.network + self.idle - self.tie_break, np.inf)

    @cached_property
    def curves(self) -> Curves:
        """The curves of all engines, per replica."""
        return Curves(self.grids, self.grid_of)


@dataclass(frozen=True)
class Round:
    """A component with the numbers of one round."""

    layout: Layout
    demand: Array
    """[R] requests/s, all positive."""
    scale: Array
    """[E] healthy replicas."""
    capacity: Array
    """[E] work/s."""
    room: Array
    """[E] capacity less one unit of the largest row: what may be planned so that rounding cannot break it."""
    rho: Array
    """[E] requests per unit of work in the demanded mix."""
    omega: Array
    """[E] output tokens per unit of work in the demanded mix."""
    held: Array
    """[R, E] fraction of a row with sessions that is there now and may stay."""
    stay: Array
    """[R, E] `held`, but 0 for rows whose moves cost nothing."""
    free: Array
    """[R] fraction whose next move is free of churn: new, shed, or its engine lost."""
    usable: Mask
    """[R, E] eligible and with capacity."""
    settled: Mask
    """[R] without demand and with shares that may stay: kept as they are."""

    @cached_property
    def servable(self) -> Mask:
        """[R] whether anybody can serve a row now."""
        return np.asarray(self.usable.any(axis=1))

    @cached_property
    def free_open(self) -> Mask:
        """[R, E] where a move may be free of churn. A partly free row pays for moves to limited engines: two
        kinds of move there would need a row of the program each to keep the largest share."""
        limited = (self.layout.max_share < 1.0)[None, :] & (self.free < 1.0)[:, None]
        return self.usable & ((self.free > 0.0) & ~self.settled)[:, None] & ~limited

    @cached_property
    def move_open(self) -> Mask:
        """[R, E] where a move is paid for."""
        return self.usable & ((self.free < 1.0) & ~self.settled)[:, None]

    def curves(self, load: Array) -> tuple[Array, Array]:
        """h_e(load) and its slope, per engine [E]; load in work/s of the whole engine."""
        h, slope = np.zeros_like(load), np.zeros_like(load)
        alive = np.flatnonzero(self.scale > 0)
        scale, rho, omega = self.scale[alive], self.rho[alive], self.omega[alive]
        a, da, b, db = self.layout.curves.congestion(alive, load[alive] / scale)
        h[alive] = scale * (rho * a + times(omega, b))
        slope[alive] = rho * da + times(omega, db)
        return h, slope

    def latency(self, load: Array) -> tuple[Array, Array]:
        """TTFT and TBOT [E] in ms at the engines' loads; of an engine without replicas, its idle latency."""
        per_replica = np.divide(load, self.scale, out=np.zeros(len(load)), where=self.scale > 0)
        return self.layout.curves.latency(np.arange(len(load), dtype=np.intp), per_replica)


def build_rounds(
    problem: Problem, known: LayoutCache | None = None
) -> tuple[list[Round], list[tuple[str, str]]]:
    """The components of a problem, and the rows that no engine may serve.

    `known` caches layouts between rounds: a layout is used again while everything static is equal.
    """
    components, orphans = _components(problem)
    statics = _Statics(problem)
    rounds = []
    for rows, engines in components:
        rounds.append(_numbers(problem, statics.layout(rows, engines, known)))
    return rounds, orphans


def _components(
    problem: Problem,
) -> tuple[list[tuple[list[tuple[str, str]], list[str]]], list[tuple[str, str]]]:
    """Connected components of the (row, engine) graph, and rows without any engine."""
    group_of: dict[frozenset[str], list[tuple[str, str]]] = {}
    orphans = []
    for row in problem.rows:
        engines = problem.eligible.get(row, frozenset())
        if engines:
            group_of.setdefault(engines, []).append(row)
        else:
            orphans.append(row)
    merged: list[tuple[set[str], list[tuple[str, str]]]] = []
    for engines, rows in group_of.items():
        together, all_rows = set(engines), list(rows)
        apart = []
        for other, other_rows in merged:
            if together.isdisjoint(other):
                apart.append((other, other_rows))
            else:
                together |= other
                all_rows += other_rows
        merged = [*apart, (together, all_rows)]
    parts = [(sorted(rows), sorted(engines)) for engines, rows in merged]
    return sorted(parts), orphans


class _Statics:
    """Builds layouts, sharing what several components have in common."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def layout(self, rows: list[tuple[str, str]], engines: list[str], known: LayoutCache | None) -> Layout:
        if known is None:
            return self._build(rows, engines)
        p = self._problem
        key = (tuple(rows), tuple(engines))
        inputs = (
            [p.eligible[row] for row in rows],
            {f: p.network_ms[f] for f, _ in rows},
            {k: p.keys[k] for _, k in rows},
            [
                (e.profile, e.replica_limit_rps, e.max_share, e.max_utilization)
                for e in map(p.engines.__getitem__, engines)
            ],
        )
        cached = known.get(key)
        if cached is not None and cached[0] == inputs:
            return cached[1]
        layout = self._build(rows, engines)
        known[key] = (inputs, layout)
        return layout

    def _build(self, rows: list[tuple[str, str]], engines: list[str]) -> Layout:
        p = self._problem
        specs = [p.engines[e] for e in engines]
        index = {e: j for j, e in enumerate(engines)}
        mask = np.zeros((len(rows), len(engines)), dtype=bool)
        for i, row in enumerate(rows):
            mask[i, [index[e] for e in p.eligible[row]]] = True
        network_of = {
            f: np.array([p.network_ms[f].get(e, 0.0) for e in engines]) for f in {f for f, _ in rows}
        }
        keys = [p.keys[k] for _, k in rows]
        work_of = {k: np.array([p.keys[k].work.get(e, 1.0) for e in engines]) for k in {k for _, k in rows}}
        grids, grid_of = _grids(specs)
        idle = np.array([grids[g].idle_ms for g in grid_of]).reshape(len(engines), 2)
        tokens = np.array([key.output_tokens for key in keys])
        return Layout(
            rows=tuple(rows),
            engines=tuple(engines),
            mask=mask,
            network=np.where(mask, np.array([network_of[f] for f, _ in rows]), 0.0),
            idle=idle[:, 0] + tokens[:, None] * idle[:, 1],
            tie_break=TIE_BREAK_MS * name_hash([f"{f}\0{k}" for f, k in rows], engines),
            work=np.array([work_of[k] for _, k in rows]),
            tokens=tokens,
            gamma=np.array([key.gamma_ms if key.has_session else 0.0 for key in keys]),
            kappa=np.array([key.kappa if key.has_session else 0.0 for key in keys]),
            priority=tuple(key.priority for key in keys),
            max_share=np.array([spec.max_share for spec in specs]),
            tolerance=np.array([spec.tolerance for spec in specs]),
            grids=grids,
            grid_of=grid_of,
        )


def _grids(specs: Sequence[Engine]) -> tuple[tuple[Grid, ...], Index]:
    fine = next((divisions for size, divisions in FINE if len(specs) <= size), 1)
    order: dict[object, int] = {}
    grids: list[Grid] = []
    of = []
    for spec in specs:
        key = (spec.profile.curve, spec.replica_limit_rps)
        if key not in order:
            order[key] = len(grids)
            grids.append(make_grid(spec.profile.curve, spec.replica_limit_rps, fine))
        of.append(order[key])
    return tuple(grids), np.array(of, dtype=np.intp)


def name_hash(rows: Iterable[str], columns: Iterable[str]) -> Array:
    """[R, E] numbers in [0, 1), a pure function of the two names of each pair."""
    left = np.array([_digest(name) for name in rows], dtype=np.uint64)
    right = np.array([_digest(name) for name in columns], dtype=np.uint64)
    with np.errstate(over="ignore"):
        mixed = left[:, None] ^ (right[None, :] * np.uint64(0x9E3779B97F4A7C15))
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
    unit: Array = (mixed >> np.uint64(11)).astype(np.float64) / float(1 << 53)
    return unit


def _digest(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def _numbers(problem: Problem, layout: Layout) -> Round:
    specs = [problem.engines[e] for e in layout.engines]
    demand = np.array([problem.demand_rps[f][k] for f, k in layout.rows], dtype=float)
    positive = demand[demand > 0]
    floor = TINY_DEMAND * float(np.median(positive)) if len(positive) else 1.0
    silent = demand <= 0
    demand = np.maximum(demand, floor)
    capacity = np.array([spec.capacity_rps for spec in specs])
    usable = layout.mask & (capacity > 0)
    flow = demand[:, None] * layout.mask
    work = (flow * layout.work).sum(axis=0)
    unit = np.max(flow * layout.work, axis=0, initial=0.0) / UNITS
    held = _held(problem, layout, usable)
    settled = silent & (held.sum(axis=1) > 1.0 - 1e-9)  # nothing to gain from moving a row without demand
    moves_free = np.array([row in problem.moves_free for row in layout.rows]) & ~settled
    stay = np.where(moves_free[:, None], 0.0, held)
    usable = np.where(settled[:, None], stay > 0, usable)
    return Round(
        layout=layout,
        demand=demand,
        scale=np.array([spec.scale for spec in specs]),
        capacity=capacity,
        room=np.maximum(capacity - unit, 0.5 * capacity),
        rho=flow.sum(axis=0) / work,
        omega=(flow * layout.tokens[:, None]).sum(axis=0) / work,
        held=held,
        stay=stay,
        free=np.maximum(0.0, 1.0 - stay.sum(axis=1)),
        usable=usable,
        settled=settled,
    )


def _held(problem: Problem, layout: Layout, usable: Mask) -> Array:
    """[R, E] what of each row may stay where it is; nothing of one that has no sessions to lose."""
    held = np.zeros(layout.mask.shape)
    index = {e: j for j, e in enumerate(layout.engines)}
    before = problem.previous_shares or {}
    for i, (frontend, key) in enumerate(layout.rows):
        if layout.gamma[i] == 0.0 and layout.kappa[i] == 0.0:
            continue
        shares = before.get(frontend, {}).get(key, {})
        total = sum(shares.values()) or 1.0
        for name, share in shares.items():
            if name != SHED and name in index:
                held[i, index[name]] = share / total
    return np.minimum(np.where(usable, held, 0.0), layout.max_share)
