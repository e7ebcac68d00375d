"""The loop: what happened is measured, delayed, planned with, and takes effect later."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimizer.correction import Correction, followed
from optimizer.errors import ProblemError
from optimizer.layout import Round, build_rounds
from optimizer.plan import Plan
from optimizer.planner import plan
from optimizer.problem import SHED, Engine, Observed, Problem, Shares
from optimizer.replan import replan
from optimizer.simulation.demand import Measured
from optimizer.simulation.metrics import Metrics, Recorder
from optimizer.simulation.scenario import Scenario
from optimizer.simulation.world import Tick, World
from optimizer.warm import Warm

Array = npt.NDArray[np.float64]

FOLLOW_EVERY_S = 60.0
"""How often plans take up what was learned."""


@dataclass(frozen=True)
class Trace:
    """One run: its metrics and, per planning period, what an operator would have seen."""

    policy: str
    metrics: Metrics
    time_s: Array
    """[P]"""
    fleet_share: Array
    """[P, E + 1] part of the run's mean demand that the shares in force send to each engine; refused last."""
    e2e_ms: Array
    """[P] mean of the period."""
    engines: tuple[str, ...]


def simulate(scenario: Scenario, policy: str) -> Trace:
    """Run one policy. Deterministic: arrivals and noise come from the scenario's seed.

    Raises:
        ProblemError: an unknown policy, or engines and rows that fall apart in several components.
    """
    rounds, orphans = build_rounds(scenario.problem)
    if len(rounds) != 1 or orphans:
        raise ProblemError("problem", "expected one connected fleet in which every row has an engine")
    return _Run(scenario, policy, rounds[0]).trace()


class _Run:
    def __init__(self, scenario: Scenario, policy: str, round_: Round) -> None:
        self._scenario, self._policy, self._round = scenario, policy, round_
        self._rows = list(round_.layout.rows)
        self._warm = Warm()
        self._learned = {name: Correction() for name in round_.layout.engines}
        self._used = dict(self._learned)
        self._world = World(scenario, round_)
        self._arrivals = scenario.arrivals(self._rows)
        mean = scenario.mean_demand(self._rows).mean(axis=0)
        self._typical = mean / max(float(mean.sum()), 1e-12)
        start_rps = scenario.mean_demand(self._rows)[0]
        self._measured = Measured(start_rps, scenario.demand_window_s, scenario.tick_s)
        self._history: deque[tuple[Tick, Array]] = deque(
            maxlen=max(1, self._periods(scenario.report_delay_s)) + 1
        )
        start = scenario.problem.previous_shares
        first = None if start else plan(self._problem(start_rps, None, 0.0), policy, self._warm)
        self._published: Shares = start or (first.shares if first else {})
        self._second: Plan | None = first
        self._in_force = self._matrix(self._published)
        self._changed = 0.0
        self._coming: deque[tuple[float, Array]] = deque()
        self._recorder = Recorder(scenario, round_)

    def _periods(self, seconds: float) -> int:
        return max(0, round(seconds / self._scenario.tick_s))

    def trace(self) -> Trace:
        """Run to the end."""
        s, every = self._scenario, max(1, round(self._scenario.interval_s / self._scenario.tick_s))
        times, shares, latencies = [], [], []
        for t in range(s.ticks):
            now = t * s.tick_s
            while self._coming and self._coming[0][0] <= now:
                self._in_force = self._coming.popleft()[1]
            tick = self._world.tick(now, self._arrivals[t], self._in_force, self._fallback())
            self._observe(tick, self._arrivals[t], now)
            self._recorder.tick(now, tick, self._arrivals[t])
            if t % every == every - 1:
                self._plan(now)
                times.append(now)
                shares.append(self._typical @ self._in_force)
                latencies.append(self._recorder.recent_e2e_ms())
        return Trace(
            self._policy,
            self._recorder.metrics(np.array(times), np.array(shares)),
            np.array(times),
            np.array(shares),
            np.array(latencies),
            self._round.layout.engines,
        )

    def _observe(self, tick: Tick, arrivals: Array, now: float) -> None:
        """Measure this tick; what the planner may use is what has left the delay line."""
        self._history.append((tick, arrivals))
        if len(self._history) == self._history.maxlen:
            rate = self._history[0][1] / self._scenario.tick_s
            self._measured.add(rate)
            if self._scenario.surges:
                work = self._round.layout.work * self._matrix(self._published)[:, :-1]
                self._measured.begin_anew(rate, work, self._round.capacity)
            if self._scenario.correct:
                self._learn(self._history[0][0], now)

    def _learn(self, tick: Tick, now: float) -> None:
        """Take a tick's samples, but none of an engine that is penalised or loaded beyond its profile."""
        for j, name in enumerate(self._round.layout.engines):
            engine = self._scenario.problem.engines[name]
            limit_rps = engine.ready_replicas * engine.profile.capacity_rps
            if 0 < tick.load[j] <= limit_rps and tick.capacity[j] > 0 and not self._penalised(name, now):
                self._learned[name] = self._learned[name].update(
                    engine.profile,
                    load_rps=float(tick.load[j]) / engine.ready_replicas,
                    dt_s=self._scenario.tick_s,
                    tbot_ms=float(tick.tbot[j]),
                    ttft_ms=float(tick.ttft[j]),
                )

        if now % FOLLOW_EVERY_S < self._scenario.tick_s:
            self._used = {name: followed(self._used[name], found) for name, found in self._learned.items()}

    def _penalised(self, name: str, now: float) -> bool:
        at = now - self._scenario.report_delay_s
        return any(
            event.engine in (None, name) and event.at_s <= at < event.until_s and event.penalty < 1.0
            for event in self._scenario.events
        )

    def _plan(self, now: float) -> None:
        measured = self._measured.rps
        problem = self._problem(measured, self._published, now - self._scenario.report_delay_s)
        result = replan(
            problem,
            self._policy,
            self._warm,
            min_gain=self._scenario.min_gain,
            max_step=self._scenario.max_step if self._policy == "global" else None,
            held_s=now - self._changed,
        )
        moved = 0.0
        if result.plan is not None and result.decision.publish:
            new = self._matrix(result.plan.shares)
            moved = float(measured @ np.maximum(0.0, new - self._matrix(self._published)).sum(axis=1))
            self._published, self._second, self._changed = result.plan.shares, result.plan, now
            self._coming.append((now + self._scenario.actuation_delay_s, new))
        self._recorder.planned(result, moved / max(float(measured.sum()), 1e-12))

    def _problem(self, demand: Array, shares: Shares | None, known_at: float) -> Problem:
        """What the planner believes: `demand`, and engines as they were at `known_at`."""
        base = self._scenario.problem
        rates: dict[str, dict[str, float]] = {}
        for (frontend, key), rate in zip(self._rows, demand.tolist(), strict=True):
            rates.setdefault(frontend, {})[key] = rate
        return dataclasses.replace(
            base,
            demand_rps=rates,
            engines=dict(self._believed(known_at)),
            previous_shares=shares,
            observed=self._observed() if shares else None,
            tuning=self._scenario.tuning,
        )

    def _believed(self, at: float) -> Iterator[tuple[str, Engine]]:
        for name, engine in self._scenario.problem.engines.items():
            for event in self._scenario.events:
                if event.engine in (None, name) and event.at_s <= at < event.until_s:
                    if event.lost:
                        engine = dataclasses.replace(engine, ready_replicas=0.0)
                    engine = dataclasses.replace(engine, penalty=engine.penalty * event.penalty)
            if self._scenario.correct:
                profile = self._used[name].apply(engine.profile)
                engine = dataclasses.replace(engine, profile=profile)
            yield name, engine

    def _observed(self) -> dict[str, Observed]:
        tick = self._history[0][0]
        tokens = self._round.layout.tokens
        per_engine = tick.served.sum(axis=0)
        mean = np.divide(
            tokens @ tick.served, per_engine, out=np.zeros_like(per_engine), where=per_engine > 0
        )
        return {
            name: Observed(float(tick.ttft[j] + mean[j] * tick.tbot[j]), float(tick.load[j]))
            for j, name in enumerate(self._round.layout.engines)
            if per_engine[j] > 0
        }

    def _matrix(self, shares: Shares) -> Array:
        index = {name: j for j, name in enumerate((*self._round.layout.engines, SHED))}
        out = np.zeros((len(self._rows), len(index)))
        for i, (frontend, key) in enumerate(self._rows):
            for name, share in shares[frontend][key].items():
                out[i, index[name]] = share
        return out

    def _fallback(self) -> npt.NDArray[np.intp]:
        """[R, E] where a failed attempt goes next: the plan's second best, else the nearest other engine."""
        index = {name: j for j, name in enumerate(self._round.layout.engines)}
        distance = np.where(self._round.layout.mask, self._round.layout.network, np.inf)
        order = np.argsort(distance, axis=1, kind="stable")
        out = np.repeat(order[:, :1], len(index), axis=1)
        if len(index) > 1:
            rows, first = np.arange(len(out)), order[:, 0]
            out[rows, first] = order[:, 1]
        second = self._second.second_best if self._second else {}
        for i, (frontend, key) in enumerate(self._rows):
            for name, other in second.get(frontend, {}).get(key, {}).items():
                out[i, index[name]] = index[other]
        return out
