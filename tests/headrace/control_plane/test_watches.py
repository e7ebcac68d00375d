"""Engines that lose their replicas and front-ends that fall silent are told of, once each."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from headrace.control_plane.demand_watch import DemandWatch
from headrace.control_plane.engine_watch import EngineWatch
from headrace.control_plane.telemetry import Telemetry
from headrace.log import make_logger
from headrace.policy import Policy, load
from signals.demand import DemandPoint, DemandState, DemandView
from signals.replicas import MembershipView, Presence, Replica, ReplicaKey, ReplicaState
from tests.headrace.fleet.small import KEY, POLICY

READY, DRAINING, DOWN = ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.DOWN


class Log:
    """A telemetry whose lines can be read."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.telemetry = Telemetry(make_logger(self.stream))

    @property
    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    @property
    def events(self) -> list[object]:
        return [line["event"] for line in self.lines]


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    (tmp_path / "policy.yaml").write_text(POLICY)
    return load(tmp_path / "policy.yaml")


def members(*west: ReplicaState) -> MembershipView:
    """Two replicas of the east, and these of the west."""
    found = {"west-gpu": west, "east-gpu": (READY, READY)}
    return MembershipView(
        1,
        {
            engine: tuple(
                Replica(ReplicaKey(engine, "", f"r{i}"), "127.0.0.1", 8000 + i, state, Presence.REPORTING)
                for i, state in enumerate(states)
            )
            for engine, states in found.items()
        },
    )


@pytest.mark.parametrize(
    ("left", "told"),
    [
        ((DRAINING, DRAINING), ["engine_emptied", "engine_ready"]),
        ((DRAINING,), ["engine_emptied", "engine_ready"]),
        ((DOWN, DOWN), ["engine_lost", "engine_recovered"]),
        ((), ["engine_lost", "engine_recovered"]),
    ],
)
def test_an_engine_that_was_drained_is_told_apart_from_one_that_was_lost(
    log: Log, policy: Policy, left: tuple[ReplicaState, ...], told: list[str]
):
    watch = EngineWatch(log.telemetry)
    watch.expect(policy, members(READY))
    assert [watch.update(policy, members(*now)) for now in ((READY,), left, left, (READY,))] == [
        *(False, True),
        *(False, True),
    ]
    assert log.events == told


def test_an_engine_that_was_never_there_is_ready_when_it_comes(log: Log, policy: Policy):
    watch = EngineWatch(log.telemetry)
    watch.expect(policy, members())
    watch.update(policy, members(READY))
    assert log.events == ["engine_ready"]


def view(**ages: tuple[float, DemandState]) -> DemandView:
    demand = {(f, KEY): DemandPoint(10.0, 100.0, age, state) for f, (age, state) in ages.items()}
    return DemandView(demand, {}, {}, {})


def test_a_front_end_whose_counters_stop_is_told_once_and_again_when_they_come(log: Log, policy: Policy):
    watch = DemandWatch(log.telemetry)
    live, held = (1.0, DemandState.LIVE), (16.0, DemandState.HELD)
    for west in (live, held, (17.0, DemandState.HELD), (200.0, DemandState.DECAYING), live):
        watch.update(policy, view(west=west, east=live))
    assert log.events == ["demand_held", "demand_resumed"]
    assert {line["frontend"] for line in log.lines} == {"west"}


def test_demand_that_a_restart_has_just_restored_is_no_news(log: Log, policy: Policy):
    DemandWatch(log.telemetry).update(policy, view(west=(3.0, DemandState.HELD)))
    assert log.events == []


def test_saves_are_told_once_a_minute_and_after_a_failure(log: Log):
    for at in (0.0, 10.0, 50.0, 61.0):
        log.telemetry.state_saved(at)
    log.telemetry.state_not_saved(OSError("disk full"))
    log.telemetry.state_saved(65.0)
    assert log.events == ["state_saved", "state_saved", "state_save_failed", "state_saved"]
