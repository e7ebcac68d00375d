"""Who is judged, and on what."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.control_plane import observations
from headrace.control_plane.protection import Protection
from headrace.policy import Policy, load
from headrace.problem import PlanningRules
from signals.demand import DemandView
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
