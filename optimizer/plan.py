"""The result of one planning round, and the rule that says whether it is worth publishing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One engine under a plan."""

    load_rps: float
    """work/s"""
    capacity_rps: float
    """Effective capacity, work/s."""
    price_ms: float
    """What one more unit of work/s here costs all traffic together: the dual of its capacity."""
    ttft_ms: float
    """At this load; infinite beyond the pole."""
    tbot_ms: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Shares for every row of a problem, with what they cost and how good they certainly are."""

    policy: str
    shares: Mapping[str, Mapping[str, Mapping[str, float]]]
    """front-end -> key -> destination -> fraction; multiples of 2^-20 that sum to 1, `shed` included."""
    engines: Mapping[str, EnginePlan]
    objective_ms: float
    """Per request of demand: network + engine + churn + price of shedding."""
    lower_bound_ms: float
    """No plan for the same problem has a smaller objective."""
    gap: float
    """(objective − bound) as a fraction of the latency part of the objective."""
    e2e_ms: float
    """True mean of network + TTFT + output tokens × TBOT over the requests served."""
    shed_rps: float
    feasible: bool
    """Every engine within its effective capacity; a baseline may break it."""
    exact: bool
    """The optimum of the fixed grid: the same from any start. False: stopped early or not an optimiser."""
    moved: Mapping[str, Mapping[str, float]]
    """front-end -> key -> fraction whose destination changed against the previous shares."""
    solve_ms: float
    second_best: Mapping[str, Mapping[str, Mapping[str, str]]]
    """front-end -> key -> engine -> where to retry what fails there: the cheapest other eligible engine."""
    prices: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """front-end -> key -> price of one more request/s there, ms."""
    unserved: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """front-end -> key -> why nothing serves it; such rows are all `shed`."""
    notes: tuple[str, ...] = ()
    """What an operator should know: solver fallbacks, early stops."""
    moves_free: frozenset[tuple[str, str]] = frozenset()
    """(front-end, key) planned without the price of movement."""
    work_free: frozenset[tuple[str, str]] = frozenset()
    """(front-end, key) planned without the extra work of moved requests, as where traffic is refused."""

    def with_time(self, solve_ms: float) -> Plan:
        """The same plan with its solve time."""
        return dataclasses.replace(self, solve_ms=solve_ms)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready values; what is infinite or undefined is null."""
        return {
            "policy": self.policy,
            "objective_ms": _finite(self.objective_ms),
            "lower_bound_ms": _finite(self.lower_bound_ms),
            "gap": _finite(self.gap),
            "e2e_ms": _finite(self.e2e_ms),
            "exact": self.exact,
            "feasible": self.feasible,
            "shed_rps": self.shed_rps,
            "solve_ms": self.solve_ms,
            "shares": _plain(self.shares),
            "moved": _plain(self.moved),
            "engines": {
                name: {
                    "load_rps": engine.load_rps,
                    "capacity_rps": engine.capacity_rps,
                    "price_ms": _finite(engine.price_ms),
                    "ttft_ms": _finite(engine.ttft_ms),
                    "tbot_ms": _finite(engine.tbot_ms),
                }
                for name, engine in self.engines.items()
            },
            "prices_ms": _plain(self.prices),
            "second_best": _plain(self.second_best),
            "unserved": _plain(self.unserved),
            "notes": list(self.notes),
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    return {key: _plain(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value


class Outcome(Enum):
    """What to do with a candidate plan."""

    PUBLISH = "publish"
    """It gains more than it costs to move, or nothing was published before."""
    FORCED = "forced"
    """What is published cannot stay: an engine is lost or over its capacity, or a row is new."""
    UNCHANGED = "unchanged"
    """The same shares."""
    NOT_WORTH = "not_worth"
    """The gain is below the threshold."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict on a candidate, with the numbers it follows from (ms per request of demand)."""

    outcome: Outcome
    gain_ms: float
    """Cost of what is published minus cost of the candidate, on the true curves."""
    churn_ms: float
    threshold_ms: float
    """Published when gain − churn exceeds this."""
    reason: str

    @property
    def publish(self) -> bool:
        """The candidate is to be published."""
        return self.outcome in (Outcome.PUBLISH, Outcome.FORCED)
