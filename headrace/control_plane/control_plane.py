"""The control plane: wiring and loops, in the order in which they start and stop.

Requests never wait for anything here. Three loops feed the Envoys: members (endpoints, at once), rounds
(shares, every few seconds and at once when an engine is lost or comes back), and the policy file.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Literal

import grpc
import grpc.aio
from aiohttp import web

from headrace.admin.app import admin_app, metrics_app
from headrace.control_plane import observations, rules
from headrace.control_plane.config import Address, ServeConfig
from headrace.control_plane.gauges import Gauges
from headrace.control_plane.publisher import Publisher
from headrace.control_plane.rounds import Inputs, Result, Round, enforce, limits, plan_round
from headrace.control_plane.served import Served
from headrace.control_plane.store import SavedState, SetAside, StateStore
from headrace.control_plane.telemetry import Telemetry
from headrace.log import Logger
from headrace.policy import Policy, PolicyError, watch
from headrace.problem import PlanningRules
from optimizer import Warm
from signals.demand import Demand
from signals.membership import Membership
from signals.metrics_service import MetricsService
from signals.replicas import dump, load
from signals.report_service import ReportService
from signals.tls import server_credentials
from xds_server.events import Acked, Disconnected, Event
from xds_server.server import XdsServer
from xds_server.services import SERVER_OPTIONS, XdsServices
from xds_server.translate.names import RUNTIME_LAYER

_SAVE_EVERY_S = 10.0
_SAVE_PAUSE_S = 0.2
_SETTLE_S = 5.0
"""After a restart from saved state: how long reporters get to come back before the first round. It is the
validity of a report at the default interval, so whoever is silent then is not merely reconnecting."""
_LAG_EVERY_S = 5.0


class ControlPlane:
    """One control plane process. `async with` starts and stops it; `run` serves until told to stop."""

    def __init__(
        self,
        config: ServeConfig,
        policy: Policy,
        log: Logger,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Raises ProblemError when the policy holds a profile that cannot be planned with."""
        self._config = config
        self._clock = clock
        self._wall_clock = wall_clock
        self.log = log.bind(fleet=policy.fleet, revision=policy.revision)
        self.telemetry = Telemetry(self.log)
        self.planning_rules = PlanningRules.of(policy)
        self.membership = Membership(on_change=self._on_members, on_event=self.telemetry.member)
        self.demand = Demand(rules.envoy_names(policy), window_s=policy.planning.demand_window_s)
        self.xds = XdsServer(
            clock=clock,
            admission=rules.envoy_admission(policy),
            on_event=self._on_xds,
            runtime_layers=[RUNTIME_LAYER],
        )
        self.publisher = Publisher(self.xds, self.membership, policy, on_problem=self._on_problem)
        self.reports = ReportService(
            self.membership,
            rules.admission(policy, insecure_dev=config.insecure_dev),
            on_result=lambda result: self.telemetry.reports.labels(result).inc(),
            drained=self.publisher.drained,
            clock=clock,
        )
        self.telemetry.registry.register(Gauges(self))
        self.last_round: Round | None = None
        self.policy_error: str = ""
        self.published_at: float | None = None
        self._store = StateStore(config.state_dir) if config.state_dir else None
        self._warm = Warm()
        self._members_changed = asyncio.Event()
        self._wanted = asyncio.Event()
        self._unsaved = asyncio.Event()
        self._trigger = "timer"
        self._lost: frozenset[str] = frozenset()
        self._problems: dict[str, list[str]] = {}
        self._background: set[asyncio.Task[Any]] = set()

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self.publisher.policy

    @property
    def mode(self) -> str:
        """One of planning, frozen, held, holding_stale."""
        return "planning"

    @property
    def ready(self) -> bool:
        """Whether a snapshot can be served."""
        return self.published_at is not None

    # ---- life ---------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Mapping[str, int]]:
        """Listen on all ports, which are yielded by name; on leaving, close them in the reverse order."""
        async with contextlib.AsyncExitStack() as stack:
            self.membership.configure(rules.static_members(self.policy), self.policy.engines)
            self._restore()
            self._lost = observations.without_replicas(self.policy, self.membership.view())
            ports = {
                "metrics": await self._listen(stack, metrics_app(self), self._config.metrics),
                "admin": await self._listen(stack, admin_app(self), self._config.admin),
                "reports": await self._listen_reports(stack),
                "xds": await self._listen_xds(stack),
            }
            self.log.info(
                "control_plane_started", ports=ports, insecure_dev=self._config.insecure_dev or None
            )
            yield ports
            self.log.info("control_plane_stopping")

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then save the state."""
        loops = [
            self._follow_members(),
            self._plan_loop(),
            self._follow_policy(stop),
            self._save_loop(),
            self._every(_LAG_EVERY_S, self.xds.watch_lag),
            self._watch_loop_lag(),
        ]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(loop) for loop in loops]
            await stop.wait()
            for task in tasks:
                task.cancel()
        self._save_now()

    async def _listen(self, stack: contextlib.AsyncExitStack, app: web.Application, address: Address) -> int:
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, address.host, address.port)
        await site.start()
        return int(runner.addresses[0][1])

    def _credentials(self, port: Literal["reports", "xds"]) -> grpc.ServerCredentials | None:
        """TLS of a port, None in development. Raises ValueError when the port would be open to anybody."""
        if self._config.insecure_dev:
            return None
        files = rules.tls_files(self.policy, port)
        if files is None:
            raise ValueError(
                f"the policy has no security.{port}: expected certificate, key and who may connect "
                "(or --insecure-dev, on loopback)"
            )
        return server_credentials(files)

    async def _listen_reports(self, stack: contextlib.AsyncExitStack) -> int:
        address = self._config.reports
        port = await self.reports.start(address.host, address.port, self._credentials("reports"))
        stack.push_async_callback(self.reports.stop)
        return port

    async def _listen_xds(self, stack: contextlib.AsyncExitStack) -> int:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        services = XdsServices(self.xds)
        services.register(server)
        server.add_generic_rpc_handlers((self._metrics_service(),))
        credentials, address = self._credentials("xds"), str(self._config.xds)
        try:
            port = (
                server.add_insecure_port(address)
                if credentials is None
                else server.add_secure_port(address, credentials)
            )
        except RuntimeError as error:
            raise OSError(f"cannot listen for Envoys on {address}: {error}") from error
        await server.start()
        stack.push_async_callback(server.stop, 0.5)
        stack.callback(services.stop)
        return int(port)

    def _metrics_service(self) -> MetricsService:
        return MetricsService(
            self.demand,
            frontends=lambda: self.policy.frontends,
            identity=lambda frontend: rules.certificate_names(self.policy, frontend) or None,
            on_flush=self._on_flush,
            clock=self._clock,
        )

    # ---- what happens -------------------------------------------------------------------------------

    def _on_members(self) -> None:
        self._members_changed.set()

    def _on_xds(self, event: Event) -> None:
        self.telemetry.xds(event)
        if isinstance(event, Acked | Disconnected):
            self._spawn(self.publisher.note_ack())

    def _on_flush(self, frontend: str, node_id: str) -> None:
        view = self.demand.view(self._clock())
        for engine, (failures, sent) in observations.evidence(view).items():
            self.membership.evidence(engine, failures, sent)

    def _on_problem(self, frontend: str, problems: list[str]) -> None:
        if self._problems.get(frontend) == problems:
            return
        self._problems[frontend] = problems
        self.log.error("snapshot_refused", frontend=frontend, problems=problems[:5], count=len(problems))

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # ---- members: endpoints at once -----------------------------------------------------------------

    async def _follow_members(self) -> None:
        while True:
            await self._members_changed.wait()
            self._members_changed.clear()
            if self.ready:
                self._unsaved.set()
                self.publisher.publish()
                await self.publisher.note_ack()
            self._judge_engines()

    def _judge_engines(self) -> None:
        lost = observations.without_replicas(self.policy, self.membership.view())
        for engine in sorted(lost - self._lost):
            self.log.warning("engine_lost", engine=engine)
        for engine in sorted(self._lost - lost):
            self.log.info("engine_recovered" if self.ready else "engine_ready", engine=engine)
        if lost != self._lost:
            self._lost = lost
            self._want("topology")

    # ---- rounds: shares when it pays ----------------------------------------------------------------

    def _want(self, trigger: str) -> None:
        self._trigger = trigger
        self._wanted.set()

    async def _plan_loop(self) -> None:
        await (self._settle() if self.ready else self._wait_for_members())
        while True:
            trigger, self._trigger = self._trigger, "timer"
            self._wanted.clear()
            await self._plan(trigger)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), self.policy.planning.interval_s)

    async def _wait_for_members(self) -> None:
        """Serve nothing before it is known who is there: an empty answer would empty the Envoys."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.startup_wait_s):
                while observations.without_replicas(self.policy, self.membership.view()):
                    await self._wanted.wait()
                    self._wanted.clear()

    async def _settle(self) -> None:
        """After a restart, members are the saved and the reported ones until the reporters had time to come
        back; only an engine that is lost or found meanwhile is planned for at once."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wanted.wait(), _SETTLE_S)

    async def _plan(self, trigger: str) -> None:
        planned_for = self.planning_rules
        inputs = self._inputs()
        start = self._clock()
        try:
            found = await asyncio.to_thread(plan_round, inputs, self._warm)
        except Exception as error:  # a fault of ours must not end the loop: the last plan stays
            self._warm = Warm()
            self.log.exception("plan_failed", error=repr(error))
            self.telemetry.rounds.labels(trigger, Result.FAILED).inc()
            return
        self.telemetry.stage_s.labels("solve").observe(self._clock() - start)
        if planned_for is not self.planning_rules:
            self._want("policy")  # the policy changed meanwhile: what was planned is not for this one
            return
        self._take(found, trigger)

    def _inputs(self) -> Inputs:
        view = self.demand.view(self._clock())
        return Inputs(
            rules=self.planning_rules,
            demand_rps=observations.demand_rps(self.policy, view),
            network_ms={},
            engines=observations.engine_states(self.policy, self.membership.view()),
            served=self.publisher.served,
            planning_policy=self._config.planning_policy,
        )

    def _take(self, found: Round, trigger: str) -> None:
        self.telemetry.rounds.labels(trigger, found.result).inc()
        self.last_round = found
        if found.plan is None:
            self.log.error("plan_infeasible", reason=found.error)
            return
        previous = self.publisher.limits
        self.publisher.limits = limits(found, self.policy)
        if found.served is self.publisher.served and self.ready:
            if self.publisher.limits != previous:
                self.publisher.publish()
            return
        start = self._clock()
        self._serve(found.served)
        self.telemetry.stage_s.labels("publish").observe(self._clock() - start)
        self._log_published(found, trigger)

    def _serve(self, served: Served) -> None:
        self.publisher.served = served
        self.publisher.publish()
        first = self.published_at is None
        self.published_at = self._wall_clock()
        if first:
            self.log.info("control_plane_ready", snapshot=served.sequence)
        self._unsaved.set()

    def _log_published(self, found: Round, trigger: str) -> None:
        self.log.info(
            "plan_published",
            snapshot=found.served.sequence,
            trigger=trigger,
            result=str(found.result),
            gap=found.plan.gap if found.plan else None,
            moved=round(found.moved, 4),
            reason=found.decision.reason if found.decision else found.error,
        )

    # ---- policy -------------------------------------------------------------------------------------

    async def _follow_policy(self, stop: asyncio.Event) -> None:
        async for result in watch(self._config.policy, stop, self.policy):
            if isinstance(result, PolicyError):
                self._refuse(str(result))
            else:
                try:
                    planning_rules = PlanningRules.of(result)
                except ValueError as error:
                    self._refuse(str(error))
                else:
                    self._accept(result, planning_rules)

    def _refuse(self, reason: str) -> None:
        self.policy_error = reason
        self.telemetry.reloads.labels("refused").inc()
        self.log.error("policy_refused", reason=reason)

    def _accept(self, policy: Policy, planning_rules: PlanningRules) -> None:
        if policy.fleet != self.policy.fleet:
            self._refuse(
                f"fleet is {policy.fleet!r}; this control plane serves {self.policy.fleet!r}: restart it"
            )
            return
        self.policy_error = ""
        self.telemetry.reloads.labels("accepted").inc()
        self.log = self.telemetry.log = self.log.bind(revision=policy.revision)
        self.planning_rules = planning_rules
        self.publisher.adopt(policy)
        self.demand.names = rules.envoy_names(policy)
        self.demand.window_s = policy.planning.demand_window_s
        self.xds.admission = rules.envoy_admission(policy)
        self.reports.admission = rules.admission(policy, insecure_dev=self._config.insecure_dev)
        self.membership.configure(rules.static_members(policy), policy.engines)
        self.log.info("policy_accepted", hash=policy.content_hash[:12])
        if self.ready:
            self._serve(enforce(policy, self.publisher.served))
        self._want("policy")

    # ---- state --------------------------------------------------------------------------------------

    async def _save_loop(self) -> None:
        """Save after every change of shares or members, and the demand now and then."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._unsaved.wait(), _SAVE_EVERY_S)
            self._unsaved.clear()
            if self._store is not None and self.ready:
                await asyncio.to_thread(self._save, self._store, self._state())
            await asyncio.sleep(_SAVE_PAUSE_S)

    def _save_now(self) -> None:
        if self._store is not None and self.ready:
            self._save(self._store, self._state())

    def _state(self) -> SavedState:
        return SavedState(
            fleet=self.policy.fleet,
            served=self.publisher.served.to_json(),
            demand_rps=observations.demand_rps(self.policy, self.demand.view(self._clock())),
            members=dump(self.membership.view()),
        )

    def _save(self, store: StateStore, state: SavedState) -> None:
        """A failure is logged and serving goes on."""
        try:
            store.save(state)
            self.telemetry.saved_at.set(self._wall_clock())
        except OSError as error:
            self.log.error("state_save_failed", error=str(error))

    def _restore(self) -> None:
        saved = self._store.load(self.policy.fleet) if self._store else None
        if isinstance(saved, SetAside):
            self.log.error("state_set_aside", reason=saved.reason, file=str(saved.moved_to))
            return
        if saved is None:
            return
        now = self._clock()
        self.membership.restore(
            [replica for replica in load(saved.members) if replica.key.engine in self.policy.engines], now
        )
        pairs = {(f, k): rps for f, row in saved.demand_rps.items() for k, rps in row.items()}
        self.demand.restore(pairs, now)
        served = enforce(self.policy, Served.from_json(saved.served))
        self._serve(served)
        self.log.info("state_restored", snapshot=served.sequence, members=len(saved.members), moved=0)

    # ---- upkeep -------------------------------------------------------------------------------------

    async def _every(self, seconds: float, work: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(seconds)
            work()

    async def _watch_loop_lag(self) -> None:
        while True:
            due = self._clock() + 0.5
            await asyncio.sleep(0.5)
            self.telemetry.loop_lag_s.observe(max(0.0, self._clock() - due))
