"""Policies that steer by what they see are shown what replicas report and Envoys count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from headrace.control_plane.feedback import observed
from headrace.control_plane.rounds import Inputs, Round, plan_round
from headrace.control_plane.served import Served
from headrace.policy import load
from headrace.problem import EngineState, PlanningRules
from optimizer import Observed, Tuning, Warm
from signals.demand import DemandView
from signals.readings import Reading, Signal
from signals.replicas import MembershipView, Presence, Replica, ReplicaKey, ReplicaState
from signals.traffic import AnswerSum
from tests.headrace.fleet.small import KEY, POLICY

NOW = 100.0
TOKENS = 8
"""Of the small fleet's one class."""
WEST, EAST = "west-gpu", "east-gpu"
Ruling = Callable[..., PlanningRules]


@pytest.fixture
def ruling(tmp_path: Path) -> Ruling:
    """The small fleet's rules with other fields of `planning`."""

    def ruling(**planning: object) -> PlanningRules:
        document = yaml.safe_load(POLICY)
        document["planning"] |= planning
        (tmp_path / "policy.yaml").write_text(yaml.safe_dump(document))
        return PlanningRules.of(load(tmp_path / "policy.yaml"))

    return ruling


def replica(engine: str, number: int, rps: float, ttft_ms: float, tbot_ms: float | None = 20.0) -> Replica:
    told = {Signal.REQUESTS_PER_S: rps, Signal.TTFT_MEAN_MS: ttft_ms, Signal.TBOT_MEAN_MS: tbot_ms}
    return Replica(
        ReplicaKey(engine, "", f"r{number}"),
        "127.0.0.1",
        8000 + number,
        ReplicaState.READY,
        Presence.REPORTING,
        readings={s: Reading(value, NOW + 5.0) for s, value in told.items() if value is not None},
    )


def members(*replicas: Replica) -> MembershipView:
    names = {each.key.engine for each in replicas}
    return MembershipView(1, {n: tuple(r for r in replicas if r.key.engine == n) for n in names})


def traffic(**rps: float) -> DemandView:
    """Answers/s by engine, half of them at each front-end."""
    answers = {
        (frontend, KEY, engine.replace("_", "-")): AnswerSum(completed_rps=rate / 2).answers()
        for engine, rate in rps.items()
        for frontend in ("west", "east")
    }
    return DemandView({}, answers, {}, {})


def test_latency_is_the_mean_answers_by_requests_and_load_is_what_envoys_count(ruling: Ruling):
    seen = observed(
        ruling(), members(replica(WEST, 1, 30, 100), replica(WEST, 2, 10, 300)), traffic(west_gpu=36), NOW
    )
    assert seen == {WEST: Observed(pytest.approx(150.0 + TOKENS * 20.0), pytest.approx(36.0))}


def test_engines_that_answer_nothing_or_tell_nothing_are_left_to_their_profiles(ruling: Ruling):
    told = members(replica(WEST, 1, 30, 100), replica(EAST, 1, 30, 100, None))
    assert observed(ruling(), told, traffic(east_gpu=30), NOW) == {}
    assert observed(ruling(), members(replica(WEST, 1, 30, 100)), traffic(west_gpu=30), NOW + 60) == {}
    assert observed(ruling(), told, traffic(shed=30), NOW) == {}


def planned(
    rules: PlanningRules, seen: dict[str, Observed] | None, served: Served | None = None, rounds: int = 5
) -> Round:
    warm, found = Warm(), served or Served()
    for _ in range(rounds):
        inputs = Inputs(
            rules=rules,
            demand_rps={"west": {KEY: 30.0}, "east": {KEY: 30.0}},
            network_ms={},
            engines={name: EngineState(2) for name in (WEST, EAST)},
            served=found,
            observed=seen,
        )
        last = plan_round(inputs, warm)
        found = last.served
    return last


def share(found: Round, engine: str) -> float:
    rows = found.served.shares()
    return sum(rows[frontend][KEY].get(engine, 0.0) for frontend in rows) / len(rows)


def slow_west(rules: PlanningRules) -> dict[str, Observed]:
    told = members(replica(WEST, 1, 30, 600, 60), replica(EAST, 1, 30, 100))
    return observed(rules, told, traffic(west_gpu=30, east_gpu=30), NOW)


def test_feedback_takes_shares_from_an_engine_that_is_seen_to_be_slow(ruling: Ruling):
    rules = ruling(policy="feedback", feedback={"gain": 0.2})
    assert share(planned(rules, None), WEST) == pytest.approx(0.5)
    assert share(planned(rules, slow_west(rules)), WEST) < 0.4


def test_a_larger_gain_takes_more(ruling: Ruling):
    shares = []
    for gain in (0.05, 0.1, 0.4):
        rules = ruling(policy="feedback", feedback={"gain": gain})
        shares.append(share(planned(rules, slow_west(rules)), WEST))
    assert shares == sorted(shares, reverse=True)
    assert len(set(shares)) == 3


def test_tuning_is_the_policys(ruling: Ruling):
    rules = ruling(policy="dgd", feedback={"gain": 0.3, "ewma": 0.7}, dgd={"step": 0.5})
    found = planned(rules, None, rounds=1)
    assert found.problem is not None
    assert found.problem.tuning == Tuning(0.3, 0.7, 0.5)


def test_what_global_plans_does_not_depend_on_what_is_seen(ruling: Ruling):
    rules = ruling()
    assert planned(rules, slow_west(rules)).served == planned(rules, None).served
