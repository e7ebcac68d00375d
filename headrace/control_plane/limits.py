"""Numbers that follow the plan and reach Envoy by RTDS: retries and requests in flight, per Envoy. Pure.

Retries (Nygard's budget, made absolute since a percentage does nothing on a composite): as many as the spare
of where they would go can take, at least the burst that the loss of an engine throws back, none when that
is full. Requests: a last guard well above the plan, and above what a neighbour's loss would bring.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, inf, log2, sqrt

from headrace.control_plane.loads import engine_loads
from headrace.control_plane.rounds import Round
from headrace.control_plane.served import Row
from headrace.control_plane.table import Limits
from headrace.policy import Policy
from optimizer import SHED, Plan, Problem

FULL = 0.02
"""An engine with less than this part of its capacity to spare is full: nothing may be retried there."""

_LONGEST_S = 600.0
_LEAST_STAY_S = 5.0


def limits(found: Round, policy: Policy, envoys: Mapping[str, int]) -> Limits:
    """The limits of a plan. `envoys`: front-end -> connected Envoys, which share its numbers evenly."""
    if found.plan is None or found.problem is None:
        return Limits()
    load = engine_loads(found.served.shares(), found.problem, found.problem.demand_rps)
    rows = {
        row: _Row(
            found.plan,
            found.problem,
            row,
            partition.shares,
            found.served.fallback.get(row, {}),
            max(1, envoys.get(row[0], 1)),
            load,
        )
        for row, partition in found.served.partitions.items()
    }
    return Limits(
        retries={row: dict(_retries(planned, policy)) for row, planned in rows.items()},
        requests={row: dict(_requests(planned, policy)) for row, planned in rows.items()},
    )


class SlowlyFalling:
    """Retry limits that rise at once and fall only when what was sent under the larger one is over.

    When a plan leaves an engine that hangs, its requests still come back for a while, and need their slots.
    A limit of 0 holds at once: then nobody has room.
    """

    def __init__(self) -> None:
        self._largest: dict[tuple[Row, str], tuple[int, float]] = {}
        """-> the limit, and until when it stays."""

    def update(self, found: Limits, now: float, stay_s: float) -> Limits:
        """The limits to set instead of `found`."""
        self._largest = {key: kept for key, kept in self._largest.items() if now < kept[1]}
        for row, engines in found.retries.items():
            for engine, number in engines.items():
                if not number or number >= self._largest.get((row, engine), (0, 0.0))[0]:
                    self._largest[row, engine] = number, now + stay_s
        retries = {
            row: {engine: self._largest[row, engine][0] for engine in engines}
            for row, engines in found.retries.items()
        }
        for (row, engine), (number, _) in self._largest.items():
            if any(found.retries.get(row, {}).values()):  # else nobody has room for what comes back
                retries[row].setdefault(engine, number)
        return replace(found, retries=retries)


def longest_wait_s(policy: Policy) -> float:
    """How long a request may come back after its engine was left: the first attempt and one more there."""
    limits_s = [model.first_byte_timeout_s or 0.0 for model in policy.models.values()]
    return _LEAST_STAY_S + 2.0 * max(limits_s, default=0.0)


def retry_budgets(found: Round, now: Limits, envoys: Mapping[str, int]) -> dict[str, float]:
    """engine -> retries that may be in flight at once of what was first sent there, over the requests that
    the plan expects to be in flight there. Engines of which nothing is expected are absent."""
    if found.plan is None or found.problem is None:
        return {}
    allowed: dict[str, float] = {}
    expected: dict[str, float] = {}
    for row, numbers in now.retries.items():
        if (partition := found.served.partitions.get(row)) is None:
            continue
        share, number = partition.shares, max(1, envoys.get(row[0], 1))
        planned = _Row(found.plan, found.problem, row, share, {}, number, {})
        for engine in planned.engines():
            allowed[engine] = allowed.get(engine, 0.0) + numbers.get(engine, 0) * planned.envoys
            expected[engine] = expected.get(engine, 0.0) + planned.in_flight(engine)
    return {engine: allowed[engine] / flying for engine, flying in expected.items() if flying > 0}


@dataclass(frozen=True, slots=True)
class _Row:
    """One (front-end, key) of a plan."""

    plan: Plan
    problem: Problem
    row: Row
    shares: Mapping[str, float]
    fallbacks: Mapping[str, str]
    """engine -> where what fails there is sent."""
    envoys: int
    load: Mapping[str, float]
    """engine -> work/s under the shares served, which need not be those of the plan."""

    def engines(self) -> list[str]:
        """Engines with a share."""
        return [name for name in self.shares if name != SHED and name in self.plan.engines]

    def fallback(self, engine: str) -> str | None:
        """Where what fails at an engine is sent, if the plan knows of it."""
        other = self.fallbacks.get(engine)
        return other if other in self.plan.engines else None

    def rps(self, engine: str) -> float:
        """Requests/s of this row to an engine."""
        rate = self.problem.demand_rps.get(self.row[0], {}).get(self.row[1], 0.0)
        return rate * self.shares.get(engine, 0.0)

    def in_flight(self, engine: str) -> float:
        """Requests of this row at an engine: rate × latency (Little)."""
        return self.rps(engine) * self.latency_s(engine)

    def latency_s(self, engine: str) -> float:
        """A whole answer at the planned load: non-streamed answers send their headers at the end."""
        planned = self.plan.engines[engine]
        tokens = self.problem.keys[self.row[1]].output_tokens
        return min((planned.ttft_ms + tokens * planned.tbot_ms) / 1000, _LONGEST_S)

    def spare_rps(self, engine: str) -> float:
        """Requests of this key that an engine could take beyond the plan; 0 when it is full."""
        planned = self.plan.engines[engine]
        spare = planned.capacity_rps - self.load.get(engine, 0.0)
        work = self.problem.keys[self.row[1]].work.get(engine, 1.0)
        return spare / work if spare > FULL * planned.capacity_rps else 0.0


def _retries(planned: _Row, policy: Policy) -> Iterator[tuple[str, int]]:
    settings = policy.protection.retries
    for engine in planned.engines():
        if not settings.enabled:
            yield engine, 0
        elif settings.limit != "auto":
            yield engine, settings.limit
        else:
            model = policy.models[planned.row[1].rpartition("/")[0]]
            yield engine, _auto_retries(planned, engine, settings.floor, model.first_byte_timeout_s or 0.0)


def _auto_retries(planned: _Row, engine: str, floor: int, timeout_s: float) -> int:
    """Slots for the larger of what the spare can take and what a loss throws back, divided over Envoys.

    An engine that hangs throws back everything after `timeout_s`, and a second attempt there holds its slot
    as long again: of what its neighbours could take, all of that must be able to wait.
    """
    targets = [name for name in (engine, planned.fallback(engine)) if name is not None]
    spare = max(planned.spare_rps(name) for name in targets)
    if not spare:
        return 0
    slots = max(planned.spare_rps(name) * planned.latency_s(name) for name in targets)
    thrown_back = planned.in_flight(engine) + min(planned.rps(engine), spare) * timeout_s
    return stepwise(max(floor, max(slots, surely(thrown_back)) / planned.envoys))


def _requests(planned: _Row, policy: Policy) -> Iterator[tuple[str, int]]:
    """A guard for every engine with traffic of this row, its own or a failed neighbour's."""
    inflow: dict[str, float] = {}
    for engine in planned.engines():
        inflow[engine] = inflow.get(engine, 0.0) + planned.in_flight(engine)
        if other := planned.fallback(engine):
            inflow[other] = inflow.get(other, 0.0) + planned.in_flight(engine)
    for engine, expected in sorted(inflow.items()):
        breakers = policy.engines[engine].protection.breakers
        if breakers.max_requests == "auto":
            yield engine, stepwise(max(breakers.floor, breakers.headroom * expected / planned.envoys))
        else:
            yield engine, breakers.max_requests


def surely(mean: float) -> float:
    """What a number of independent requests with that mean hardly ever exceeds: three standard deviations."""
    return mean + 3.0 * sqrt(mean)


def stepwise(number: float) -> int:
    """The next power of the square root of two, so that a limit does not follow the noise of demand."""
    return ceil(2 ** (ceil(2 * log2(max(number, 1.0)) - 1e-9) / 2)) if number < inf else 1 << 31
