"""Rules of membership on the pure core: time and events are given."""

from __future__ import annotations

import json

import pytest

from signals.identity import Refused
from signals.membership import Membership
from signals.readings import Signal, SignalState
from signals.replicas import (
    Announcement,
    Presence,
    ReplicaKey,
    ReplicaState,
    Report,
    StaticMember,
    dump,
    load,
)

READY, DRAINING, DOWN = ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.DOWN


def announce(
    replica_id: str, *, engine="h100", cluster="c1", incarnation=1, address="10.0.0.1", port=None
) -> Announcement:
    port = port or 8000 + int(replica_id[1:])
    return Announcement(ReplicaKey(engine, cluster, replica_id), incarnation, address, port)


def report(sequence=1, state=READY, **values) -> Report:
    told = {Signal(name): value for name, value in values.items()}
    return Report(sequence=sequence, valid_for_s=5.0, state=state, values=told)


class Told:
    """A membership and what it told."""

    def __init__(self, **options) -> None:
        self.changes = 0
        self.events: list[tuple[str, str]] = []
        self.core = Membership(on_change=self._change, on_event=self._event, **options)

    def _change(self) -> None:
        self.changes += 1

    def _event(self, event) -> None:
        self.events.append((event.kind, event.replica.key.replica_id))

    def ids(self, engine="h100") -> set[str]:
        return {replica.key.replica_id for replica in self.core.view().engines.get(engine, ())}

    def replica(self, replica_id: str, engine="h100", cluster="c1"):
        return self.core.replica(ReplicaKey(engine, cluster, replica_id))


@pytest.fixture
def told() -> Told:
    return Told()


def joined(told: Told, replica_id: str, now=0.0, **how) -> tuple[ReplicaKey, int]:
    announcement = announce(replica_id, **how)
    return announcement.key, told.core.join(announcement, report(), now)


def test_measured_values_do_not_change_the_version(told):
    key, stream = joined(told, "r1")
    version = told.core.view().version
    for sequence in range(2, 20):
        assert told.core.apply(key, stream, report(sequence, running=sequence), 0.0) == "accepted"
    assert told.core.view().version == version
    assert told.replica("r1").value(Signal.RUNNING, 1.0) == 19


def test_the_view_is_frozen_and_the_same_object_while_nothing_was_reported(told):
    key, stream = joined(told, "r1")
    view = told.core.view()
    assert told.core.view() is view
    told.core.apply(key, stream, report(2, state=DRAINING), 0.0)
    assert view.engines["h100"][0].state is READY
    assert told.core.view().engines["h100"][0].state is DRAINING


@pytest.mark.parametrize("state", [DRAINING, DOWN])
def test_a_leaving_replica_takes_no_new_requests_at_once_and_is_gone_with_its_stream(told, state):
    key, stream = joined(told, "r1")
    changes = told.changes
    told.core.apply(key, stream, report(2, state=state), 0.0)
    assert told.changes == changes + 1
    assert told.core.view().ready_count("h100") == 0
    assert not told.core.leave(key, stream, 1.0)
    assert told.ids() == set()


def test_a_replayed_or_older_sample_is_ignored(told):
    key, stream = joined(told, "r1")
    told.core.apply(key, stream, report(5), 0.0)
    assert told.core.apply(key, stream, report(5, state=DOWN), 0.0) == "replayed"
    assert told.core.apply(key, stream, report(4, state=DOWN), 0.0) == "replayed"
    assert told.replica("r1").ready


def test_a_newer_stream_supersedes_the_old_one(told):
    key, old = joined(told, "r1")
    new = told.core.join(announce("r1"), report(2), 1.0)
    assert told.core.apply(key, old, report(9, state=DOWN), 1.0) == "stale"
    assert not told.core.leave(key, old, 1.0)
    assert told.core.apply(key, new, report(3), 1.0) == "accepted"
    assert told.replica("r1").presence is Presence.REPORTING


def test_rejoining_with_a_new_address_replaces_the_old_incarnation(told):
    joined(told, "r1")
    told.core.join(announce("r1", incarnation=2, address="10.0.0.9"), report(), 1.0)
    assert told.replica("r1").address == "10.0.0.9"
    assert told.ids() == {"r1"}
    assert told.events[-2:] == [("rejoined", "r1"), ("ready", "r1")]
    with pytest.raises(Refused, match="older"):
        told.core.join(announce("r1", incarnation=1), report(99), 2.0)


def test_stale_samples_make_a_replica_silent_but_not_gone(told):
    joined(told, "r1")
    changes = told.changes
    told.core.tick(5.1)
    assert told.replica("r1").silent_since == 5.1
    assert told.replica("r1").ready
    assert told.changes == changes
    assert told.replica("r1").age_s(6.0) == 6.0


def test_all_silent_for_ever_holds_all(told):
    for replica_id in ("r1", "r2", "r3"):
        joined(told, replica_id)
    told.core.tick(1e6)
    assert told.core.view().ready_count("h100") == 3


def test_a_replica_silent_for_long_leaves_while_others_report(told):
    joined(told, "r1")
    key, stream = joined(told, "r2")
    told.core.tick(6.0)
    told.core.apply(key, stream, report(2), 1900.0)
    told.core.tick(1900.0)
    assert told.ids() == {"r2"}


def test_a_lost_replica_leaves_when_a_connection_is_refused_where_one_had_succeeded(told):
    key, stream = joined(told, "r1")
    told.core.refused(key)
    assert told.ids() == {"r1"}, "its stream is open"
    assert told.core.leave(key, stream, 1.0)
    told.core.refused(key)
    assert told.ids() == {"r1"}, "no connection ever succeeded: a firewall may be what refuses"
    told.core.connected(key)
    told.core.refused(key)
    assert told.ids() == set()


def test_a_lost_replica_leaves_on_connect_failures_while_half_of_its_engine_reports(told):
    key, stream = joined(told, "r1")
    joined(told, "r2")
    told.core.evidence("h100", connect_failures=10, sent=100)
    told.core.leave(key, stream, 1.0)
    told.core.evidence("h100", connect_failures=12, sent=200)
    assert told.ids() == {"r1", "r2"}
    told.core.evidence("h100", connect_failures=13, sent=300)
    assert told.ids() == {"r2"}


def test_reports_of_a_whole_engine_stop_while_traffic_flows_and_all_are_held(told):
    for replica_id in ("r1", "r2"):
        told.core.leave(*joined(told, replica_id), 1.0)
    for look in range(1, 200):
        told.core.tick(look * 1.0)
        for _ in range(3):  # several Envoys flush within moments
            told.core.evidence("h100", connect_failures=look, sent=100 * look)
    assert told.ids() == {"r1", "r2"}


def test_an_engine_that_is_lost_and_unreachable_is_emptied(told):
    for replica_id in ("r1", "r2"):
        told.core.leave(*joined(told, replica_id), 1.0)
    told.core.evidence("h100", connect_failures=5, sent=100)
    told.core.evidence("h100", connect_failures=9, sent=100)
    assert told.ids() == {"r1", "r2"}, "the looks are too close to tell"
    told.core.tick(6.0)
    told.core.evidence("h100", connect_failures=9, sent=100)
    assert told.ids() == set()


def test_an_address_that_two_engines_claim_stays_with_the_first_until_it_is_gone(told):
    key, stream = joined(told, "r1")
    told.core.join(announce("r1", engine="a100", port=8001), report(), 1.0)
    newer = told.replica("r1", engine="a100")
    assert newer.quarantined
    assert ("conflict", "r1") in told.events
    assert not newer.ready
    assert told.replica("r1").ready
    told.core.apply(key, stream, report(2, state=DRAINING), 2.0)
    told.core.leave(key, stream, 2.0)
    assert told.replica("r1", engine="a100").ready


def test_a_quarantined_replica_stays_out_while_the_holder_is_silent(told):
    told.core.leave(*joined(told, "r1"), 1.0)
    told.core.join(announce("r1", engine="a100", port=8001), report(), 1.0)
    assert not told.replica("r1", engine="a100").ready


def test_a_replica_with_a_new_name_takes_over_the_address_of_a_lost_one(told):
    told.core.leave(*joined(told, "r1"), 1.0)
    joined(told, "r2", port=8001)
    assert told.ids() == {"r2"}
    assert told.replica("r2").ready


def test_one_engine_name_in_two_clusters_needs_the_policys_consent(told):
    joined(told, "r1")
    with pytest.raises(Refused, match="cluster 'c1'"):
        told.core.join(announce("r1", cluster="c2", port=9000), report(), 0.0)
    told.core.join(announce("r1", cluster="c2", port=9000), report(), 0.0, clusters=frozenset({"c1", "c2"}))
    assert len(told.core.view().engines["h100"]) == 2


def test_replicas_of_an_engine_are_bounded(told):
    told.core.join(announce("r1"), report(), 0.0, max_replicas=1)
    with pytest.raises(Refused, match="limit"):
        told.core.join(announce("r2"), report(), 0.0, max_replicas=1)
    told.core.join(announce("r1"), report(2), 0.0, max_replicas=1)


def test_static_members_and_gateways_follow_the_policy(told):
    members = [StaticMember("pool", "10.0.0.7", 8000), StaticMember("epp", "epp.example.net", 8080, count=12)]
    told.core.configure(members, ["pool", "epp"])
    assert told.core.view().ready_count("epp") == 12
    told.core.tick(1e6)
    told.core.evidence("pool", 1000, 0)
    assert told.core.view().ready_count("pool") == 1
    version = told.core.view().version
    told.core.configure(members, ["pool", "epp"])
    assert told.core.view().version == version
    told.core.configure(members[1:], ["pool", "epp"])
    assert told.core.view().ready_count("pool") == 0


def test_an_engine_that_leaves_the_policy_is_forgotten(told):
    key, stream = joined(told, "r1")
    told.core.configure([], [])
    assert told.core.view().engines == {}
    assert told.core.apply(key, stream, report(2), 1.0) == "stale"


def test_after_a_restart_members_are_the_saved_and_the_reported(told):
    for replica_id in ("r1", "r2", "r3"):
        joined(told, replica_id)
    told.core.join(announce("r9", engine="gone"), report(state=DOWN), 0.0)
    saved = json.loads(json.dumps(dump(told.core.view())))
    again = Told()
    again.core.restore(load(saved), 0.0)
    assert again.ids() == {"r1", "r2", "r3"}
    assert again.core.view().ready_count("h100") == 3
    joined(again, "r2", now=1.0)
    again.core.join(announce("r4"), report(), 1.0)
    assert again.ids() == {"r1", "r2", "r3", "r4"}
    assert again.replica("r2").presence is Presence.REPORTING


def test_restored_members_that_stay_away_leave_once_half_of_the_engine_is_back(told):
    for replica_id in ("r1", "r2"):
        joined(told, replica_id)
    saved = load(dump(told.core.view()))
    nobody_back, one_back = Told(), Told()
    for again in (nobody_back, one_back):
        again.core.restore(saved, 0.0)
    key, stream = joined(one_back, "r1", now=1.0)
    one_back.core.apply(key, stream, report(2), 61.0)
    for again in (nobody_back, one_back):
        again.core.tick(61.0)
    assert nobody_back.ids() == {"r1", "r2"}
    assert one_back.ids() == {"r1"}


@pytest.mark.parametrize("entry", [{}, {"engine": "e"}, 7])
def test_a_foreign_saved_entry_is_named(entry):
    with pytest.raises(ValueError, match="saved replica 0"):
        load([entry])


def test_a_signal_not_told_any_more_is_stale_after_its_validity_and_zero_is_a_value(told):
    key, stream = joined(told, "r1")
    told.core.apply(key, stream, report(2, running=0.0, waiting=2.0), 0.0)
    told.core.apply(key, stream, report(3, running=0.0), 4.0)
    replica = told.replica("r1")
    states = {signal: replica.readings[signal].state(6.0) for signal in (Signal.RUNNING, Signal.WAITING)}
    assert states == {Signal.RUNNING: SignalState.ZERO, Signal.WAITING: SignalState.STALE}
    assert replica.value(Signal.WAITING, 6.0) is None
    assert replica.value(Signal.RUNNING, 6.0) == 0.0


def test_validity_is_clamped(told):
    key, stream = joined(told, "r1")
    told.core.apply(key, stream, Report(2, 1e9, READY), 0.0)
    told.core.tick(59.0)
    assert told.replica("r1").presence is Presence.REPORTING
    told.core.tick(61.0)
    assert told.replica("r1").presence is Presence.SILENT


def test_an_engine_scales_to_zero_and_back(told):
    key, stream = joined(told, "r1")
    told.core.apply(key, stream, report(2, state=DOWN), 1.0)
    told.core.leave(key, stream, 1.0)
    assert told.core.view().ready_count("h100") == 0
    joined(told, "r1", now=2.0, incarnation=2)
    assert told.core.view().ready_count("h100") == 1


def fleet_of(told: Told, engines: int, replicas: int) -> list[tuple[ReplicaKey, int]]:
    return [
        joined(told, f"r{number}", engine=f"e{engine}", address=f"10.0.{engine}.1")
        for engine in range(engines)
        for number in range(replicas)
    ]


def test_a_wave_of_draining_over_most_of_the_fleet_is_held(told):
    streams = fleet_of(told, engines=3, replicas=4)
    for key, stream in streams:
        told.core.apply(key, stream, report(2, state=DRAINING), 1.0)
    view = told.core.view()
    assert sum(view.ready_count(engine) for engine in view.engines) == 6
    held = [replica for found in view.engines.values() for replica in found if replica.held is DRAINING]
    assert len(held) == 6
    assert told.events.count(("held", held[0].key.replica_id)) >= 1
    for key, stream in streams:
        told.core.apply(key, stream, report(3, state=DRAINING), 30.0)
    assert sum(told.core.view().ready_count(engine) for engine in view.engines) == 6, (
        "repeating does not help"
    )
    told.core.accept_wave()
    assert sum(told.core.view().ready_count(engine) for engine in view.engines) == 0


def test_a_held_replica_that_really_fails_is_let_go(told):
    for key, stream in fleet_of(told, engines=3, replicas=4):
        told.core.apply(key, stream, report(2, state=DRAINING), 1.0)
    told.core.evidence("e2", connect_failures=3, sent=100)
    assert told.core.view().ready_count("e2") == 0


def test_a_rollout_engine_by_engine_is_no_wave(told):
    for number, (key, stream) in enumerate(fleet_of(told, engines=3, replicas=4)):
        told.core.apply(key, stream, report(2, state=DRAINING), number * 11.0)
    assert all(replica.held is None for found in told.core.view().engines.values() for replica in found)


def test_draining_a_whole_engine_is_no_wave(told):
    for key, stream in fleet_of(told, engines=1, replicas=8):
        told.core.apply(key, stream, report(2, state=DRAINING), 1.0)
    assert told.core.view().ready_count("e0") == 0


def test_penalties_and_suspicions_hold_until_the_next_ones(told):
    key, _ = joined(told, "r1")
    joined(told, "r2")
    told.core.penalise({key: 0.3}, {})
    assert told.replica("r1").penalty == 0.3
    told.core.penalise({}, {key: "takes requests and gives no tokens"})
    assert told.replica("r1").penalty == 1.0
    assert not told.replica("r1").ready
    changes = told.changes
    told.core.penalise({}, {key: "takes requests and gives no tokens"})
    assert told.changes == changes
    told.core.penalise({}, {})
    assert told.replica("r1").ready


def test_a_replica_that_the_policy_no_longer_admits_is_removed_at_once(told):
    key, stream = joined(told, "r1")
    told.core.expel(key, stream, "address outside the region")
    assert told.ids() == set()


def test_an_engine_is_renamed_and_its_replicas_report_under_the_new_name(told):
    joined(told, "r1")
    told.core.configure([], ["h200"])
    told.core.join(announce("r1", engine="h200", port=8001), report(), 1.0)
    assert told.replica("r1", engine="h200").ready


def test_a_thousand_replicas_come_and_go(told):
    streams = [
        joined(told, f"r{number}", engine=f"e{number % 20}", address="10.1.0.1", port=1000 + number)
        for number in range(1000)
    ]
    view = told.core.view()
    assert sum(view.ready_count(engine) for engine in view.engines) == 1000
    for key, stream in streams:
        told.core.leave(key, stream, 1.0)
    assert sum(view.ready_count(engine) for engine in told.core.view().engines) == 1000
    for key, _ in streams:
        told.core.connected(key)
        told.core.refused(key)
    assert told.core.view().engines == {}
