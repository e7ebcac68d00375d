"""Replicas and engines that do not keep what their profile promises: penalties and quarantine.

Two views of each, from the signals package: what Envoys sent against what is reported (`LoadCheck`: hung),
and observed against predicted latency at the same load (`OutlierDetector`: slow). A replica's penalty is its
weight in EDS; an engine's is a factor on its effective capacity.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from headrace.control_plane.residuals import Process, Residuals, erring, process_of
from headrace.policy import Policy
from headrace.policy.schema.protection import Penalties
from headrace.problem import PlanningRules
from optimizer import Correction, Profile
from signals.demand import DemandView
from signals.load_check import EngineLoad, LoadCheck
from signals.membership import Membership
from signals.outliers import Cause, Hold, OutlierDetector, OutlierSettings, Penalty, SavedPenalty
from signals.replicas import MembershipView, Replica, ReplicaKey

_LEAST_WEIGHT = 0.01


class Protection:
    """Owns the detectors. `update` is called about once a second."""

    def __init__(self, membership: Membership, settings: Penalties) -> None:
        self._membership = membership
        self._load_check = LoadCheck()
        self._replicas: OutlierDetector[Process] = OutlierDetector(_settings(settings))
        self._engines: OutlierDetector[str] = OutlierDetector(_settings(settings))
        self._residuals = Residuals()
        self._failed: dict[str, frozenset[Process]] = {}
        """engine that Envoys saw fail -> its ready processes at the time."""
        self._held: dict[ReplicaKey, Hold] = {}
        """An operator's hand on replicas; it outlives their processes."""
        self.mismatch: Mapping[str, float] = {}
        """engine -> requests reported / requests sent."""

    def adopt(self, settings: Penalties) -> None:
        """Judge by other thresholds from now on."""
        self._replicas.settings = self._engines.settings = _settings(settings)

    def update(
        self,
        rules: PlanningRules,
        view: DemandView,
        now: float,
        corrections: Mapping[str, Correction] | None = None,
        failing: Collection[str] = (),
        serving: Collection[str] = (),
    ) -> bool:
        """Judge everything that reports, and tell the membership. Returns whether an engine is worse now.

        `corrections`: what was learned of engines. It excuses and never accuses: predicted is the slower of
        the profile and the corrected profile. `failing`, `serving`: engines whose answers Envoys see fail, or
        see come.
        """
        members = self._membership.view()
        enabled = rules.policy.protection.penalties.enabled
        verdict = self._load_check.check(members, _engine_loads(view), now)
        self.mismatch = verdict.mismatch
        before = {name: penalty.value for name, penalty in self._engines.penalties(now).items()}
        if enabled:
            self._observe(rules, members, now, corrections or {})
            self._judge_answers(rules, members, sorted(failing), sorted(serving), now)
        self._replicas.update(now)
        self._engines.update(now)
        penalties = self._replicas.penalties(now)
        weights = {process.key: found.value for process, found in penalties.items() if found.value < 1.0}
        for key, trial in verdict.penalties.items():
            weights[key] = min(weights.get(key, 1.0), trial)
        suspicions = dict(verdict.suspicions)
        self._held = {key: hold for key, hold in self._held.items() if now < hold.until}
        for key, hold in self._held.items():
            suspicions.pop(key, None)
            weights[key] = max(hold.penalty, _LEAST_WEIGHT)
            if not hold.penalty:
                suspicions[key] = f"held out by hand: {hold.reason}"
        self._membership.penalise(weights, suspicions)
        after = self._engines.penalties(now)
        return any(penalty.value < before.get(name, 1.0) for name, penalty in after.items())

    def engine_penalties(self, now: float) -> dict[str, Penalty]:
        """Every judged engine's penalty, with its explanation."""
        return self._engines.penalties(now)

    def replica_penalties(self, now: float) -> dict[ReplicaKey, Penalty]:
        """Every judged replica's penalty, with its explanation."""
        judged = {process.key: found for process, found in self._replicas.penalties(now).items()}
        by_hand = {key: Penalty(h.penalty, Cause.HELD, None, now, h) for key, h in self._held.items()}
        return judged | by_hand

    def penalised(self, now: float) -> dict[str, str]:
        """`engine` or `engine/replica` -> explanation, of all whose penalty is below 1."""
        engines = {name: p for name, p in self.engine_penalties(now).items() if p.value < 1.0}
        replicas = {key: p for key, p in self.replica_penalties(now).items() if p.value < 1.0}
        return {name: p.explanation for name, p in engines.items()} | {
            f"{key.engine}/{key.replica_id}": p.explanation for key, p in replicas.items()
        }

    def hold(self, policy: Policy, engine: str, replica: str | None, hold: Hold, now: float) -> None:
        """Set a penalty by hand. KeyError for an unknown engine or replica, ValueError for a bad hold."""
        if replica is None:
            self._engines.hold(engine, policy.engines[engine].model, hold, now)
        else:
            if not hold.reason or not 0.0 <= hold.penalty <= 1.0:
                raise ValueError("a hold needs a reason, and a penalty from 0 to 1")
            self._held[self._process(engine, replica).key] = hold

    def release(self, engine: str, replica: str | None) -> None:
        """Take hand and penalty off, if there is any. KeyError for an unknown engine or replica."""
        if replica is not None:
            process = self._process(engine, replica)
            self._held.pop(process.key, None)
            with contextlib.suppress(KeyError):
                self._replicas.release(process)
        elif engine in self._membership.view().engines or engine in self._engines.penalties(0.0):
            with contextlib.suppress(KeyError):
                self._engines.release(engine)
        else:
            raise KeyError(engine)

    def save(self, now: float) -> dict[str, list[list[object]]]:
        """What a restart should know, as plain values."""
        engines = self._engines.save(now)
        replicas = self._replicas.save(now)
        held = {key: replace(hold, until=hold.until - now) for key, hold in self._held.items()}
        return {
            "held": [[[*key], *_plain(hold)] for key, hold in held.items()],
            "engines": [[s.unit, s.group, s.value, *_plain(s.hold)] for s in engines],
            "replicas": [
                [[*s.unit.key, s.unit.incarnation], s.group, s.value, *_plain(s.hold)] for s in replicas
            ],
        }

    def restore(self, saved: Mapping[str, list[list[Any]]], now: float) -> None:
        """Take up what `save` wrote."""
        self._engines.restore([SavedPenalty(u, g, v, _hold(h)) for u, g, v, *h in saved["engines"]], now)
        replicas = [
            SavedPenalty(Process(ReplicaKey(*key), incarnation), group, value, _hold(hold))
            for (*key, incarnation), group, value, *hold in saved["replicas"]
        ]
        self._replicas.restore(replicas, now)
        for key, penalty, reason, left_s in saved["held"]:
            self._held[ReplicaKey(*key)] = Hold(penalty, reason, now + left_s)

    def _process(self, engine: str, replica: str) -> Process:
        for found in self._membership.view().engines.get(engine, ()):
            if found.key.replica_id == replica:
                return process_of(found)
        raise KeyError(f"{engine}/{replica}")

    def _observe(
        self,
        rules: PlanningRules,
        members: MembershipView,
        now: float,
        corrections: Mapping[str, Correction],
    ) -> None:
        seen = {process_of(replica) for found in members.engines.values() for replica in found}
        self._replicas.retain(seen)
        ready = {engine: _ready(found) for engine, found in members.engines.items()}
        self._replicas.know({process: engine for engine, found in ready.items() for process in found}, now)
        self._engines.retain(set(rules.policy.engines))
        live = [n for n, spec in rules.policy.engines.items() if spec.state == "active" and ready.get(n)]
        self._engines.know({name: rules.policy.engines[name].model for name in live}, now)
        self._residuals.retain(seen)
        erring_now = erring(rules, members, now)
        for engine, replicas in members.engines.items():
            if engine in rules.policy.engines:
                for replica in replicas:
                    if replica.key in erring_now:
                        self._replicas.fail(process_of(replica), engine, now)
                learned = rules.corrected(engine, corrections.get(engine, Correction())).profile
                self._observe_engine(rules, engine, replicas, learned, now)

    def _judge_answers(
        self,
        rules: PlanningRules,
        members: MembershipView,
        failing: list[str],
        serving: list[str],
        now: float,
    ) -> None:
        """What Envoys see. A failing engine is judged by its processes of that time: new ones begin well."""
        for engine in failing:
            self._engines.fail(engine, rules.policy.engines[engine].model, now)
            self._failed.setdefault(engine, _ready(members.engines.get(engine, ())))
        for engine in serving:
            self._engines.vouch(engine, rules.policy.engines[engine].model, now)
        penalties = self._engines.penalties(now)
        for engine, processes in list(self._failed.items()):
            penalty = penalties.get(engine)
            renewed = (ready := _ready(members.engines.get(engine, ()))) and not ready & processes
            if penalty is None or penalty.value == 1.0 or penalty.hold is not None:
                del self._failed[engine]
            elif renewed:
                self._engines.release(engine)
                del self._failed[engine]

    def _observe_engine(
        self, rules: PlanningRules, engine: str, replicas: tuple[Replica, ...], learned: Profile, now: float
    ) -> None:
        profile, tokens = rules.engines[engine].profile, _tokens(rules, engine)
        residuals = []
        for replica in replicas:
            if (found := self._residuals.of(replica, profile, learned, tokens, now)) is not None:
                residuals.append(found)
                self._replicas.observe(process_of(replica), engine, found, now)
        if residuals:
            self._engines.observe(engine, rules.policy.engines[engine].model, median(residuals), now)


def _ready(replicas: tuple[Replica, ...]) -> frozenset[Process]:
    return frozenset(process_of(replica) for replica in replicas if replica.ready)


def _settings(policy: Penalties) -> OutlierSettings:
    steps = max(1.0, policy.return_s / max(policy.dwell_s, 1.0))
    return OutlierSettings(
        enter=policy.enter_ratio,
        leave=policy.leave_ratio,
        dwell_s=policy.dwell_s,
        floor=policy.floor,
        step=(1.0 - policy.floor) / steps if policy.floor < 1 else 1.0,
        most=policy.max_penalized,
    )


def _engine_loads(view: DemandView) -> dict[str, EngineLoad]:
    loads: dict[str, EngineLoad] = {}
    for (_, engine), seen in view.engines.items():
        known = loads.get(engine, EngineLoad(0.0, None))
        active = known.active if seen.active is None else (known.active or 0.0) + seen.active
        loads[engine] = EngineLoad(known.sent_rps + seen.sent_rps, active)
    return loads


def _tokens(rules: PlanningRules, engine: str) -> float:
    """Mean output tokens of the classes that use an engine."""
    model = rules.policy.engines[engine].model
    mine = [key.output_tokens for name, key in rules.keys.items() if name.rpartition("/")[0] == model]
    return sum(mine) / len(mine) if mine else 0.0


def _hold(saved: list[Any]) -> Hold | None:
    return Hold(*saved) if saved else None


def _plain(hold: Hold | None) -> list[object]:
    return [] if hold is None else [hold.penalty, hold.reason, hold.until]
