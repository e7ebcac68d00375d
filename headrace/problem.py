"""From a policy and the state of the fleet to the optimizer's `Problem`. Pure.

What only the policy decides (eligibility, distances, profiles, work) is derived once in `PlanningRules` and
used for every round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace.policy import Eligibility, EngineSpec, KeySpec, Policy
from headrace.policy.schema import Slo
from headrace.profiles import auto_utilization, profile, work
from optimizer import (
    SHED,
    Correction,
    Engine,
    Key,
    Observed,
    Problem,
    ProblemError,
    Profile,
    Shares,
    Tuning,
)
from optimizer.errors import check_number

DEFAULT_OUTPUT_TOKENS = 200.0
"""Mean answer length when neither the class nor a profile's reference says one."""

LEAST_CAPACITY = 0.5
"""Part of an engine's capacity within SLOs that no correction takes away."""

AUTO_RESERVE = 0.75
"""Reserve over the noise that is tolerated: noise then brings what is admitted hardly beyond capacity, and
leaves little of it unused."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """What is known of an engine right now."""

    ready_replicas: float = 0.0
    """Replicas that take traffic; a ramping one counts in part."""
    penalty: float = 1.0
    """(0, 1]: factor on capacity and curve, from outlier scores."""
    tbot_factor: float = 1.0
    """Learned: TBOT over the profile's."""
    load_factor: float = 1.0
    """Learned: load at which a latency is reached, over the profile's; capacity likewise."""
    ttft_offset_ms: float = 0.0
    """Learned: TTFT above the profile's."""

    @property
    def correction(self) -> Correction:
        """What was learned, as the optimizer's."""
        return Correction(self.tbot_factor, self.load_factor, self.ttft_offset_ms)


@dataclass(frozen=True, slots=True)
class PlanningRules:
    """What a policy says about planning, in the optimizer's words."""

    policy: Policy
    eligible: Mapping[tuple[str, str], frozenset[str]]
    reasons: Mapping[tuple[str, str], Mapping[str, str]]
    """(front-end, key) -> engine of the model -> the rule against it."""
    network_ms: Mapping[str, Mapping[str, float]]
    engines: Mapping[str, Engine]
    """Every engine with no replicas; `max_utilization: auto` still at its least."""
    keys: Mapping[str, Key]
    _corrected: dict[str, tuple[Correction, Engine]] = field(default_factory=dict, compare=False, repr=False)
    """engine -> the latest correction, and what it made of the engine."""

    @classmethod
    def of(cls, policy: Policy) -> PlanningRules:
        """Derive the rules of a policy.

        Raises:
            ProblemError: a profile that cannot be planned with, by its path in the policy.
        """
        found = _eligibility(policy)
        sets = {id(item): frozenset(item.engines) for item in found.values()}
        profiles = {name: profile(name, item) for name, item in policy.profiles.items()}
        limits = _slo_limits(policy, profiles)
        return cls(
            policy=policy,
            eligible={row: sets[id(item)] for row, item in found.items()},
            reasons={row: item.reasons for row, item in found.items()},
            network_ms={f: {e: policy.network_ms(f, e) for e in policy.engines} for f in policy.frontends},
            engines={name: _engine(spec, profiles, limits[name]) for name, spec in policy.engines.items()},
            keys={name: _key(policy, spec) for name, spec in policy.key_specs.items()},
        )

    def problem(
        self,
        *,
        demand: Mapping[str, Mapping[str, float]],
        engines: Mapping[str, EngineState],
        network_ms: Mapping[str, Mapping[str, float]] | None = None,
        previous_shares: Shares | None = None,
        refusing: Shares | None = None,
        observed: Mapping[str, Observed] | None = None,
    ) -> Problem:
        """One round's problem.

        Args:
            demand: front-end -> key -> first attempts/s.
            engines: what is known now; an engine left out has the replicas that the policy itself counts
                (static, DNS, gateway) and otherwise none.
            network_ms: measured round trips; they go before the policy's.
            previous_shares: what is published.
            refusing: shares that say what is refused, and so which engines keep a reserve; by default what is
                published.
            observed: engine -> what was measured there, for the policies `feedback` and `dgd`.

        Raises:
            ProblemError: a name that the policy lacks, or a value out of range.
        """
        self._check_names(demand, engines, network_ms or {})
        states = self._states(engines)
        reserved = self.reserved(previous_shares if refusing is None else refusing, states)
        network = {
            f: {**row, **network_ms[f]} if network_ms and f in network_ms else row
            for f, row in self.network_ms.items()
        }
        return Problem(
            demand_rps=demand,
            network_ms=network,
            engines=self._with_state(states, demand, reserved),
            keys=self.keys,
            eligible=self.eligible,
            previous_shares=previous_shares,
            max_gap=self.policy.planning.max_gap,
            observed=observed,
            tuning=_tuning(self.policy),
        )

    def reserved(self, shares: Shares | None, engines: Mapping[str, EngineState]) -> frozenset[str]:
        """The engines that could serve what shares refuse: they keep `shedding.reserve` of their capacity.

        What is refused since nobody is there to serve it needs no reserve of others.
        """
        if not self.policy.protection.shedding.enabled:
            return frozenset()
        states = self._states(engines)
        found: set[str] = set()
        for frontend, rows in (shares or {}).items():
            for key, row in rows.items():
                able = self.eligible.get((frontend, key), frozenset())
                if row.get(SHED, 0.0) > 0.0 and any(states[name].ready_replicas > 0 for name in able):
                    found |= able
        return frozenset(found)

    def _states(self, known: Mapping[str, EngineState]) -> dict[str, EngineState]:
        return {name: known.get(name) or _counted(spec) for name, spec in self.policy.engines.items()}

    def _check_names(
        self,
        demand: Mapping[str, Mapping[str, float]],
        engines: Mapping[str, EngineState],
        network_ms: Mapping[str, Mapping[str, float]],
    ) -> None:
        policy = self.policy
        for frontend, row in demand.items():
            _known(f"demand_rps.{frontend}", frontend, policy.frontends, "front-end")
            for key in row:
                _known(f"demand_rps.{frontend}.{key}", key, policy.key_specs, "model/class")
        for name in engines:
            _known(f"engines.{name}", name, policy.engines, "engine")
        for frontend, distances in network_ms.items():
            _known(f"network_ms.{frontend}", frontend, policy.frontends, "front-end")
            for name in distances:
                _known(f"network_ms.{frontend}.{name}", name, policy.engines, "engine")

    def _with_state(
        self,
        states: Mapping[str, EngineState],
        demand: Mapping[str, Mapping[str, float]],
        reserved: frozenset[str],
    ) -> dict[str, Engine]:
        reserve = self.policy.protection.shedding.reserve
        out = {}
        for name, fixed in self.engines.items():
            spec, state = self.policy.engines[name], states[name]
            fixed = self.corrected(name, state.correction)
            utilization = fixed.max_utilization
            if spec.max_utilization == "auto":
                utilization = auto_utilization(self._expected_load(spec, states, demand))
            out[name] = engine = Engine(
                profile=fixed.profile,
                ready_replicas=state.ready_replicas,
                penalty=state.penalty,
                max_utilization=utilization,
                max_share=fixed.max_share,
                slo_capacity_rps=fixed.slo_capacity_rps,
            )
            if name in reserved:
                kept = AUTO_RESERVE * engine.tolerance if reserve == "auto" else reserve
                out[name] = replace(engine, reserve=kept)
        return out

    def corrected(self, name: str, correction: Correction) -> Engine:
        """The engine with the profile as learned; its capacity is at least half, at most all of the policy's.

        ProblemError for a correction that no profile can take, by its path in the state.
        """
        fixed = self.engines[name]
        if correction.neutral:
            return fixed
        if (known := self._corrected.get(name)) and known[0] == correction:
            return known[1]
        check_number(f"engines.{name}.tbot_factor", correction.tbot_factor, above=True)
        check_number(f"engines.{name}.load_factor", correction.load_factor, low=0.1, high=1.0)
        check_number(f"engines.{name}.ttft_offset_ms", correction.ttft_offset_ms, low=-math.inf)
        curve = correction.apply(fixed.profile)
        limit = _corrected_limit(self.policy, fixed, name, curve)
        engine = replace(fixed, profile=curve, slo_capacity_rps=limit)
        self._corrected[name] = (correction, engine)
        return engine

    def _expected_load(
        self, spec: EngineSpec, states: Mapping[str, EngineState], demand: Mapping[str, Mapping[str, float]]
    ) -> float:
        """The engine's part, by capacity, of its model's demand, requests/s."""

        def size(name: str) -> float:
            return self.engines[name].profile.capacity_rps * states[name].ready_replicas

        total = sum(
            r for row in demand.values() for k, r in row.items() if k.rpartition("/")[0] == spec.model
        )
        peers = sum(size(name) for name, other in self.policy.engines.items() if other.model == spec.model)
        return total * size(spec.name) / peers if peers > 0 else 0.0


def build_problem(
    policy: Policy,
    *,
    demand: Mapping[str, Mapping[str, float]],
    engines: Mapping[str, EngineState],
    network_ms: Mapping[str, Mapping[str, float]] | None = None,
    previous_shares: Shares | None = None,
) -> Problem:
    """One problem from a policy and a state; see `PlanningRules.problem`. For one-off use."""
    rules = PlanningRules.of(policy)
    return rules.problem(
        demand=demand, engines=engines, network_ms=network_ms, previous_shares=previous_shares
    )


def _tuning(policy: Policy) -> Tuning:
    planning = policy.planning
    return Tuning(
        feedback_gain=planning.feedback.gain,
        feedback_ewma=planning.feedback.ewma,
        dgd_step=planning.dgd.step,
    )


def _eligibility(policy: Policy) -> dict[tuple[str, str], Eligibility]:
    """(front-end, key) -> who may serve it. Front-ends that no rule tells apart share one answer."""
    named = {rule.frontend for rule in policy.document.deny}
    answers: dict[tuple[object, str], Eligibility] = {}
    out = {}
    for frontend, spec in policy.frontends.items():
        alike = frontend if frontend in named else spec.residency
        for key in policy.key_specs:
            if (alike, key) not in answers:
                answers[alike, key] = policy.eligible(frontend, key)
            out[frontend, key] = answers[alike, key]
    return out


def _known(path: str, name: str, names: Mapping[str, object], kind: str) -> None:
    if name not in names:
        raise ProblemError(
            path, f"is no {kind} of the policy; expected one of {', '.join(sorted(names)[:8])}"
        )


def _counted(spec: EngineSpec) -> EngineState:
    members = spec.members
    return EngineState(float(members.replicas or len(members.static or ())))


def _engine(spec: EngineSpec, profiles: Mapping[str, Profile], slo_limit: float | None) -> Engine:
    engine = Engine(
        profile=profiles[spec.profile_name],
        ready_replicas=0.0,
        max_utilization=0.70 if spec.max_utilization == "auto" else spec.max_utilization,
        max_share=spec.max_share,
        slo_capacity_rps=slo_limit,
    )
    engine.check(f"engines.{spec.name}")
    return engine


def _slo_limits(policy: Policy, profiles: Mapping[str, Profile]) -> dict[str, float | None]:
    """engine -> the least SLO capacity over the classes that the policy lets on it, whatever their demand."""
    found: dict[tuple[str, float | None, float | None], float] = {}
    limits: dict[str, float | None] = {}
    for name, spec in policy.engines.items():
        limit = math.inf
        for slos in _slos(policy, spec):
            item = (spec.profile_name, *slos)
            if item not in found:
                found[item] = profiles[spec.profile_name].capacity_for(ttft_ms=slos[0], tbot_ms=slos[1])
            limit = min(limit, found[item])
        limits[name] = limit if math.isfinite(limit) else None
    return limits


def _slos(policy: Policy, spec: EngineSpec) -> set[tuple[float | None, float | None]]:
    """The strictest (TTFT, TBOT) of every class that the policy lets on an engine, where it has any."""
    mine = (
        key
        for key in policy.key_specs.values()
        if key.model == spec.model and (spec.classes is None or key.traffic_class in spec.classes)
    )
    return {(strictest(key.ttft_slo_ms), strictest(key.tbot_slo_ms)) for key in mine} - {(None, None)}


def _corrected_limit(policy: Policy, fixed: Engine, name: str, curve: Profile) -> float | None:
    """SLO capacity of a corrected curve, within [`LEAST_CAPACITY`, 1] of the policy's.

    What is learned neither closes an engine, which would then never be heard of again, nor makes it larger.
    """
    if fixed.slo_capacity_rps is None:
        return None
    found = (curve.capacity_for(ttft_ms=t, tbot_ms=b) for t, b in _slos(policy, policy.engines[name]))
    return min(fixed.slo_capacity_rps, max(LEAST_CAPACITY * fixed.slo_capacity_rps, min(found)))


def strictest(slo: Slo | None) -> float | None:
    """The smallest of an SLO's values, ms: what the profile's curve is held against."""
    if slo is None:
        return None
    return min((v for v in (slo.p50, slo.p95, slo.p99) if v is not None), default=None)


def _key(policy: Policy, spec: KeySpec) -> Key:
    mine = [engine for engine in policy.engines.values() if engine.model == spec.model]
    references = [e.profile.reference.output_tokens for e in mine if e.profile.reference is not None]
    tokens = spec.output_tokens
    if tokens is None:
        tokens = sum(references) / len(references) if references else DEFAULT_OUTPUT_TOKENS
    works = {engine.name: work(spec, engine.profile) for engine in mine}
    return Key(
        priority=spec.priority,
        output_tokens=tokens,
        work={name: value for name, value in works.items() if value != 1.0},
        gamma_ms=spec.churn_price_ms,
        kappa=spec.churn_work,
        has_session=spec.has_sessions,
    )
