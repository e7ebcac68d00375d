"""What is planned: demand, network, engines, rules. Frozen, validated, no history beyond the last shares.

Words are those of DESIGN §2. A *key* is the string "<model>/<class>". Rates are per second, durations carry
their unit in the name, work is in units of the request a profile was measured with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from optimizer.errors import ProblemError, check_number
from optimizer.profile import Profile

SHED = "shed"
"""Destination of the deliberately refused part of a demand."""

UNITS = 1 << 20
"""Published shares are integers of this sum (DESIGN, data plane)."""

Shares = Mapping[str, Mapping[str, Mapping[str, float]]]
"""front-end -> key -> destination -> fraction."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A pool of equal replicas."""

    profile: Profile
    ready_replicas: float = 1.0
    """Replicas that take traffic; a ramping replica counts in part."""
    penalty: float = 1.0
    """(0, 1]: factor on capacity and curve alike, from outlier scores."""
    max_utilization: float = 0.9
    """(0, 1]: part of the capacity that may be planned with."""
    max_share: float = 1.0
    """(0, 1]: largest fraction of one (front-end, key) demand this engine may get."""
    slo_capacity_rps: float | None = None
    """work/s per replica at which the strictest SLO of the classes allowed here still holds."""
    reserve: float = 0.0
    """[0, 1): part of the effective capacity that is not planned with for now."""

    @property
    def replica_limit_rps(self) -> float:
        """Work/s that may be planned on one replica."""
        slo = math.inf if self.slo_capacity_rps is None else self.slo_capacity_rps
        return min(self.profile.capacity_rps, slo) * self.max_utilization

    @property
    def scale(self) -> float:
        """Healthy replicas: how many times one replica's curve this engine is."""
        return self.ready_replicas * self.penalty

    @property
    def capacity_rps(self) -> float:
        """Effective capacity in work/s, less what is reserved."""
        return self.scale * self.replica_limit_rps * (1.0 - self.reserve)

    @property
    def tolerance(self) -> float:
        """Load above capacity that noise may bring before shares must change, relative: half of the head-room
        that `max_utilization` keeps, at most 5 %.

        Without it every round of a busy fleet would be forced by noise of the demand.
        """
        return min(0.05, 0.5 * (1.0 / self.max_utilization - 1.0))

    def check(self, path: str) -> None:
        """Raise `ProblemError` unless every field is in range and the limit is clear of the pole."""
        if not isinstance(self.profile, Profile):
            raise ProblemError(f"{path}.profile", f"{self.profile!r} is not a Profile")
        check_number(f"{path}.ready_replicas", self.ready_replicas)
        for name in ("penalty", "max_utilization", "max_share"):
            check_number(f"{path}.{name}", getattr(self, name), high=1.0, above=True)
        check_number(f"{path}.reserve", self.reserve, high=0.99)
        if self.slo_capacity_rps is not None:
            check_number(f"{path}.slo_capacity_rps", self.slo_capacity_rps)
        self.profile.check_limit(path, self.replica_limit_rps)


@dataclass(frozen=True, slots=True)
class Key:
    """One traffic class of one model."""

    priority: int = 0
    """Higher is kept longer when capacity is short."""
    output_tokens: float = 0.0
    """Mean output tokens of a request: weight of TBOT in its latency."""
    work: Mapping[str, float] = field(default_factory=dict)
    """engine -> load of one request there, in reference requests; 1 where absent."""
    gamma_ms: float = 5.0
    """Price of moving one request/s of sessions to another engine."""
    kappa: float = 0.05
    """Extra work of a moved request (its prefix must be prefilled again)."""
    has_session: bool = True
    """False: nothing sticks, so moving is free."""

    def check(self, path: str) -> None:
        """Raise `ProblemError` unless every field is in range."""
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise ProblemError(f"{path}.priority", f"{self.priority!r} is not an integer")
        for name in ("output_tokens", "gamma_ms", "kappa"):
            check_number(f"{path}.{name}", getattr(self, name))
        for engine, value in self.work.items():
            check_number(f"{path}.work[{engine}]", value, above=True)


@dataclass(frozen=True, slots=True)
class Observed:
    """What a feedback policy saw of an engine."""

    latency_ms: float
    """Mean latency of a request there, without the network."""
    load_rps: float
    """work/s"""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Settings of the feedback policies."""

    feedback_gain: float = 0.05
    """Relative step of a share per relative difference of latency."""
    feedback_ewma: float = 0.3
    """(0, 1]: weight of the newest latency."""
    dgd_step: float = 1.0
    """Gradient step relative to the one that is stable without delay."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One planning round. Mappings are taken as they are and must not be changed afterwards.

    Raises:
        ProblemError: on construction, naming the field.
    """

    demand_rps: Mapping[str, Mapping[str, float]]
    """front-end -> key -> first attempts per second."""
    network_ms: Mapping[str, Mapping[str, float]]
    """front-end -> engine -> round trip; needed for every eligible pair."""
    engines: Mapping[str, Engine]
    keys: Mapping[str, Key]
    eligible: Mapping[tuple[str, str], frozenset[str]]
    """(front-end, key) -> engines that may serve it; absent: none."""
    previous_shares: Shares | None = None
    """What was last published. None, or a row absent: nothing to keep there."""
    max_gap: float = 0.001
    """Certified gap to reach, as a fraction of the latency part."""
    max_step: float | None = None
    """Fraction of a row that may move unforced in one round (soft: capacity comes first)."""
    moves_free: frozenset[tuple[str, str]] = frozenset()
    """(front-end, key) whose moves cost nothing in this round."""
    observed: Mapping[str, Observed] | None = None
    """engine -> what was measured there, with its delay; used by `feedback` and `dgd` only."""
    tuning: Tuning = Tuning()

    def __post_init__(self) -> None:
        for name, engine in self.engines.items():
            if name == SHED:
                raise ProblemError("engines", f"{SHED!r} is reserved for refused traffic")
            engine.check(f"engines[{name}]")
        for name, key in self.keys.items():
            key.check(f"keys[{name}]")
        check_number("max_gap", self.max_gap, high=1.0)
        if self.max_step is not None:
            check_number("max_step", self.max_step, high=1.0, above=True)
        self._check_demand()
        self._check_eligible()
        self._check_previous()

    def _check_demand(self) -> None:
        for frontend, row in self.demand_rps.items():
            for key, rate in row.items():
                check_number(f"demand_rps[{frontend}][{key}]", rate)
                if key not in self.keys:
                    raise ProblemError(f"demand_rps[{frontend}][{key}]", "names no key of the problem")

    def _check_eligible(self) -> None:
        known = self.engines.keys()
        checked: dict[tuple[int, str], None] = {}
        for (frontend, key), engines in self.eligible.items():
            if (id(engines), frontend) in checked:
                continue
            checked[id(engines), frontend] = None
            unknown = engines - known
            if unknown:
                raise ProblemError(f"eligible[{frontend}, {key}]", f"unknown engine {min(unknown)!r}")
            row = self.network_ms.get(frontend, {})
            missing = engines - row.keys()
            if missing:
                raise ProblemError(
                    f"network_ms[{frontend}][{min(missing)}]",
                    "is missing; every front-end/engine pair that may be used needs a round trip",
                )
        for frontend, row in self.network_ms.items():
            values = row.values()
            if values and not (min(values) >= 0.0 and math.isfinite(sum(values))):
                for engine, ms in row.items():
                    check_number(f"network_ms[{frontend}][{engine}]", ms)

    def _check_previous(self) -> None:
        for frontend, rows in (self.previous_shares or {}).items():
            for key, shares in rows.items():
                path = f"previous_shares[{frontend}][{key}]"
                for name, share in shares.items():
                    check_number(f"{path}[{name}]", share, high=1.0 + 1e-6)
                total = sum(shares.values())
                if shares and abs(total - 1.0) > 1e-3:
                    raise ProblemError(path, f"shares sum to {total:g}; expected 1")

    @property
    def rows(self) -> list[tuple[str, str]]:
        """(front-end, key) pairs of the demand, sorted."""
        return sorted((f, k) for f, row in self.demand_rps.items() for k in row)
