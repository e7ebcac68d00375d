"""Why a share is what it is: one line a (front-end, key, engine), whose arithmetic can be done again.

With c = network + idle + work·price of the engine and π the price of one more request/s of the row, every
optimum satisfies (DESIGN plan page, "Prices and explanations"):

    more      more than before: c + churn = π
    some      part of what it had: c = π
    kept      all it had: π − churn ≤ c ≤ π
    taken     more than before, of what had to move or was too little to stay alone: π − churn ≤ c ≤ π
    limited   at its largest share: c ≤ π
    none      nothing, and had nothing: c + churn ≥ π
    left      nothing, and had some: c ≥ π
    merged    nothing: its share was too small to stay alone, whatever its price

Others follow from no price: `full` (the row is refused altogether, the engine has no room), `empty` (no
capacity), `barred` (a rule is against it), `settled` (no demand, kept as it was), `shed`, `unserved`, and
`policy` (not the optimiser's). Equal costs are told apart by up to 0.01 ms, so equalities hold to that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from optimizer.plan import Plan
from optimizer.planner import plan
from optimizer.problem import SHED, Engine, Key, Problem
from optimizer.refusal import Refusals
from optimizer.warm import Warm

EVEN = 1e-4
"""Shares that differ by less are the same (rounding and merged small shares)."""
NEAR_MS = 0.05
"""Prices that differ by less are the same."""

Barred = Mapping[tuple[str, str], Mapping[str, str]]
"""(front-end, key) -> engine -> the rule against it."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One share, with the numbers it follows from; times in ms, 0 where no price decides."""

    frontend: str
    key: str
    destination: str
    share: float
    before: float | None
    """Share that was published; None when nothing was."""
    relation: str
    """How `cost` and the row's price compare, or what else decides; see the module."""
    text: str
    network_ms: float = 0.0
    idle_ms: float = 0.0
    work: float = 0.0
    engine_price_ms: float = 0.0
    cost_ms: float = 0.0
    """network + idle + work × engine price."""
    row_price_ms: float = 0.0
    churn_ms: float = 0.0
    """γ + κ × engine price: what a move there costs; 0 when it is free."""
    runner_up: str | None = None
    """The cheapest other engine that could serve it: where what fails here is retried. Shares only."""
    runner_up_ms: float | None = None
    """Its cost, as `cost_ms`."""


def explain(
    problem: Problem,
    result: Plan,
    frontend: str | None = None,
    key: str | None = None,
    barred: Barred | None = None,
) -> tuple[Reason, ...]:
    """A reason for every share and every zero of a plan, of one front-end and key or of all.

    `barred` has the engines that are worth a line though they are not eligible, with the rule in the words of
    who made the problem. None: every engine of the problem that is not eligible.
    """
    refusals = Refusals(problem, result)
    reasons: list[Reason] = []
    for f, k in problem.rows:
        if frontend in (None, f) and key in (None, k):
            against = _not_eligible(problem, f, k) if barred is None else barred.get((f, k), {})
            reasons += _Row(problem, result, f, k).reasons(against, refusals)
    return tuple(reasons)


def _not_eligible(problem: Problem, frontend: str, key: str) -> dict[str, str]:
    eligible = problem.eligible.get((frontend, key), frozenset())
    return {name: "not eligible" for name in problem.engines if name not in eligible}


@dataclass(frozen=True)
class _Row:
    """A front-end's traffic of one key under a plan."""

    problem: Problem
    result: Plan
    frontend: str
    name: str

    @cached_property
    def key(self) -> Key:
        return self.problem.keys[self.name]

    @cached_property
    def shares(self) -> Mapping[str, float]:
        return self.result.shares.get(self.frontend, {}).get(self.name, {})

    @cached_property
    def before(self) -> Mapping[str, float] | None:
        return (self.problem.previous_shares or {}).get(self.frontend, {}).get(self.name) or None

    @cached_property
    def price(self) -> float:
        """π; never the negative zero of a solver."""
        return self.result.prices.get(self.frontend, {}).get(self.name, 0.0) + 0.0

    @cached_property
    def sticky(self) -> bool:
        """Whether something is there that would cost something to move."""
        row = self.frontend, self.name
        if not self.key.has_session or self.before is None or row in self.result.moves_free:
            return False
        eligible = self.problem.eligible.get(row, frozenset())
        return any(
            share > 0 and name in eligible and self.problem.engines[name].capacity_rps > 0
            for name, share in self.before.items()
        )

    def reasons(self, barred: Mapping[str, str], refusals: Refusals) -> Iterator[Reason]:
        """A line for every engine that may serve the row, every one that a rule bars, and what is refused."""
        f, k = self.frontend, self.name
        unserved = self.result.unserved.get(f, {}).get(k)
        if unserved:
            yield self._plain(SHED, 1.0, "unserved", f"{f} {k}: nothing can serve it: {unserved}")
        for engine in sorted(self.problem.eligible.get((f, k), ())):
            yield self._engine(engine)
        for engine, rule in sorted(barred.items()):
            yield self._plain(engine, 0.0, "barred", f"{f} {k} → {engine} 0%: may not serve it: {rule}")
        if self.shares.get(SHED, 0.0) > 0.0 and not unserved:
            cheapest = min(self._cost(e) for e in refusals.usable(f, k))
            yield self._plain(SHED, self.shares[SHED], "shed", refusals.text(f, k, cheapest))

    def _plain(self, destination: str, share: float, relation: str, text: str) -> Reason:
        price = 0.0 if relation == "barred" else self.price
        before = self._had(destination)
        return Reason(
            self.frontend, self.name, destination, share, before, relation, text, row_price_ms=price
        )

    def _had(self, destination: str) -> float | None:
        return None if self.before is None else self.before.get(destination, 0.0)

    def _engine(self, engine: str) -> Reason:
        spec, share = self.problem.engines[engine], self.shares.get(engine, 0.0)
        start = f"{self.frontend} {self.name} → {engine}"
        if spec.capacity_rps <= 0:
            empty = f"{spec.scale:g} ready replicas × {spec.replica_limit_rps:.2f} work/s"
            text = f"{start} 0%: may serve it but has no capacity now: {empty} = 0"
            return self._plain(engine, share, "empty", text)
        cost, price = self._cost(engine), self.result.engines[engine].price_ms
        churn = self._churn(price)
        relation, why = self._relation(engine, spec, share, cost, churn)
        network, idle, work = self._parts(engine)
        sum_ = f"{network:.1f} network + {idle:.1f} idle + {work:.3g} × {price:.1f} price = {cost:.1f} ms"
        other, other_ms = self._runner_up(engine)
        beside = f"; runner-up {other} at {other_ms:.1f} ms" if other else ""
        return Reason(
            self.frontend,
            self.name,
            engine,
            share,
            self._had(engine),
            relation,
            f"{start} {share:.2%}: {sum_}; {why}{beside}",
            network,
            idle,
            work,
            price,
            cost,
            self.price,
            churn,
            other,
            other_ms,
        )

    def _parts(self, engine: str) -> tuple[float, float, float]:
        """Network and idle latency in ms, and the work of a request."""
        profile = self.problem.engines[engine].profile
        idle = profile.ttft_ms(0.0) + self.key.output_tokens * profile.tbot_ms(0.0)
        return self.problem.network_ms[self.frontend][engine], idle, self.key.work.get(engine, 1.0)

    def _cost(self, engine: str) -> float:
        network, idle, work = self._parts(engine)
        return network + idle + work * self.result.engines[engine].price_ms

    def _churn(self, price: float) -> float:
        if not self.sticky:
            return 0.0
        free = (self.frontend, self.name) in self.result.work_free
        return self.key.gamma_ms + (0.0 if free else self.key.kappa * price)

    def _runner_up(self, engine: str) -> tuple[str | None, float | None]:
        second = self.result.second_best.get(self.frontend, {}).get(self.name, {}).get(engine)
        return second, None if second is None else self._cost(second)

    def _relation(
        self, engine: str, spec: Engine, share: float, cost: float, churn: float
    ) -> tuple[str, str]:
        if self.result.policy != "global":
            return "policy", f"as policy {self.result.policy} says"
        if self.sticky and self.problem.demand_rps[self.frontend][self.name] <= 0:
            return "settled", "no demand, so it stays as it was"
        if share <= EVEN and self.shares.get(SHED, 0.0) >= 1.0 - EVEN:
            engine_plan = self.result.engines[engine]
            taken = f"{engine_plan.load_rps:.2f} of {engine_plan.capacity_rps:.2f} work/s"
            return "full", f"no room: {taken} are taken"
        if share <= EVEN:
            return self._zero(self._had(engine) or 0.0, cost, churn)
        if spec.max_share < 1.0 and share >= spec.max_share - EVEN:
            less = f"{max(0.0, self.price - cost):.1f} ms cheaper than the row's {self.price:.1f}"
            return "limited", f"{less}, but at its largest share, {spec.max_share:.2%}"
        return self._positive(self._had(engine), share, cost, churn)

    def _zero(self, had: float, cost: float, churn: float) -> tuple[str, str]:
        row = self.price
        if had > EVEN and cost < row - NEAR_MS:
            return "merged", "its share was too small to stay alone"
        if had > EVEN:
            return "left", f"{cost - row:.1f} ms dearer than the row's {row:.1f}"
        move = f"with {churn:.1f} to move " if churn else ""
        return "none", f"{move}{cost + churn - row:.1f} ms dearer than the row's {row:.1f}"

    def _positive(self, had: float | None, share: float, cost: float, churn: float) -> tuple[str, str]:
        row, kept = self.price, had or 0.0
        between = f"between {row - churn:.1f} and {row:.1f} ms"
        if share > kept + EVEN and abs(cost + churn - row) > NEAR_MS:
            return "taken", f"{between}: takes what had to move or was too little to stay alone"
        if share > kept + EVEN:
            move = f" + {churn:.1f} to move" if churn else ""
            return "more", f"{cost:.1f}{move} = {row:.1f} ms, the price of one more request here"
        if had is not None and share >= kept - EVEN:
            return "kept", f"kept whole: {between}, moving would not pay"
        return "some", f"{cost:.1f} = {row:.1f} ms, the price of one more request here"


@dataclass(frozen=True, slots=True)
class ReplicaValue:
    """What one more replica of an engine would be worth."""

    engine: str
    price_ms: float
    """Price of one unit of work/s there."""
    saves_ms: float
    """Drop of the objective, per request of demand."""


def replica_value(problem: Problem, result: Plan, engine: str, warm: Warm | None = None) -> ReplicaValue:
    """Plan again with one more ready replica of `engine` and compare, from scratch in both cases."""
    fresh = dataclasses.replace(problem, previous_shares=None)
    spec = problem.engines[engine]
    more = dataclasses.replace(spec, ready_replicas=spec.ready_replicas + 1)
    wider = dataclasses.replace(fresh, engines={**problem.engines, engine: more})
    saved = plan(fresh, warm=warm).objective_ms - plan(wider, warm=warm).objective_ms
    return ReplicaValue(engine, result.engines[engine].price_ms, saved)
