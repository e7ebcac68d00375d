"""Penalties and source health from whole views."""

from __future__ import annotations

import pytest

from signals.demand import DemandView, EngineTraffic
from signals.health import SignalWatch, all_silent, signal_states, silent_sources, skewed
from signals.membership import Membership
from signals.outliers import Cause, Hold
from signals.protection import Protection, loads, residual_of
from signals.readings import Signal, SignalState, estimate
from signals.replicas import Announcement, Presence, ReplicaKey, ReplicaState, Report

MODELS = {"us": "llama", "eu": "llama", "ap": "llama"}


def predict(engine: str, load_rps: float) -> tuple[float, float]:
    """TTFT 100 ms and TBOT 10 ms alone, growing with the load."""
    return 100.0 * (1 + load_rps), 10.0 * (1 + load_rps)


def values(slow: float = 1.0, load_rps: float = 2.0, **more: float) -> dict[Signal, float]:
    ttft, tbot = predict("", load_rps)
    told = {
        "requests_per_s": load_rps, "output_tokens_per_s": 100.0, "running": 3.0,
        "ttft_mean_ms": ttft * slow, "ttft_count": 20.0, "tbot_mean_ms": tbot * slow, "tbot_count": 200.0,
    }  # fmt: skip
    return {Signal(name): value for name, value in (told | more).items()}


class Fleet:
    """Three engines of three replicas each, that report every second."""

    def __init__(self) -> None:
        self.members, self.protection = Membership(), Protection()
        self.now, self.sequence = 0.0, 1
        self.streams = {}
        for engine in MODELS:
            for number in (1, 2, 3):
                key = ReplicaKey(engine, "c", f"r{number}")
                where = Announcement(key, 1, f"10.0.0.{len(self.streams) + 1}", 8000)
                self.streams[key] = self.members.join(where, Report(1, 5.0, ReplicaState.READY), 0.0)

    def run(self, seconds: int, tell, traffic: DemandView | None = None):
        """`tell(key)` gives the values a replica reports, or None to be silent."""
        for _ in range(seconds):
            self.now += 1.0
            self.sequence += 1
            for key, stream in self.streams.items():
                told = tell(key)
                if told is not None:
                    self.members.apply(
                        key, stream, Report(self.sequence, 5.0, ReplicaState.READY, values=told), self.now
                    )
            self.members.tick(self.now)
            view = traffic or DemandView({}, {}, {}, {})
            verdict = self.protection.judge(self.members.view(), view, MODELS, predict, self.now)
            self.members.penalise(verdict.weights, verdict.suspicions)
        return verdict


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


SLOW = ReplicaKey("us", "c", "r1")


def test_a_slow_replica_costs_its_own_weight_and_not_its_engine(fleet):
    verdict = fleet.run(30, lambda key: values(slow=3.0 if key == SLOW else 1.0))
    assert list(verdict.weights) == [SLOW]
    assert fleet.members.replica(SLOW).penalty < 1.0
    assert verdict.replicas[SLOW].cause is Cause.SLOW
    assert {verdict.capacity(engine) for engine in MODELS} == {1.0}


def test_a_slow_engine_costs_capacity_and_not_its_replicas(fleet):
    verdict = fleet.run(30, lambda key: values(slow=3.0 if key.engine == "us" else 1.0))
    assert verdict.capacity("us") < 1.0
    assert verdict.capacity("eu") == 1.0
    assert verdict.weights == {}
    assert "3.00 times the prediction" in verdict.engines["us"].explanation


def test_a_loaded_replica_that_is_as_slow_as_predicted_is_no_outlier(fleet):
    verdict = fleet.run(60, lambda key: values(load_rps=8.0 if key == SLOW else 1.0))
    assert verdict.weights == {}
    assert verdict.replicas[SLOW].residual == pytest.approx(1.0)


def test_too_few_observations_and_missing_signals_are_no_evidence(fleet):
    rare = values(slow=9.0, ttft_count=2.0, tbot_count=3.0)
    fleet.run(1, lambda key: rare if key == SLOW else {Signal.RUNNING: 1.0})
    for key in (SLOW, ReplicaKey("eu", "c", "r1")):
        assert residual_of(fleet.members.replica(key), predict, fleet.now) is None


def test_a_hung_replica_is_quarantined(fleet):
    traffic = EngineTraffic(6.0, 100.0, 0.0, active=40.0, rtt_ms=None)
    view = DemandView({}, {}, {("fe-1", "us"): traffic}, {"fe-1": 0.0})
    dead = values(running=0.0, output_tokens_per_s=0.0, requests_per_s=0.0, ttft_count=0.0, tbot_count=0.0)
    verdict = fleet.run(15, lambda key: dead if key == SLOW else values(), view)
    assert list(verdict.suspicions) == [SLOW]
    assert fleet.members.view().ready_count("us") == 2
    assert verdict.mismatch["us"] == pytest.approx(4 / 6)


def test_loads_add_up_over_frontends():
    one = EngineTraffic(2.0, 0.0, 0.0, active=3.0, rtt_ms=None)
    two = EngineTraffic(1.0, 0.0, 0.0, active=None, rtt_ms=None)
    found = loads(DemandView({}, {}, {("a", "us"): one, ("b", "us"): two, ("b", "eu"): two}, {}))
    assert (found["us"].sent_rps, found["us"].active) == (3.0, 3.0)
    assert found["eu"].active is None


def test_holds_by_hand_and_a_restart(fleet):
    fleet.run(1, lambda key: values())
    fleet.protection.hold_engine("us", "llama", Hold(0.5, "driver update", until=100.0), fleet.now)
    fleet.protection.hold_replica(fleet.members.replica(SLOW), Hold(0.2, "noisy neighbour", 100.0), fleet.now)
    verdict = fleet.run(1, lambda key: values())
    assert verdict.capacity("us") == 0.5
    assert verdict.weights == {SLOW: 0.2}
    again = Protection()
    again.restore(fleet.protection.save(fleet.now), fleet.now)
    fleet.protection = again
    assert fleet.run(1, lambda key: values()).capacity("us") == 0.5
    again.release_engine("us")
    again.release_replica(fleet.members.replica(SLOW))
    verdict = fleet.run(1, lambda key: values())
    assert (verdict.capacity("us"), verdict.weights) == (1.0, {})


def test_who_is_silent_and_since_when(fleet):
    fleet.run(3, lambda key: values())
    fleet.run(10, lambda key: None if key == SLOW else values())
    sources = silent_sources(fleet.members.view(), fleet.now)
    assert [source.replica.key for source in sources] == [SLOW]
    assert sources[0].silent_s == pytest.approx(4.0)
    assert not all_silent(fleet.members.view())
    fleet.run(10, lambda key: None)
    assert all_silent(fleet.members.view())
    assert fleet.members.view().ready_count("us") == 3, "held"


def test_an_engine_that_stops_telling_a_signal_is_noticed_once(fleet):
    watch = SignalWatch()
    fleet.run(1, lambda key: values())
    assert watch.update(fleet.members.view(), fleet.now) == []
    less = {signal: value for signal, value in values().items() if signal != Signal.RUNNING}
    fleet.run(8, lambda key: less if key.engine == "eu" else values())
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
    fleet.run(1, lambda key: values(running=9.0))
    reading = fleet.members.replica(SLOW).readings[Signal.RUNNING]
    assert estimate(reading, 1.0, fleet.now + 4.0) == 9.0
    assert estimate(reading, 1.0, fleet.now + 5.0 + 30.0) == pytest.approx(5.0)
    assert estimate(None, 1.0, 0.0) == 1.0


def test_a_wrong_clock_is_visible_and_changes_nothing(fleet):
    key, stream = SLOW, fleet.streams[SLOW]
    report = Report(99, 5.0, ReplicaState.READY, clock_skew_s=-3600.0)
    assert fleet.members.apply(key, stream, report, 1.0) == "accepted"
    assert [replica.key for replica in skewed(fleet.members.view())] == [SLOW]
    assert fleet.members.replica(SLOW).presence is Presence.REPORTING
