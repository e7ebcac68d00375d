"""Why a part of a row is refused: an account of the engines that it may use."""

from __future__ import annotations

from functools import cached_property

from optimizer.layout import build_rounds
from optimizer.plan import Plan
from optimizer.problem import SHED, Problem
from optimizer.shedding import shed_prices
from optimizer.warm import Warm

FULL = 0.999
"""Part of its capacity at which an engine counts as full: rounding leaves a little room."""


class Refusals:
    """The refused part of every row of a plan, explained by who has the room."""

    def __init__(self, problem: Problem, result: Plan) -> None:
        self._problem = problem
        self._result = result

    def usable(self, frontend: str, key: str) -> list[str]:
        """The engines with capacity that may serve a row."""
        names = self._problem.eligible.get((frontend, key), frozenset())
        return sorted(name for name in names if self._problem.engines[name].capacity_rps > 0)

    def text(self, frontend: str, key: str, cheapest_ms: float) -> str:
        """One line; `cheapest_ms` is what one more request would cost where it is cheapest."""
        part = self._result.shares[frontend][key][SHED]
        demand = self._problem.demand_rps[frontend][key]
        start = f"{frontend} {key} refuses {part:.2%}: {part * demand:.2f} of {demand:.2f} requests/s; "
        account = self._account(frontend, key)
        if self._result.policy != "global":
            return f"{start}{account}; as policy {self._result.policy} says"
        refusing = self._prices[frontend, key]
        return (
            f"{start}{account}; one more would cost {cheapest_ms:.1f} ms at least and refusing it is"
            f" priced at {refusing:.1f}, so not latency but room decides"
        )

    def _account(self, frontend: str, key: str) -> str:
        """What the row's engines carry, by priority, and how others of its priority fare there."""
        mine, names = self._problem.keys[key].priority, self.usable(frontend, key)
        there = [item for name in names for item in self._carried.get(name, ())]
        higher, own, lower = (
            sum(work for priority, work, _ in there if (priority > mine) - (priority < mine) == side)
            for side in (1, 0, -1)
        )
        capacity = sum(self._result.engines[name].capacity_rps for name in names)
        text = (
            f"its engines carry {higher:.2f} work/s of higher priority + {own:.2f} of its own ({mine})"
            f" + {lower:.2f} of lower = {higher + own + lower:.2f} of {capacity:.2f}"
        )
        alike = [refused for priority, _, refused in there if priority == mine]
        if alike:
            text += f", and rows of its priority there are refused {min(alike):.2%} to {max(alike):.2%}"
        return text + self._limits(names)

    def _limits(self, names: list[str]) -> str:
        """The engines that have room but may not have more of a row."""
        out = ""
        for name in names:
            spec, now = self._problem.engines[name], self._result.engines[name]
            if spec.max_share < 1.0 and now.load_rps < FULL * now.capacity_rps:
                out += f"; {name} may have {spec.max_share:.2%} of it at most"
        return out

    @cached_property
    def _carried(self) -> dict[str, list[tuple[int, float, float]]]:
        """engine -> (priority, work/s, refused fraction) of every row that it serves."""
        problem, out = self._problem, dict[str, list[tuple[int, float, float]]]()
        for frontend, key in problem.rows:
            spec, shares = problem.keys[key], self._result.shares.get(frontend, {}).get(key, {})
            for name, share in shares.items():
                if name != SHED:
                    work = share * problem.demand_rps[frontend][key] * spec.work.get(name, 1.0)
                    out.setdefault(name, []).append((spec.priority, work, shares.get(SHED, 0.0)))
        return out

    @cached_property
    def _prices(self) -> dict[tuple[str, str], float]:
        """Price of refusing one request/s of each row, ms."""
        warm, out = Warm(), dict[tuple[str, str], float]()
        for round_ in build_rounds(self._problem)[0]:
            prices = shed_prices(warm.without_kappa(round_)).tolist()
            out.update(zip(round_.layout.rows, prices, strict=True))
        return out
