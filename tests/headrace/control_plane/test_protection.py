"""Who is judged, and on what."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.control_plane import observations
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


def answers(engine: str, *, completed: float, retried: float = 0.0, failed: float = 0.0) -> DemandView:
    seen = Answers(completed, 0.0, retried, 0.0, failed)
    return DemandView({}, {("west", "chat/interactive", engine): seen}, {}, {})


def test_an_engine_fails_when_nearly_every_request_needs_another_attempt_or_gets_its_error():
    assert observations.failing(answers("west-gpu", completed=10, retried=9)) == {"west-gpu"}
    assert observations.failing(answers("west-gpu", completed=10, failed=8)) == {"west-gpu"}


def test_one_replica_of_several_or_a_storm_of_errors_is_no_failing_engine():
    assert not observations.failing(answers("west-gpu", completed=10, retried=3))
    assert not observations.failing(answers("west-gpu", completed=10, failed=3, retried=3))


def test_an_engine_that_hardly_answers_is_not_judged():
    assert not observations.failing(answers("west-gpu", completed=0.1, retried=0.4))


def test_a_failing_engine_is_penalised_at_once_and_told_as_worse_only_then(policy: Policy):
    membership = Membership()
    protection = Protection(membership, policy.protection.penalties)
    rules = PlanningRules.of(policy)
    assert not protection.update(rules, NOBODY_SENT, 1.0)
    assert protection.update(rules, NOBODY_SENT, 2.0, failing={"west-gpu"})
    assert protection.engine_penalties(2.0)["west-gpu"].value == policy.protection.penalties.floor
    assert not protection.update(rules, NOBODY_SENT, 3.0, failing={"west-gpu"})


def test_not_all_engines_of_a_model_are_penalised_for_failing(policy: Policy):
    protection = Protection(Membership(), policy.protection.penalties)
    protection.update(PlanningRules.of(policy), NOBODY_SENT, 1.0, failing=sorted(policy.engines))
    values = [penalty.value for penalty in protection.engine_penalties(1.0).values()]
    assert max(values) == 1.0


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
    membership, keys = reporting([3.0, 0.0, 0.0, 0.0])
    protection = Protection(membership, policy.protection.penalties)
    protection.update(PlanningRules.of(policy), NOBODY_SENT, 1.0)
    penalties = protection.replica_penalties(1.0)
    assert penalties[keys[0]].value == policy.protection.penalties.floor


async def test_errors_everywhere_take_no_capacity_away(policy: Policy):
    membership, _ = reporting([3.0, 3.5, 2.5, 4.0])
    protection = Protection(membership, policy.protection.penalties)
    protection.update(PlanningRules.of(policy), NOBODY_SENT, 1.0)
    assert not protection.penalised(1.0)
