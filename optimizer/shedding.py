"""Refusing traffic on purpose: prices, strict priority, fairness across front-ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

from optimizer.layout import Round

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

LEVEL_RATIO = 10.0
MAX_LEVELS = 4
MARGIN = 2e-6
SLACK = 1e-7
"""What a decided fraction or budget may be exceeded by in the next program, for its tolerance."""
NOTHING = 1e-9
"""Part of the demanded work below which shedding is numerical noise."""


def shed_prices(round_: Round) -> Array:
    """[R] ms per refused request/s: above any latency a request could cost, ×10 a priority level.

    Per unit of work, so that one level never trades many cheap requests of a higher one.
    """
    layout = round_.layout
    _, slope = round_.curves(round_.capacity)
    mean_work = _mean_work(round_)
    worst = layout.cost + layout.gamma[:, None] + (layout.work + layout.kappa[:, None]) * slope
    base = 2.0 * float(np.max(np.where(round_.usable, worst / mean_work[:, None], 1.0), initial=1.0))
    levels = sorted(set(layout.priority))
    span = min(1.0, (MAX_LEVELS - 1) / max(1, len(levels) - 1))
    rank = np.array([levels.index(p) for p in layout.priority]) * span
    prices: Array = base * LEVEL_RATIO**rank * mean_work
    return prices


def least_shed(round_: Round) -> Array:
    """[R] requests/s that must be refused: least for the highest priority, then for the next, and so on.

    Within a priority the refused fractions are max-min fair across rows: no row's can be lowered without
    raising one that is as large or larger. Found by a sequence of small linear programs on groups of rows
    and engines that look alike, with capacities and eligibility only.
    """
    groups = _Groups.of(round_)
    fraction, fixed = np.ones(len(groups.demand)), np.zeros(len(groups.demand), dtype=bool)
    for level in sorted(set(groups.priority.tolist()), reverse=True):
        mine = groups.priority == level
        _level(groups, mine, fraction, fixed)
        fixed |= mine
    # A hair more than the least: at the least itself no price of capacity would be defined.
    fraction = np.where(fraction > 0.0, np.minimum(1.0, fraction + MARGIN), 0.0)
    return fraction[groups.of_row] * round_.demand


def _level(groups: _Groups, mine: Mask, fraction: Array, fixed: Mask) -> None:
    """Set the refused fractions of one priority, given those of higher ones."""
    weight = np.where(mine, groups.work_demand, 0.0)
    least, first, _ = groups.solve(fixed, fraction, mine, weight)
    if least <= NOTHING * groups.work_demand.sum():
        fraction[mine] = 0.0
        return
    open_ = mine & ~fixed
    fraction[mine] = first[mine]
    settled = fixed.copy()
    while np.any(open_):
        top, found, price = groups.solve(settled, fraction, open_, None, weight, least)
        binding = open_ & (price > NOTHING)
        if not np.any(binding):
            fraction[open_] = found[open_]
            return
        fraction[binding] = top
        settled |= binding
        open_ &= ~binding


@dataclass(frozen=True)
class _Groups:
    """Rows that look alike [G] against engines that look alike [H], in units of the whole demanded work."""

    of_row: npt.NDArray[np.intp]
    """[R] row -> group."""
    priority: npt.NDArray[np.int64]
    demand: Array
    """[G]"""
    work_demand: Array
    """[G] demand in work, for the measure of what is lost."""
    work: Array
    """[G, H]"""
    usable: Mask
    """[G, H]"""
    capacity: Array
    """[H]"""
    max_share: Array
    """[H]"""

    @classmethod
    def of(cls, round_: Round) -> _Groups:
        layout = round_.layout
        rows = [(p, *u, *w) for p, u, w in zip(layout.priority, round_.usable, layout.work, strict=True)]
        first_row, of_row = _first_of(rows)
        usable, work = round_.usable[first_row], layout.work[first_row]
        engines: list[tuple[float, ...]] = [
            (*usable[:, j], *work[:, j], -1.0 if layout.max_share[j] == 1.0 else float(j))
            for j in range(len(layout.engines))
        ]
        first_engine, of_engine = _first_of(engines)
        total = float(round_.demand @ _mean_work(round_))
        demand = np.bincount(of_row, round_.demand) / total
        return cls(
            of_row=of_row,
            priority=np.array(layout.priority)[first_row],
            demand=demand,
            work_demand=demand * _mean_work(round_)[first_row],
            work=work[:, first_engine],
            usable=usable[:, first_engine],
            capacity=np.bincount(of_engine, round_.room) / total,
            max_share=layout.max_share[first_engine],
        )

    def solve(
        self,
        fixed: Mask,
        fraction: Array,
        mine: Mask,
        weight: Array | None,
        budget_weight: Array | None = None,
        budget: float = 0.0,
    ) -> tuple[float, Array, Array]:
        """Least weighted refusal, or with `weight` None the least largest fraction among `mine`.

        Rows neither in `fixed` (at their fraction) nor of the level at hand get nothing. Returns the optimum,
        the fractions [G] and the prices of `mine`'s limits [G].
        """
        row, column = np.nonzero(self.usable)
        flows, groups = len(row), len(self.demand)
        size = flows + groups + 1  # flows, refused fractions, their largest
        level = mine if budget_weight is None else budget_weight > 0
        cost = np.zeros(size)
        cost[flows:-1] = 0.0 if weight is None else weight
        cost[-1] = 0.0 if weight is not None else 1.0
        balance = np.zeros((groups, size))
        balance[row, np.arange(flows)] = 1.0
        balance[:, flows:-1] = np.diag(self.demand)
        limits = np.zeros((len(self.capacity) + groups + 1, size))
        limits[column, np.arange(flows)] = self.work[row, column]
        largest = len(self.capacity) + np.flatnonzero(mine)
        limits[largest, flows + np.flatnonzero(mine)] = 1.0
        limits[largest, -1] = -1.0
        right = np.concatenate([self.capacity, np.zeros(groups), [1.0]])
        if budget_weight is not None:
            limits[-1, flows:-1], right[-1] = budget_weight, budget * (1.0 + SLACK) + SLACK
        low, high = np.zeros(size), np.ones(size)
        high[:flows] = self.max_share[column] * self.demand[row]
        absent = ~(fixed | level)
        low[flows:-1] = np.where(absent, 1.0, 0.0)
        high[flows:-1] = np.where(fixed, np.minimum(1.0, fraction + SLACK), 1.0)
        result = linprog(
            cost,
            A_ub=limits,
            b_ub=right,
            A_eq=balance,
            b_eq=self.demand,
            bounds=np.stack([low, high], axis=1),
            options={"presolve": False},
        )
        if result.status != 0:
            raise ArithmeticError(f"shedding program: {result.message}")
        price = np.zeros(groups)
        price[mine] = -result.ineqlin.marginals[largest]
        return float(result.fun), np.clip(result.x[flows:-1], 0.0, 1.0), price


def _mean_work(round_: Round) -> Array:
    usable = round_.usable
    mean = np.where(usable, round_.layout.work, 0.0).sum(axis=1) / np.maximum(1, usable.sum(axis=1))
    return np.where(mean > 0, mean, 1.0)


def _first_of(items: list[tuple[float, ...]]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Index of the first of each distinct item, and for every item its number among them."""
    numbers: dict[tuple[float, ...], int] = {}
    firsts: list[int] = []
    of = []
    for i, item in enumerate(items):
        if item not in numbers:
            numbers[item] = len(firsts)
            firsts.append(i)
        of.append(numbers[item])
    return np.array(firsts, dtype=np.intp), np.array(of, dtype=np.intp)
