"""New replicas beside others count little by little; a fleet that starts, or was there before, does not."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from headrace.control_plane.ramp import Ramps
from headrace.policy.schema import Ramp
from signals.replicas import MembershipView, Presence, Replica, ReplicaKey, ReplicaState

RAMP = Ramp(duration_s=30, start=0.2)


def replica(name: str, **changes: object) -> Replica:
    found = Replica(
        ReplicaKey("gpu", "", name), "10.0.0.1", 8000, ReplicaState.READY, Presence.REPORTING, incarnation=1
    )
    return replace(found, **changes)  # type: ignore[arg-type]  # fields of a replica


class Fleet:
    def __init__(self, ramp: Ramp = RAMP) -> None:
        self.ramps, self.ramp = Ramps(), ramp

    def at(self, now: float, *replicas: Replica, short: Collection[str] = ()) -> dict[str, float]:
        view = MembershipView(1, {"gpu": replicas})
        parts = self.ramps.update(view, lambda engine: self.ramp, short, now)
        return {key.replica_id: part for key, part in parts.items()}


A, B, C = replica("a"), replica("b"), replica("c")


def test_a_new_replica_beside_an_old_one_counts_little_by_little():
    fleet = Fleet()
    fleet.at(0, A)
    seen = [fleet.at(100 + second, A, B).get("b", 1.0) for second in range(31)]
    assert seen[0] == 0.2
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert len(set(seen)) <= 9


def test_a_fleet_that_starts_counts_in_full():
    fleet = Fleet()
    assert fleet.at(0, A) == fleet.at(3, A, B) == fleet.at(20, A, B, C) == {}


def test_an_engine_that_comes_back_from_nothing_counts_in_full():
    fleet = Fleet()
    fleet.at(0, A, B)
    fleet.at(100)
    assert fleet.at(200, A) == fleet.at(201, A, B) == {}


def test_members_of_before_a_restart_count_in_full_and_are_there_to_lean_on():
    fleet = Fleet()
    restored = replica("a", presence=Presence.RESTORED)
    assert fleet.at(0, restored, replica("b", presence=Presence.RESTORED)) == {}
    assert fleet.at(1, A, B) == {}
    assert fleet.at(2, A, B, C) == {"c": 0.2}


def test_who_ramps_counts_in_full_once_nobody_is_left_to_lean_on():
    fleet = Fleet()
    fleet.at(0, A)
    assert fleet.at(100, A, B, C) == {"b": 0.2, "c": 0.2}
    assert fleet.at(101, B, C) == fleet.at(102, A, B, C) == {}


def test_nobody_ramps_while_capacity_is_short_nor_later():
    fleet = Fleet()
    fleet.at(0, A)
    assert fleet.at(100, A, B) == {"b": 0.2}
    assert fleet.at(101, A, B, short={"gpu"}) == fleet.at(102, A, B) == {}


def test_a_new_process_of_a_known_replica_is_new():
    fleet = Fleet()
    fleet.at(0, A, B)
    assert fleet.at(100, A, replica("b", incarnation=2)) == {"b": 0.2}


@pytest.mark.parametrize(
    "pause",
    [{"presence": Presence.SILENT}, {"state": ReplicaState.DRAINING}, {"quarantined": "suspect"}],
    ids=["silent", "draining", "quarantined"],
)
def test_a_replica_that_was_there_before_is_not_new(pause: dict):
    fleet = Fleet()
    fleet.at(0, A, B)
    fleet.at(100, A, replace(B, **pause))
    assert fleet.at(200, A, B) == {}


def test_members_of_the_policy_do_not_ramp():
    fleet = Fleet()
    fleet.at(0, A)
    assert fleet.at(100, A, replica("static", presence=Presence.CONFIGURED)) == {}


def test_the_policy_switches_it_off():
    fleet = Fleet(Ramp(duration_s=0))
    fleet.at(0, A)
    assert fleet.at(100, A, B) == {}
