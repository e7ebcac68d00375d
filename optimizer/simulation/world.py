"""Engines as fluid queues with a latency curve, and front-ends that route, refuse and retry."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimizer.layout import Round
from optimizer.simulation.scenario import Event, Scenario

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tick:
    """What one tick did. Flows in requests, times in ms."""

    served: Array
    """[R, E] requests answered."""
    ttft: Array
    """[E] engine's TTFT with queueing."""
    tbot: Array
    """[E]"""
    refused: Array
    """[R] by the plan."""
    failed: Array
    """[R] given up after the last attempt."""
    retried: Array
    """[R] further attempts."""
    attempts: Array
    """[R, E]"""
    load: Array
    """[E] work/s offered."""
    capacity: Array
    """[E] true capacity, work/s."""


class World:
    """The state of the engines of one run."""

    def __init__(self, scenario: Scenario, round_: Round) -> None:
        self._scenario, self._round = scenario, round_
        engines = round_.layout.engines
        self._error = np.array([scenario.capacity_error.get(name, 1.0) for name in engines])
        profiles = [scenario.problem.engines[name].profile for name in engines]
        self._replica = np.array([profile.capacity_rps for profile in profiles])
        self._replicas = np.array([scenario.problem.engines[name].ready_replicas for name in engines])
        self._smooth = np.zeros(len(engines))
        self._queue = np.zeros(len(engines))
        self._budget = np.zeros(len(round_.demand))

    def tick(self, time: float, arrivals: Array, shares: Array, fallback: npt.NDArray[np.intp]) -> Tick:
        """Route `arrivals` [R] by `shares` [R, E + 1]; what fails goes to `fallback` [R, E] engines."""
        now = [event for event in self._scenario.events if event.at_s <= time < event.until_s]
        lost, slow, failing = self._faults(now)
        dt = self._scenario.tick_s
        capacity = np.where(lost, 0.0, self._replicas * self._replica * self._error / slow)
        retries = self._scenario.retries
        self._budget = np.minimum(
            self._budget + (np.inf if retries.budget is None else retries.budget) * arrivals,
            10.0 * np.maximum(1.0, arrivals),
        )
        flow = arrivals[:, None] * shares[:, :-1]
        served, attempts = np.zeros_like(flow), np.zeros_like(flow)
        retried, failed = np.zeros(len(arrivals)), np.zeros(len(arrivals))
        full = self._queue > self._scenario.patience_s * capacity  # nobody waits that long
        for attempt in range(retries.max_attempts):
            attempts += flow
            bad = np.where(lost | full, 1.0, failing)
            served += flow * (1.0 - bad)
            missed = flow * bad
            lacking = missed.sum(axis=1)
            last = attempt == retries.max_attempts - 1
            allowed = lacking if retries.budget is None else np.minimum(lacking, self._budget)
            allowed = np.zeros_like(lacking) if last else allowed
            if retries.budget is not None:
                self._budget = self._budget - allowed
            part = np.divide(allowed, lacking, out=np.zeros_like(lacking), where=lacking > 0)
            retried += allowed
            failed += lacking - allowed
            again = np.zeros_like(flow)
            rows = np.repeat(np.arange(len(flow)), flow.shape[1])
            np.add.at(again, (rows, fallback.ravel()), (missed * part[:, None]).ravel())
            flow = again
            if not flow.any():
                break
        wasted = (attempts - served) * retries.failure_work * ~lost
        work = np.einsum("ij,ij->j", served + wasted, self._round.layout.work) / dt
        return self._serve(work, capacity, slow, served, arrivals * shares[:, -1], failed, retried, attempts)

    def _faults(self, now: list[Event]) -> tuple[npt.NDArray[np.bool_], Array, Array]:
        engines = self._round.layout.engines
        lost, slow, failing = (
            np.zeros(len(engines), dtype=bool),
            np.ones(len(engines)),
            np.zeros(len(engines)),
        )
        for event in now:
            for j, name in enumerate(engines):
                if event.engine in (None, name):
                    lost[j] |= event.lost
                    slow[j] *= event.slow
                    failing[j] = max(failing[j], event.failing)
        return lost, slow, failing

    def _serve(
        self,
        work: Array,
        capacity: Array,
        slow: Array,
        served: Array,
        refused: Array,
        failed: Array,
        retried: Array,
        attempts: Array,
    ) -> Tick:
        dt = self._scenario.tick_s
        self._smooth += (1.0 - np.exp(-dt / self._scenario.settling_s)) * (work - self._smooth)
        self._queue = np.where(capacity > 0, np.maximum(0.0, self._queue + (work - capacity) * dt), 0.0)
        # The curve knows loads up to the engine's capacity; beyond it, requests wait in the queue.
        healthy = self._replicas * self._error / slow
        per_replica = np.divide(self._smooth, healthy, out=np.zeros_like(work), where=healthy > 0)
        per_replica = np.minimum(per_replica, self._replica)
        ttft, tbot = np.zeros_like(work), np.zeros_like(work)
        for index, grid in enumerate(self._round.layout.grids):
            mine = self._round.layout.grid_of == index
            ttft[mine], tbot[mine] = grid.curve.latency(per_replica[mine])
        wait = np.divide(self._queue, capacity, out=np.zeros_like(work), where=capacity > 0)
        return Tick(
            served, ttft * slow + 1e3 * wait, tbot * slow, refused, failed, retried, attempts, work, capacity
        )
