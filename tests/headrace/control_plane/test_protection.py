"""Who is judged, and on what."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.control_plane import observations
from headrace.control_plane.failing import failing, serving
from headrace.control_plane.protection import Protection
from headrace.policy import Policy, load
from headrace.problem import PlanningRules
from signals.demand import Answers, DemandView
from signals.membership import Membership
from signals.readings import Signal
from signals.replicas import Announcement, ReplicaKey, ReplicaState, Report
from tests.headrace.fleet.small import POLICY

NOBODY_SENT = DemandView({}, {}, {}, {})
LATENCY = {Signal.REQUESTS_PER_S: 10.0, Signal.TTFT_MEAN_MS: 40.0, Signal.TBOT_MEAN_MS: 25.0}


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    (tmp_path / "policy.yaml").write_text(POLICY)
    return load(tmp_path / "policy.yaml")


async def test_a_replica_without_a_sample_counts_in_full_and_is_not_judged(policy: Policy):
    membership = Membership()
    protection = Protection(membership, policy.protection.penalties)
    keys = [ReplicaKey("west-gpu", "", f"r{number}") for number in range(4)]
    streams = [
        membership.join(Announcement(key, 1, "127.0.0.1", 8000 + number), None, 0.0)
        for number, key in enumerate(keys)
    ]
    for now in range(1, 90):
        for key, stream in zip(keys, streams, strict=True):
            values = {} if key == keys[0] else LATENCY
            membership.apply(key, stream, Report(now, 5.0, ReplicaState.READY, values=values), float(now))
        protection.update(PlanningRules.of(policy), NOBODY_SENT, float(now))
    states = observations.engine_states(policy, membership.view(), {})
    assert states["west-gpu"].ready_replicas == 4
    assert states["west-gpu"].penalty == 1.0
    assert not protection.penalised(89.0)


def answers(front_end_age_s: float = 0.0, **engines: tuple[float, float, float]) -> DemandView:
    """engine -> (answered, tried again, failed) per second, as the Envoys of `west` count."""
    seen = {
        ("west", "chat/interactive", name.replace("_", "-")): Answers(done, 0.0, again, 0.0, failed)
        for name, (done, again, failed) in engines.items()
    }
    return DemandView({}, seen, {}, {"west": front_end_age_s})


def test_an_engine_fails_when_nearly_every_request_needs_all_attempts_or_gets_its_error(policy: Policy):
    assert failing(answers(west_gpu=(10, 18, 0)), policy) == {"west-gpu"}
    assert failing(answers(west_gpu=(10, 0, 8)), policy) == {"west-gpu"}


def test_one_replica_of_several_or_a_storm_of_errors_is_no_failing_engine(policy: Policy):
    assert not failing(answers(west_gpu=(10, 4, 0)), policy)
    assert not failing(answers(west_gpu=(10, 3, 3)), policy)


def test_requests_that_fail_everywhere_are_no_fault_of_an_engine(policy: Policy):
    assert not failing(answers(west_gpu=(10, 20, 10), east_gpu=(10, 18, 9)), policy)


def test_an_engine_that_hardly_answers_is_not_judged(policy: Policy):
    assert not failing(answers(west_gpu=(1.0, 2.0, 1.0)), policy)


def test_front_ends_that_are_silent_say_nothing_of_now(policy: Policy):
    assert not failing(answers(60.0, west_gpu=(10, 20, 0)), policy)


def both_live(policy: Policy) -> tuple[Membership, dict[str, int]]:
    """A ready replica at each engine."""
    membership, streams = Membership(), {}
    for number, engine in enumerate(policy.engines):
        key = ReplicaKey(engine, "", "r1")
        streams[engine] = membership.join(Announcement(key, 1, "127.0.0.1", 8000 + number), None, 0.0)
        membership.apply(key, streams[engine], Report(1, 50.0, ReplicaState.READY), 0.0)
    return membership, streams


async def test_a_failing_engine_is_penalised_at_once_and_told_as_worse_only_then(policy: Policy):
    membership, _ = both_live(policy)
    protection = Protection(membership, policy.protection.penalties)
    rules = PlanningRules.of(policy)
    assert not protection.update(rules, NOBODY_SENT, 1.0)
    assert protection.update(rules, NOBODY_SENT, 2.0, failing={"west-gpu"})
    assert protection.engine_penalties(2.0)["west-gpu"].value == policy.protection.penalties.floor
    assert not protection.update(rules, NOBODY_SENT, 3.0, failing={"west-gpu"})


async def test_one_of_two_engines_stays_when_both_are_said_to_fail(policy: Policy):
    membership, _ = both_live(policy)
    protection = Protection(membership, policy.protection.penalties)
    protection.update(PlanningRules.of(policy), NOBODY_SENT, 1.0, failing=set(policy.engines))
    values = {name: found.value for name, found in protection.engine_penalties(1.0).items()}
    assert values == {"east-gpu": policy.protection.penalties.floor, "west-gpu": 1.0}


async def test_the_only_engine_with_replicas_is_never_penalised_for_failing(policy: Policy):
    membership, streams = both_live(policy)
    gone = ReplicaKey("east-gpu", "", "r1")
    membership.apply(gone, streams["east-gpu"], Report(2, 50.0, ReplicaState.DOWN), 0.5)
    protection = Protection(membership, policy.protection.penalties)
    protection.update(PlanningRules.of(policy), NOBODY_SENT, 1.0, failing={"west-gpu"})
    assert protection.engine_penalties(1.0)["west-gpu"].value == 1.0


async def test_new_processes_of_a_failed_engine_begin_well(policy: Policy):
    membership, _ = both_live(policy)
    protection = Protection(membership, policy.protection.penalties)
    rules = PlanningRules.of(policy)
    protection.update(rules, NOBODY_SENT, 1.0, failing={"west-gpu"})
    key = ReplicaKey("west-gpu", "", "r1")
    stream = membership.join(Announcement(key, 2, "127.0.0.1", 9000), None, 2.0)
    membership.apply(key, stream, Report(1, 50.0, ReplicaState.READY), 2.0)
    protection.update(rules, NOBODY_SENT, 3.0)
    assert protection.engine_penalties(3.0)["west-gpu"].value == 1.0


async def test_a_failed_engine_that_is_seen_to_serve_gets_its_traffic_back_without_reports(policy: Policy):
    membership, _ = both_live(policy)
    protection = Protection(membership, policy.protection.penalties)
    rules = PlanningRules.of(policy)
    protection.update(rules, NOBODY_SENT, 1.0, failing={"west-gpu"})
    served = serving(answers(west_gpu=(0.5, 0.0, 0.0)), policy)
    for second in range(2, 40):
        protection.update(rules, NOBODY_SENT, float(second), serving=served)
    low = policy.protection.penalties.floor
    assert low < protection.engine_penalties(39.0)["west-gpu"].value < 1.0


def reporting(errors_per_s: list[float]) -> tuple[Membership, list[ReplicaKey]]:
    """Replicas of one engine that each take 10 requests/s and end so many of them in errors of their own."""
    membership = Membership()
    keys = [ReplicaKey("west-gpu", "", f"r{number}") for number in range(len(errors_per_s))]
    for number, (key, errors) in enumerate(zip(keys, errors_per_s, strict=True)):
        stream = membership.join(Announcement(key, 1, "127.0.0.1", 8000 + number), None, 0.0)
        values = {**LATENCY, Signal.ERRORS_INTERNAL_PER_S: errors}
        membership.apply(key, stream, Report(1, 5.0, ReplicaState.READY, values=values), 1.0)
    return membership, keys


async def test_a_replica_with_errors_of_its_own_is_penalised_at_once(policy: Policy):
    membership, keys = reporting([5.0, 0.0, 0.0, 0.0])
    protection = Protection(membership, policy.protection.penalties)
    protection.update(PlanningRules.of(policy), NOBODY_SENT, 1.0)
    penalties = protection.replica_penalties(1.0)
    assert penalties[keys[0]].value == policy.protection.penalties.floor


async def test_errors_everywhere_take_no_capacity_away(policy: Policy):
    membership, _ = reporting([3.0, 3.5, 2.5, 4.0])
    protection = Protection(membership, policy.protection.penalties)
    protection.update(PlanningRules.of(policy), NOBODY_SENT, 1.0)
    assert not protection.penalised(1.0)
