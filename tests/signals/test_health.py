"""Health of the sources: who is silent, which signal is not told any more, whose clock is off."""

from __future__ import annotations

import pytest

from signals.health import SignalWatch, signal_states, silent_sources, skewed
from signals.membership import Membership
from signals.readings import Signal, SignalState, estimate
from signals.replicas import Announcement, Presence, ReplicaKey, ReplicaState, Report

TOLD = {Signal.RUNNING: 3.0, Signal.OUTPUT_TOKENS_PER_S: 100.0}
ONE = ReplicaKey("us", "c", "r1")


class Fleet:
    """Two engines of three replicas each, that report every second."""

    def __init__(self) -> None:
        self.members = Membership()
        self.now, self.sequence = 0.0, 1
        self.streams = {}
        for engine in ("us", "eu"):
            for number in (1, 2, 3):
                key = ReplicaKey(engine, "c", f"r{number}")
                where = Announcement(key, 1, f"10.0.0.{len(self.streams) + 1}", 8000)
                self.streams[key] = self.members.join(where, Report(1, 5.0, ReplicaState.READY), 0.0)

    def run(self, seconds: int, tell) -> None:
        """`tell(key)` gives the values a replica reports, or None to be silent."""
        for _ in range(seconds):
            self.now += 1.0
            self.sequence += 1
            for key, stream in self.streams.items():
                if (told := tell(key)) is not None:
                    report = Report(self.sequence, 5.0, ReplicaState.READY, values=told)
                    self.members.apply(key, stream, report, self.now)
            self.members.tick(self.now)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def test_who_is_silent_and_since_when(fleet):
    fleet.run(3, lambda key: TOLD)
    fleet.run(10, lambda key: None if key == ONE else TOLD)
    sources = silent_sources(fleet.members.view(), fleet.now)
    assert [source.replica.key for source in sources] == [ONE]
    assert sources[0].silent_s == pytest.approx(4.0)
    fleet.run(10, lambda key: None)
    assert len(silent_sources(fleet.members.view(), fleet.now)) == 6
    assert fleet.members.view().ready_count("us") == 3, "held"


def test_an_engine_that_stops_telling_a_signal_is_noticed_once(fleet):
    watch = SignalWatch()
    fleet.run(1, lambda key: TOLD)
    assert watch.update(fleet.members.view(), fleet.now) == []
    less = {Signal.OUTPUT_TOKENS_PER_S: 100.0}
    fleet.run(8, lambda key: less if key.engine == "eu" else TOLD)
    changes = watch.update(fleet.members.view(), fleet.now)
    assert [(change.engine, change.signal, change.after) for change in changes] == [
        ("eu", Signal.RUNNING, SignalState.STALE)
    ]
    assert watch.update(fleet.members.view(), fleet.now) == []
    states = {
        (engine, signal): counts for engine, signal, counts in signal_states(fleet.members.view(), fleet.now)
    }
    assert states["eu", Signal.RUNNING] == {SignalState.STALE: 3}
    assert states["us", Signal.RUNNING] == {SignalState.VALID: 3}
    assert states["us", Signal.KV_USAGE_RATIO] == {SignalState.MISSING: 3}


def test_a_stale_value_decays_to_what_the_profile_says(fleet):
    fleet.run(1, lambda key: {Signal.RUNNING: 9.0})
    reading = fleet.members.replica(ONE).readings[Signal.RUNNING]
    assert estimate(reading, 1.0, fleet.now + 4.0) == 9.0
    assert estimate(reading, 1.0, fleet.now + 5.0 + 30.0) == pytest.approx(5.0)
    assert estimate(None, 1.0, 0.0) == 1.0


def test_a_wrong_clock_is_visible_and_changes_nothing(fleet):
    key, stream = ONE, fleet.streams[ONE]
    report = Report(99, 5.0, ReplicaState.READY, clock_skew_s=-3600.0)
    assert fleet.members.apply(key, stream, report, 1.0) == "accepted"
    assert [replica.key for replica in skewed(fleet.members.view())] == [ONE]
    assert fleet.members.replica(ONE).presence is Presence.REPORTING
