"""The control plane: its parts, wired; what happens when something is seen or decided.

Requests never wait for anything here. Endpoints follow members at once; shares follow rounds, every few
seconds and at once when an engine is lost or comes back; limits follow the plan; the policy file is watched.

Nearly 500 lines, as it is one class: every part calls others through it. What can be said without the others
is in modules of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

import optimizer
from headrace.control_plane import feedback, observations, rules, upkeep
from headrace.control_plane.collector import SETTLE_EVERY_S, settle
from headrace.control_plane.config import ServeConfig
from headrace.control_plane.demand_watch import DemandWatch
from headrace.control_plane.enforce import enforce
from headrace.control_plane.engine_watch import EngineWatch
from headrace.control_plane.first_round import FirstRound
from headrace.control_plane.gauges import Gauges
from headrace.control_plane.learning import Learner, Observed
from headrace.control_plane.limits import SlowlyFalling, limits, longest_wait_s
from headrace.control_plane.persistence import Persistence
from headrace.control_plane.planner import Planner, unfinished_rows
from headrace.control_plane.policy_gate import PolicyGate
from headrace.control_plane.ports import listening
from headrace.control_plane.protection import Protection
from headrace.control_plane.publisher import Publisher
from headrace.control_plane.ramp import Ramps
from headrace.control_plane.rotation import rotated
from headrace.control_plane.rounds import Inputs, Round, moves_under
from headrace.control_plane.served import Served
from headrace.control_plane.source_health import SourceHealth
from headrace.control_plane.store import SavedState, SetAside, StateStore
from headrace.control_plane.table import Limits
from headrace.control_plane.telemetry import Telemetry
from headrace.control_plane.traffic import Traffic
from headrace.log import Logger
from headrace.policy import Policy, PolicyError
from headrace.policy.guards import Hold, capacity_drop, judge
from headrace.problem import EngineState, PlanningRules
from signals.membership import Membership
from signals.replicas import Replica, dump, load
from signals.report_service import ReportService
from xds_server.events import Acked, Disconnected, Event
from xds_server.server import XdsServer
from xds_server.translate.names import RUNTIME_LAYER

_LOOK_EVERY_S = 0.5
_JUDGE_EVERY_S = 1.0
_ROTATE_EVERY_S = 10.0
_LAG_EVERY_S = 5.0


class ControlPlane:
    """One control plane. `async with plane.serving()` opens and closes its ports; `run` works until told."""

    def __init__(
        self,
        config: ServeConfig,
        policy: Policy,
        log: Logger,
        *,
        found: Policy | PolicyError | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`found` is what the policy file says, where that is not `policy`: it is judged before anything is
        listened on. Raises ProblemError when the policy holds a profile that cannot be planned with."""
        self.config = config
        self.clock = clock
        self.wall_clock = wall_clock
        self.telemetry = Telemetry(log.bind(fleet=policy.fleet, revision=policy.revision, snapshot=0))
        self.telemetry.registry.register(Gauges(self))
        self.rules = PlanningRules.of(policy)
        self.membership = Membership(on_change=self._on_members, on_event=self.telemetry.member)
        self.traffic = Traffic(policy, clock)
        self.protection = Protection(self.membership, policy.protection.penalties)
        self.learner = Learner()
        self._ramps = Ramps()
        self.xds = XdsServer(
            clock=clock,
            admission=rules.envoy_admission(policy, config),
            on_event=self._on_xds,
            runtime_layers=[RUNTIME_LAYER],
        )
        self.publisher = Publisher(
            self.xds, self.membership, policy, on_problems=self.telemetry.snapshot_problems
        )
        self.reports = ReportService(
            self.membership,
            rules.admission(policy, config),
            on_result=lambda result: self.telemetry.reports.labels(result).inc(),
            on_refused=self.telemetry.reporter_refused,
            on_drain_acked=self.telemetry.drain_acked,
            drained=self.publisher.drained,
            clock=clock,
        )
        self.planner = Planner(
            inputs=self._inputs,
            take=self._take,
            interval_s=lambda: self.policy.planning.interval_s,
            telemetry=self.telemetry,
            clock=clock,
        )
        self.gate = PolicyGate(
            config.policy,
            in_force=lambda: self.policy,
            check=lambda policy: rules.check_security(policy, config),
            judge=self._judge_edit,
            adopt=self._adopt,
            telemetry=self.telemetry,
        )
        store = StateStore(config.state_dir) if config.state_dir else None
        self.persistence = Persistence(
            store, state=self._state, telemetry=self.telemetry, wall_clock=wall_clock
        )
        self._store = store
        self._found = found
        self._limits = SlowlyFalling()
        self._planned_limits: Limits | None = None
        self.served = Served()
        """The newest shares; the publisher shows them once they are saved."""
        self._unsaved = asyncio.Event()
        self.last_round: Round | None = None
        self._served_since = clock()
        self.published_at: float | None = None
        """Wall clock of the last publication, None before the first."""
        self._sources = SourceHealth(self.telemetry)
        self._members_changed = asyncio.Event()
        self._engines = EngineWatch(self.telemetry)
        self._demand = DemandWatch(self.telemetry)
        self._background: set[asyncio.Task[None]] = set()

    @property
    def log(self) -> Logger:
        """Writes with fleet, revision and snapshot on every line."""
        return self.telemetry.log

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self.publisher.policy

    @property
    def ready(self) -> bool:
        """Whether a snapshot can be served."""
        return self.published_at is not None

    @property
    def mode(self) -> str:
        """One of planning, held (an edit waits), holding_stale (every reporter is silent)."""
        if observations.all_silent(self.membership.view()):
            return "holding_stale"
        return "held" if self.gate.pending else "planning"

    # ---- life ---------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Mapping[str, int]]:
        """Restore what was saved, then listen; yields the bound ports by name."""
        self.log.info("policy_loaded", hash=self.policy.content_hash[:12])
        self._fit_members()
        self._restore()
        if self._found is not None:
            await self.gate.take(self._found)
            self.planner.wanted.clear()  # the first round waits for the reporters all the same
        self._engines.expect(self.policy, self.membership.view())
        if self.ready:
            self.publisher.publish()
        async with listening(self) as ports:
            self.log.info("control_plane_started", ports=ports, insecure_dev=self.config.insecure_dev)
            yield ports
            self.log.info("control_plane_stopping")

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then save the state."""
        loops: list[Coroutine[Any, Any, None]] = [
            self._follow_members(),
            self._publish_changes(),
            self._publish_saved(),
            self.planner.run(self._first_round()),
            self.gate.follow(stop),
            self.persistence.run(),
            upkeep.every(_LOOK_EVERY_S, self._look_at_traffic, self.telemetry),
            upkeep.every(_JUDGE_EVERY_S, self._judge_members, self.telemetry),
            upkeep.every(_ROTATE_EVERY_S, self._rotate_shed, self.telemetry),
            upkeep.every(_LAG_EVERY_S, self.xds.watch_lag, self.telemetry),
            upkeep.every(SETTLE_EVERY_S, settle, self.telemetry),
            upkeep.watch_lag(self.clock, self.telemetry),
        ]
        await upkeep.run_all(loops, stop, self.telemetry)
        self.persistence.save_now()

    # ---- what happens -------------------------------------------------------------------------------

    def _on_members(self) -> None:
        self._members_changed.set()

    def _on_xds(self, event: Event) -> None:
        self.telemetry.xds(event)
        if isinstance(event, Acked | Disconnected):
            task = asyncio.ensure_future(self.publisher.note_ack())
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    def _look_at_traffic(self) -> None:
        """What Envoys see of engines, for the membership; and surges, which are planned for at once."""
        if not self.traffic.heard():
            return
        for engine, (failures, sent) in observations.evidence(self.traffic.view()).items():
            self.membership.evidence(engine, failures, sent)
        problem = self.last_round.problem if self.last_round else None
        overloads, new = self.traffic.overloaded(self.served, problem)
        if overloads:
            self.planner.want("override")
        if new:
            self.log.warning("demand_surged", overloads=overloads[:5])
        if rows := self.traffic.relieved(self.served):
            self.log.info("demand_fell", rows=rows[:5])
            self.planner.want("override")

    # ---- members: endpoints at once -----------------------------------------------------------------

    async def _follow_members(self) -> None:
        while True:
            await self._members_changed.wait()
            self._members_changed.clear()
            self._ramp()
            if self.ready:
                self.persistence.changed()
                self.publisher.want()
            self._look_for_lost_engines()

    async def _publish_changes(self) -> None:
        while True:
            await self.publisher.wanted.wait()
            with self.telemetry.stage_s.labels("publish").time():
                await self.publisher.publish_in_turns()

    async def _publish_saved(self) -> None:
        """What an Envoy was told must not be forgotten by a crash: new shares are saved before they leave."""
        while True:
            await self._unsaved.wait()
            self._unsaved.clear()
            served = self.served
            await self.persistence.save()
            if served.sequence > self.publisher.served.sequence:  # else newer ones were shown at once
                self._show(served)

    def _look_for_lost_engines(self) -> None:
        if self._engines.update(self.policy, self.membership.view()):
            self.planner.want("topology")

    def _judge_members(self) -> None:
        now, seen = self.clock(), self.traffic.view()
        corrections = self.learner.corrections(self.rules)
        if self.protection.update(self.rules, seen, now, corrections, *self.traffic.answering()):
            self.planner.want("override")
        self._ramp()
        self._sources.update(self.membership.view(), self.protection.mismatch, now)
        self._sources.penalised(self.protection.penalised(now))
        self._demand.update(self.policy, seen)
        self._sources.miscounted(self.traffic.attempts_mismatch())

    def _ramp(self) -> None:
        """New replicas count for a part of the others while there are others and capacity is not short."""
        engines = self.policy.engines
        members = self.membership.view()
        short = observations.short_of_capacity(self.policy, self.served)
        parts = self._ramps.update(members, lambda name: engines[name].protection.ramp, short, self.clock())
        self.membership.ramp(parts)

    # ---- rounds: shares when it pays ----------------------------------------------------------------

    def _first_round(self) -> Coroutine[Any, Any, None]:
        """What the first round waits for."""
        first = FirstRound(lambda: self.policy, self.membership.view, self.clock)
        if self.ready:
            return first.returned(self.planner.wanted)
        return first.opened(self.config.startup_wait_s)

    def engine_states(self) -> dict[str, EngineState]:
        """engine -> ready replicas and penalty, now."""
        penalties = self.protection.engine_penalties(self.clock())
        values = {name: penalty.value for name, penalty in penalties.items()}
        corrections = self.learner.corrections(self.rules)
        return observations.engine_states(self.policy, self.membership.view(), values, corrections)

    def _inputs(self) -> Inputs | None:
        """What to plan from; None while every reporter is silent, when the last shares stay."""
        if self.ready and observations.all_silent(self.membership.view()):
            return None
        self._learn()
        return self._known()

    def _learn(self) -> None:
        now = self.clock()
        seen = Observed(
            members=self.membership.view(),
            traffic=self.traffic.view(),
            penalties=self.protection.engine_penalties(now),
            mismatch=self.protection.mismatch,
        )
        self.learner.update(self.rules, seen, now)

    def _known(self) -> Inputs:
        """What is known now."""
        return Inputs(
            rules=self.rules,
            demand_rps=self.traffic.planned(),
            network_ms={},
            engines=self.engine_states(),
            served=self.served,
            planning_policy=self.config.planning_policy,
            held_s=self.clock() - self._served_since,
            unknown=self.learner.unknown(),
            observed=self._observed(),
        )

    def _observed(self) -> Mapping[str, optimizer.Observed] | None:
        """What was measured of engines, for a planning policy that steers by it."""
        if (self.config.planning_policy or self.policy.planning.policy) not in feedback.POLICIES:
            return None
        return feedback.observed(self.rules, self.membership.view(), self.traffic.view(), self.clock())

    def _take(self, found: Round, inputs: Inputs, trigger: str) -> bool:
        """Serve what a round gave. False when policy or shares changed while it was planned."""
        if inputs.rules is not self.rules or found.base is not self.served:
            return False
        self.telemetry.planned(found, trigger)
        if found.error:
            return True
        quiet = found.plan is None
        if quiet:  # the last plan is still what explains the shares
            last = self.last_round
            self.last_round = replace(found, plan=last.plan, problem=last.problem) if last else found
        else:
            self.last_round = found
            self._planned_limits = limits(found, self.policy, self.envoys())
        self._limit()
        if found.served is not found.base or not self.ready:
            self._serve(found.served)
            if not quiet:
                self.telemetry.published(found, trigger)
        return True

    def _limit(self) -> None:
        """Set the limits of the latest plan; some fall later than it."""
        if self._planned_limits is None:
            return
        now = self._limits.update(self._planned_limits, self.clock(), longest_wait_s(self.policy))
        if now != self.publisher.limits:  # else the tables made for these very numbers stay
            self.publisher.limits = now
            self.publisher.want()
            self.persistence.changed()

    def envoys(self) -> Mapping[str, int]:
        """front-end -> Envoys with a stream."""
        nodes = {(c.info.frontend, c.info.id) for c in self.xds.connections()}
        return Counter(frontend for frontend, _ in nodes)

    def _serve(self, served: Served, *, at_once: bool = False) -> None:
        """Serve other shares, once they are saved; `at_once` when Envoys must not wait for a disk."""
        self.telemetry.moved_shares(self.served, served)
        self.telemetry.bind(snapshot=served.sequence)
        self._served_since = self.clock()
        self.served = served
        if not self.ready:
            self.log.info("control_plane_ready")
        self.published_at = self.wall_clock()
        if at_once or self._store is None:
            self._show(served)
            self.persistence.changed()
        else:
            self._unsaved.set()

    def _show(self, served: Served) -> None:
        self.publisher.served = served
        self.publisher.want()

    def _rotate_shed(self) -> None:
        served, turn_s = self.served, self.policy.protection.shedding.rotate_s
        fraction = min(1.0, _ROTATE_EVERY_S / turn_s)
        partitions = {row: rotated(partition, fraction) for row, partition in served.partitions.items()}
        if partitions != served.partitions:
            self._serve(Served(served.sequence + 1, partitions, served.fallback, served.reasons))

    # ---- policy -------------------------------------------------------------------------------------

    async def _judge_edit(self, policy: Policy, planning_rules: PlanningRules) -> Hold | None:
        """Whether an edit must wait: what it would move and take away, by the guards in force."""
        if not self.ready:
            return None
        inputs = self._known()
        moves = await asyncio.to_thread(moves_under, planning_rules, inputs)
        ready = {name: state.ready_replicas for name, state in inputs.engines.items()}
        verdict = judge(self.policy, policy, moves, capacity_drop(self.policy, policy, ready))
        reasons = [*rules.identity_changes(self.policy, policy), *getattr(verdict, "reasons", ())]
        return Hold(tuple(reasons)) if reasons else None

    def _adopt(self, policy: Policy, planning_rules: PlanningRules) -> None:
        self.telemetry.bind(revision=policy.revision)
        self.reports.admission = rules.admission(policy, self.config)
        self.rules = planning_rules
        self.publisher.adopt(policy)
        self.traffic.adopt(policy)
        self.xds.admission = rules.envoy_admission(policy, self.config)
        self.protection.adopt(policy.protection.penalties)
        self._fit_members()
        self._engines.expect(policy, self.membership.view())
        self.log.info("policy_loaded", hash=policy.content_hash[:12])
        if self.ready:
            self._serve(self._enforced(self.served), at_once=True)
        self.planner.want("policy")

    def _fit_members(self) -> None:
        """Members by the policy in force: its own, and of the others those that it would admit."""
        self.membership.configure(rules.static_members(self.policy), self.policy.engines)
        self.membership.keep(lambda replica: rules.misfit(self.reports.admission, replica))

    def _enforced(self, served: Served) -> Served:
        members = self.membership.view()
        ready = {name for name in self.policy.engines if members.ready_count(name)}
        return enforce(self.policy, served, ready)

    # ---- state --------------------------------------------------------------------------------------

    def _state(self) -> SavedState | None:
        if not self.ready:
            return None
        return SavedState(
            fleet=self.policy.fleet,
            policy_hash=self.policy.content_hash,
            served=self.served.to_json(),
            demand_rps=self.traffic.smoothed(),
            members=dump(self.membership.view()),
            penalties=self.protection.save(self.clock()),
            learned=self.learner.save(),
            policy=self.policy.archive.to_json(),
            limits=self.publisher.limits.to_json(),
            unfinished=self.planner.save(),
        )

    def _restore(self) -> None:
        if self._store is None:
            return
        saved = self._store.load(self.policy.fleet)
        if isinstance(saved, SavedState):
            try:
                served, members = Served.from_json(saved.served), load(saved.members)
                limits_then = Limits.from_json(saved.limits) if saved.limits else Limits()
                under_way = unfinished_rows(saved.unfinished)
                self.protection.restore(saved.penalties, self.clock())
                self.learner.restore(saved.learned)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                saved = self._store.set_aside(f"not a state of this version: {error!r}")
            else:
                self.publisher.limits = limits_then
                if saved.policy_hash == self.policy.content_hash:
                    self.planner.resume(under_way)
                self._restore_from(saved, served, members)
        if isinstance(saved, SetAside):
            self.log.error("state_set_aside", reason=saved.reason, file=str(saved.moved_to))

    def _restore_from(self, saved: SavedState, served: Served, members: tuple[Replica, ...]) -> None:
        self.membership.restore([r for r in members if r.key.engine in self.policy.engines], self.clock())
        self._fit_members()
        self.traffic.restore(saved.demand_rps)
        if saved.policy_hash != self.policy.content_hash:
            self.log.warning("policy_changed_while_down", was=saved.policy_hash[:12])
        self._serve(self._enforced(served), at_once=True)
        self.log.info("state_restored", members=len(members))
