"""The policies that `global` is compared with, as good as their idea allows.

Each sees what such a router would see: `nearest` and `round_robin` no load at all, `local` only its own
front-end, `waterfall` capacities, `feedback` and `dgd` what was observed under the last shares. None refuses
traffic on purpose; where they overload an engine, the plan says so.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from optimizer.bound import Duals, Shed
from optimizer.component import Flow
from optimizer.layout import Layout, Round
from optimizer.problem import Problem
from optimizer.profile import times
from optimizer.shedding import shed_prices
from optimizer.warm import Warm

Array = npt.NDArray[np.float64]


def split(round_: Round, weight: Array, notes: tuple[str, ...] = ()) -> Flow:
    """A flow by weights [R, E] within the largest shares; the rest is shed. No prices, no bound."""
    part = _within(np.where(round_.usable, weight, 0.0), round_.layout.max_share)
    rows, engines = weight.shape
    nothing = Duals(np.zeros(rows), np.zeros(engines), np.zeros(rows))
    left = 1.0 - part.sum(axis=1)
    shed = np.where(left > 1e-9, left, 0.0) * round_.demand
    return Flow(round_, part * round_.demand[:, None], shed, nothing, -math.inf, False, notes)


def _within(weight: Array, limit: Array) -> Array:
    """Weights as shares of at most `limit` [E]: what is over goes to the others in proportion."""
    part, open_ = np.zeros_like(weight), weight > 0
    for _ in range(weight.shape[1]):
        left = 1.0 - part.sum(axis=1)
        total = np.where(open_, weight, 0.0).sum(axis=1)
        more = np.divide(left, total, out=np.zeros_like(left), where=(total > 0) & (left > 1e-12))
        part += np.where(open_, weight, 0.0) * more[:, None]
        over = open_ & (part >= limit)
        if not np.any(part > limit):
            break
        part, open_ = np.minimum(part, limit), open_ & ~over
    return part


def round_robin(round_: Round, problem: Problem, warm: Warm, deadline: float) -> Flow:
    """Equal shares on every usable engine."""
    return split(round_, np.ones(round_.usable.shape))


def nearest(round_: Round, problem: Problem, warm: Warm, deadline: float) -> Flow:
    """Everything to the usable engine with the shortest round trip; past its largest share to the next."""
    distance = np.where(round_.usable, round_.layout.network - round_.layout.tie_break, np.inf)
    part, left = np.zeros(distance.shape), np.ones(len(distance))
    rows = np.arange(len(distance))
    for rank in np.argsort(distance, axis=1, kind="stable").T:
        take = np.minimum(left, np.where(round_.usable[rows, rank], round_.layout.max_share[rank], 0.0))
        part[rows, rank] += take
        left -= take
        if not np.any(left > 0):
            break
    return split(round_, part)


def capacity_weighted(round_: Round, problem: Problem, warm: Warm, deadline: float) -> Flow:
    """Shares proportional to effective capacity."""
    return split(round_, np.broadcast_to(round_.capacity, round_.usable.shape))


def local(round_: Round, problem: Problem, warm: Warm, deadline: float) -> Flow:
    """Every front-end plans its own demand optimally, as if the whole fleet were its own."""
    x, shed = np.zeros(round_.usable.shape), np.zeros(len(round_.demand))
    frontends = np.array([frontend for frontend, _ in round_.layout.rows])
    for frontend in sorted(set(frontends.tolist())):
        mine = np.flatnonzero(frontends == frontend)
        alone = _alone(round_, mine, warm)
        nothing = np.where(alone.usable.any(axis=1), 0.0, alone.demand)
        flow = warm.component(alone.layout).solve(alone, Shed(nothing, shed_prices(alone)), deadline)
        if flow is None:
            return capacity_weighted(round_, problem, warm, deadline)
        x[mine], shed[mine] = flow.x, flow.shed
    return dataclasses.replace(split(round_, x), x=x, shed=shed)


def _alone(round_: Round, rows: npt.NDArray[np.intp], warm: Warm) -> Round:
    """The round of some rows only."""
    layout = round_.layout
    part = warm.derived(layout, ("rows", *rows.tolist()), lambda: _rows_of(layout, rows))
    return dataclasses.replace(
        round_,
        layout=part,
        demand=round_.demand[rows],
        stay=round_.stay[rows],
        free=round_.free[rows],
        usable=round_.usable[rows],
        settled=round_.settled[rows],
        held=round_.held[rows],
    )


def _rows_of(layout: Layout, rows: npt.NDArray[np.intp]) -> Layout:
    return dataclasses.replace(
        layout,
        rows=tuple(layout.rows[i] for i in rows.tolist()),
        mask=layout.mask[rows],
        network=layout.network[rows],
        idle=layout.idle[rows],
        tie_break=layout.tie_break[rows],
        work=layout.work[rows],
        tokens=layout.tokens[rows],
        gamma=layout.gamma[rows],
        kappa=layout.kappa[rows],
        priority=tuple(layout.priority[i] for i in rows.tolist()),
    )


def waterfall(round_: Round, problem: Problem, warm: Warm, deadline: float) -> Flow:
    """Nearest first up to the effective capacity, then the next nearest; higher priorities fill first.

    As in Traffic Director and ServiceRouter, with the threshold at `max_utilization`. What finds no room
    anywhere is spread by capacity.
    """
    layout, d = round_.layout, round_.demand
    room = round_.capacity.copy()
    x, left = np.zeros(round_.usable.shape), d.copy()
    pairs = np.argwhere(round_.usable)
    key = layout.network[pairs[:, 0], pairs[:, 1]] - layout.tie_break[pairs[:, 0], pairs[:, 1]]
    rank = -np.array(layout.priority)[pairs[:, 0]]
    for i, j in pairs[np.lexsort((key, rank))].tolist():
        if left[i] > 0 and room[j] > 0:
            take = min(left[i], room[j] / layout.work[i, j], d[i] * layout.max_share[j])
            x[i, j] += take
            left[i] -= take
            room[j] -= take * layout.work[i, j]
    spill = np.where(round_.usable, round_.capacity, 0.0)
    total = spill.sum(axis=1, keepdims=True)
    x += np.divide(spill, total, out=np.zeros_like(spill), where=total > 0) * left[:, None]
    return split(round_, x)


def feedback(round_: Round, problem: Problem, warm: Warm, deadline: float) -> Flow:
    """The talk's first generation: every share follows its engine's latency against the fleet's mean.

    s ← EWMA of the latency seen, w ← w·(1 + gain·(s̄ − s)/s̄). `observed` carries the delay of telemetry; what
    is not observed is taken from the profile at the load of the last shares.
    """
    tuning, before = problem.tuning, current_shares(round_, problem)
    latency, load = _seen(round_, problem, before)
    score = latency.copy()
    for j, name in enumerate(round_.layout.engines):
        old = warm.scores.get(name, latency[j])
        score[j] = warm.scores[name] = old + tuning.feedback_ewma * (latency[j] - old)
    weight = load if load.sum() > 0 else round_.capacity
    known = weight > 0
    mean = float(np.average(score[known], weights=weight[known])) if known.any() else 1.0
    if not np.isfinite(mean) or mean <= 0:
        mean = float(np.median(score[np.isfinite(score)])) if np.isfinite(score).any() else 1.0
    step = np.clip(tuning.feedback_gain * (mean - score) / mean, -0.9, 1.0)
    floor = 1e-4 * (round_.usable & (before <= 0))  # an engine at nothing would stay there for ever
    return split(round_, (before + floor) * (1.0 + step))


def dgd(round_: Round, problem: Problem, warm: Warm, deadline: float) -> Flow:
    """Distributed gradient descent (Balseiro, Mirrokni, Wydrowski 2025): x ← Π(x − η·(n + h′)).

    Each row steps against the delayed gradient of the fleet's cost and is projected back onto its simplex,
    from `waterfall`'s shares on.
    η = step / (rows · largest curvature of an engine), which is stable without delay for step < 2.
    """
    if not problem.previous_shares:
        return waterfall(round_, problem, warm, deadline)
    before = current_shares(round_, problem)
    _, load = _seen(round_, problem, before)
    load = np.minimum(load, round_.capacity)
    _, slope = round_.curves(load)
    nudge = np.maximum(1e-3 * round_.capacity, 1e-9)
    _, less = round_.curves(np.maximum(0.0, load - nudge))
    curvature = float(np.max((slope - less) / nudge, initial=0.0))
    gradient = np.where(round_.usable, round_.layout.cost + round_.layout.work * slope, 1e12)
    eta = problem.tuning.dgd_step / (len(round_.demand) * max(curvature, 1e-9))
    moved = before - eta * gradient / round_.demand[:, None]
    return split(round_, _simplex(np.where(round_.usable, moved, -np.inf)))


def current_shares(round_: Round, problem: Problem) -> Array:
    """[R, E] the last shares on usable engines, by capacity where there are none."""
    shares = np.zeros(round_.usable.shape)
    index = {name: j for j, name in enumerate(round_.layout.engines)}
    for i, (frontend, key) in enumerate(round_.layout.rows):
        for name, share in (problem.previous_shares or {}).get(frontend, {}).get(key, {}).items():
            if name in index:
                shares[i, index[name]] = share
    shares = np.where(round_.usable, shares, 0.0)
    empty = shares.sum(axis=1) <= 0
    shares[empty] = np.where(round_.usable[empty], round_.capacity, 0.0)
    total = shares.sum(axis=1, keepdims=True)
    fractions: Array = np.divide(shares, total, out=np.zeros_like(shares), where=total > 0)
    return fractions


def _seen(round_: Round, problem: Problem, shares: Array) -> tuple[Array, Array]:
    """Latency of a request (ms) and load (work/s) of every engine [E], observed or else predicted."""
    flow = shares * round_.demand[:, None]
    load = np.einsum("ij,ij->j", flow, round_.layout.work)
    ttft, tbot = round_.latency(load)
    latency = ttft + times(round_.omega / np.maximum(round_.rho, 1e-12), tbot)
    for j, name in enumerate(round_.layout.engines):
        seen = (problem.observed or {}).get(name)
        if seen is not None:
            latency[j], load[j] = seen.latency_ms, seen.load_rps
    worst = latency[np.isfinite(latency)].max(initial=1.0)
    latency = np.where(np.isfinite(latency), latency, 10.0 * worst)
    return latency, load


def _simplex(point: Array) -> Array:
    """The nearest point of the simplex in every row; −inf stays at 0 (Held, Wolfe, Crowder 1974)."""
    ordered = -np.sort(-point, axis=1)
    finite = np.isfinite(ordered)
    total = np.cumsum(np.where(finite, ordered, 0.0), axis=1) - 1.0
    count = np.arange(1, point.shape[1] + 1)
    keep = finite & (ordered - total / count > 0)
    last = np.maximum(1, keep.sum(axis=1))
    theta = total[np.arange(len(point)), last - 1] / last
    projected: Array = np.where(np.isfinite(point), np.maximum(0.0, point - theta[:, None]), 0.0)
    return projected
