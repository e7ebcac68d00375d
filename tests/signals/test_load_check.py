"""Sent against reported: hung replicas are found, and the doubtful cases are left alone."""

from __future__ import annotations

import pytest

from signals.load_check import EngineLoad, LoadCheck
from signals.membership import Membership
from signals.readings import Signal
from signals.replicas import Announcement, ReplicaKey, ReplicaState, Report

HEALTHY = {
    Signal.RUNNING: 8.0,
    Signal.WAITING: 0.0,
    Signal.OUTPUT_TOKENS_PER_S: 500.0,
    Signal.REQUESTS_PER_S: 2.0,
}
DEAF = {Signal.RUNNING: 0.0, Signal.WAITING: 0.0, Signal.OUTPUT_TOKENS_PER_S: 0.0, Signal.REQUESTS_PER_S: 0.0}
STUCK = DEAF | {Signal.RUNNING: 8.0, Signal.WAITING: 3.0}
BUSY = {"h100": EngineLoad(sent_rps=6.0, active=40.0)}


class Engine:
    """Three replicas that report every second."""

    def __init__(self) -> None:
        self.members, self.check = Membership(), LoadCheck()
        self.now, self.sequence = 0.0, 1
        self.keys = [ReplicaKey("h100", "c1", f"r{number}") for number in (1, 2, 3)]
        self.streams = [
            self.members.join(
                Announcement(key, 1, "10.0.0.1", 8000 + n), Report(1, 5.0, ReplicaState.READY), 0.0
            )
            for n, key in enumerate(self.keys)
        ]

    def run(self, seconds: int, *told, loads=BUSY):
        for _ in range(seconds):
            self.now += 1.0
            self.sequence += 1
            for key, stream, values in zip(self.keys, self.streams, told, strict=True):
                if values is not None:
                    self.members.apply(
                        key, stream, Report(self.sequence, 5.0, ReplicaState.READY, values=values), self.now
                    )
            verdict = self.check.check(self.members.view(), loads, self.now)
            self.members.penalise(verdict.penalties, verdict.suspicions)
        return verdict

    def suspects(self, verdict) -> set[str]:
        return {key.replica_id for key in verdict.suspicions}


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_healthy_replicas_are_left_alone(engine):
    verdict = engine.run(100, HEALTHY, HEALTHY, HEALTHY)
    assert not verdict.suspicions
    assert verdict.mismatch == {"h100": pytest.approx(1.0)}


def test_a_replica_that_reports_nothing_while_envoys_send_is_quarantined(engine):
    engine.run(9, DEAF, HEALTHY, HEALTHY)
    assert not engine.check.check(engine.members.view(), BUSY, engine.now).suspicions
    verdict = engine.run(5, DEAF, HEALTHY, HEALTHY)
    assert engine.suspects(verdict) == {"r1"}
    assert not engine.members.replica(engine.keys[0]).ready
    assert verdict.mismatch["h100"] < 0.8


def test_a_replica_that_has_requests_and_gives_no_tokens_is_quarantined(engine):
    assert not engine.run(29, STUCK, HEALTHY, HEALTHY).suspicions, "a long prefill looks like that too"
    assert engine.suspects(engine.run(5, STUCK, HEALTHY, HEALTHY)) == {"r1"}


def test_an_idle_replica_is_not_deaf(engine):
    idle = {"h100": EngineLoad(sent_rps=0.1, active=0.0)}
    assert not engine.run(100, DEAF, DEAF, DEAF, loads=idle).suspicions


def test_a_replica_that_gets_nothing_by_hashing_is_not_deaf(engine):
    known = {"h100": EngineLoad(sent_rps=6.0, active=16.0)}
    assert not engine.run(100, DEAF, HEALTHY, HEALTHY, loads=known).suspicions


def test_silence_and_unknown_values_are_no_evidence(engine):
    only_running = {Signal.RUNNING: 5.0}
    assert not engine.run(100, None, only_running, HEALTHY).suspicions


def test_it_is_released_as_soon_as_tokens_flow(engine):
    engine.run(40, STUCK, HEALTHY, HEALTHY)
    assert not engine.run(1, HEALTHY, HEALTHY, HEALTHY).suspicions
    assert engine.members.replica(engine.keys[0]).ready


def test_it_is_tried_again_with_a_little_traffic_and_less_often_each_time(engine):
    engine.run(14, DEAF, HEALTHY, HEALTHY)
    trial = engine.run(32, DEAF, HEALTHY, HEALTHY)
    assert trial.penalties == {engine.keys[0]: 0.05}
    assert engine.members.replica(engine.keys[0]).penalty == 0.05
    healed = engine.run(1, HEALTHY, HEALTHY, HEALTHY)
    assert (healed.penalties, healed.suspicions) == ({}, {})


def test_when_most_look_hung_most_stay(engine):
    assert len(engine.run(60, STUCK, STUCK, STUCK).suspicions) <= 1


def test_a_restarted_replica_starts_clean(engine):
    engine.run(40, STUCK, HEALTHY, HEALTHY)
    key = engine.keys[0]
    engine.streams[0] = engine.members.join(
        Announcement(key, 2, "10.0.0.1", 8000), Report(1, 5.0, ReplicaState.READY), engine.now
    )
    assert not engine.run(1, STUCK, HEALTHY, HEALTHY).suspicions
