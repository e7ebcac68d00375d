"""What is learned of engines, when nothing is, and what plans make of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.control_plane import observations
from headrace.control_plane.learning import Learner, Observed
from headrace.control_plane.protection import Protection
from headrace.policy import load
from headrace.problem import EngineState, PlanningRules
from optimizer import Correction, ProblemError
from signals.demand import DemandView
from signals.membership import Membership
from signals.outliers import Cause, Hold, Penalty
from signals.readings import Reading, Signal
from signals.replicas import MembershipView, Presence, Replica, ReplicaKey, ReplicaState
from signals.traffic import EngineSum
from tests.headrace.fleet.small import KEY, POLICY

ENGINE = "west-gpu"
MODEL_SLOS = "classes:\n  interactive: {output_tokens: 8"
Loading = Callable[..., PlanningRules]


@pytest.fixture
def rules(tmp_path: Path) -> Loading:
    """The small fleet's rules after edits of the policy's text."""

    def loading(*edits: tuple[str, str]) -> PlanningRules:
        text = POLICY
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "policy.yaml").write_text(text)
        return PlanningRules.of(load(tmp_path / "policy.yaml"))

    return loading


def replica(
    number: int, now: float, rps: float, tbot_ms: float, ttft_ms: float, **changes: object
) -> Replica:
    values = {Signal.REQUESTS_PER_S: rps, Signal.TBOT_MEAN_MS: tbot_ms, Signal.TTFT_MEAN_MS: ttft_ms}
    found = Replica(
        ReplicaKey(ENGINE, "", f"r{number}"),
        "127.0.0.1",
        8000 + number,
        ReplicaState.READY,
        Presence.REPORTING,
        readings={signal: Reading(value, now + 5.0) for signal, value in values.items()},
    )
    return replace(found, **changes)  # type: ignore[arg-type]  # fields of a replica


def traffic(sent_rps: float = 60.0) -> DemandView:
    return DemandView({}, {}, {("west", ENGINE): EngineSum(sent_rps=sent_rps).traffic()}, {})


def run(
    learner: Learner,
    rules: PlanningRules,
    *,
    seconds: int = 1200,
    slow: float = 1.2,
    offset_ms: float = 25.0,
    penalties: Mapping[str, Penalty] | None = None,
    mismatch: float = 1.0,
    rps: float | None = None,
    **changes: object,
) -> Learner:
    """Rounds of an engine whose replicas are `slow` times their profile's TBOT and `offset_ms` above its
    TTFT."""
    profile = rules.engines[ENGINE].profile
    for now in map(float, range(0, seconds, 5)):
        load = rps or 20.0 + 10.0 * (now % 300.0 > 150.0)
        members = [
            replica(n, now, load, slow * profile.tbot_ms(load), profile.ttft_ms(load) + offset_ms, **changes)
            for n in (1, 2)
        ]
        seen = Observed(
            MembershipView(1, {ENGINE: tuple(members)}), traffic(), penalties or {}, {ENGINE: mismatch}
        )
        learner.update(rules, seen, now)
    return learner


def learned(learner: Learner) -> Correction:
    return learner.known()[ENGINE].correction


def test_a_slower_engine_is_learned_and_planned_with(rules: Loading):
    found = rules()
    used = run(Learner(), found, seconds=3600).corrections(found)[ENGINE]
    curve = found.corrected(ENGINE, used).profile
    for load_rps in (20.0, 30.0):
        truth = 1.2 * found.engines[ENGINE].profile.tbot_ms(load_rps)
        assert curve.tbot_ms(load_rps) == pytest.approx(truth, rel=0.1)
        assert curve.ttft_ms(load_rps) == pytest.approx(30.0 + 25.0, abs=10.0)


def test_an_engine_that_keeps_its_profile_is_not_corrected(rules: Loading):
    found = rules()
    assert run(Learner(), found, slow=1.0, offset_ms=0.0).corrections(found) == {}


@pytest.mark.parametrize("word", ["frozen", "ignore"])
def test_nothing_is_learned_where_the_policy_says_so(rules: Loading, word: str):
    for edit in (
        ("planning: {", f"planning: {{learning: {{mode: {word}}}, "),
        ("region: west, profile: gpu", f"region: west, profile: gpu, learning: {word}"),
    ):
        found = rules(edit)
        learner = run(Learner(), found)
        assert learned(learner) == Correction()
        assert learner.known()[ENGINE].paused == f"{word} by the policy"


def test_frozen_keeps_what_was_learned_and_ignore_plans_without_it(rules: Loading):
    learner = run(Learner(), rules())
    before = learner.known()[ENGINE].used
    frozen = rules(("planning: {", "planning: {learning: {mode: frozen}, "))
    assert run(learner, frozen, slow=2.0).corrections(frozen)[ENGINE] == before
    assert ENGINE not in learner.corrections(rules(("planning: {", "planning: {learning: {mode: ignore}, ")))


@pytest.mark.parametrize(
    ("penalty", "reason"),
    [
        (Penalty(0.5, Cause.SLOW, 1.1, 0.0), "penalised"),
        (Penalty(0.9, Cause.RETURNING, 1.0, 0.0), "penalised"),
        (Penalty(1.0, Cause.HELD, 1.0, 0.0, Hold(1.0, "watching it", 9e9)), "penalised"),
        (Penalty(1.0, Cause.NONE, 1.6, 0.0), "an outlier"),
    ],
    ids=["penalised", "returning", "held at 1", "about to be penalised"],
)
def test_an_outlier_is_not_learned_away(rules: Loading, penalty: Penalty, reason: str):
    learner = run(Learner(), rules(), penalties={ENGINE: penalty})
    assert learned(learner) == Correction()
    assert learner.known()[ENGINE].paused.startswith(reason)


@pytest.mark.parametrize(
    "world",
    [
        {"mismatch": 0.5},
        {"mismatch": 2.0},
        {"penalty": 0.5},
        {"ramp": 0.3},
        {"presence": Presence.SILENT},
        {"state": ReplicaState.DRAINING},
        {"quarantined": "suspect"},
        {"readings": {}},
        {"rps": 51.0},
        {"rps": 0.1},
    ],
    ids=lambda world: f"{next(iter(world))}",
)
def test_what_says_nothing_of_the_profile_teaches_nothing(rules: Loading, world: dict):
    learner = run(Learner(), rules(), **world)
    assert learned(learner) == Correction()
    assert learner.known()[ENGINE].paused


def test_plans_follow_in_steps_and_not_every_sample(rules: Loading):
    found, learner, seen = rules(), Learner(), set()
    for until in range(60, 1260, 60):
        run(learner, found, seconds=until)
        seen.add(learner.known()[ENGINE].used)
    assert 1 < len(seen) < 8


def test_what_was_learned_survives_a_restart(rules: Loading):
    found, learner, again = rules(), run(Learner(), rules()), Learner()
    again.restore(json.loads(json.dumps(learner.save())))
    assert again.corrections(found) == learner.corrections(found)
    assert learned(again) == learned(learner)
    assert again.unknown() == learner.unknown()


def test_nothing_is_known_of_another_profile(rules: Loading):
    learner = run(Learner(), rules())
    other = rules(("t0_ms: 20", "t0_ms: 30"))
    learner.update(other, Observed(MembershipView(1, {}), traffic(), {}, {}), 2000.0)
    assert learned(learner) == Correction()


def test_an_engine_is_known_once_it_has_served_for_a_minute(rules: Loading):
    found, learner = rules(), Learner()
    assert ENGINE in run(learner, found, seconds=30).unknown()
    run(learner, found, seconds=90)
    assert learner.unknown() == {"east-gpu"}


# what plans make of it


def test_the_live_state_carries_corrections_to_offline_planning(rules: Loading):
    found = rules()
    states = observations.engine_states(
        found.policy, MembershipView(1, {}), {}, {ENGINE: Correction(1.2, 0.9, 50.0)}
    )
    document = observations.state_file(found.policy, {"west": {KEY: 5.0}}, states, {})
    engines = document["engines"]
    assert isinstance(engines, dict)
    assert engines[ENGINE]["tbot_factor"] == 1.2
    assert engines["east-gpu"] == {"ready_replicas": 0.0, "penalty": 1.0}
    problem = found.problem(demand={"west": {KEY: 5.0}}, engines={ENGINE: EngineState(**engines[ENGINE])})
    assert problem.engines[ENGINE].profile.capacity_rps == pytest.approx(45.0)
    assert problem.engines[ENGINE].profile.ttft_ms(0.0) == pytest.approx(80.0)


def test_a_correction_takes_at_most_half_of_a_capacity_within_service_levels(rules: Loading):
    found = rules((MODEL_SLOS, MODEL_SLOS + ", tbot_slo_ms: 40"))
    limit = found.engines[ENGINE].slo_capacity_rps
    assert limit is not None
    slower = found.corrected(ENGINE, Correction(2.0, 1.0, 0.0))
    faster = found.corrected(ENGINE, Correction(0.5, 1.0, 0.0))
    assert slower.slo_capacity_rps == pytest.approx(limit / 2)
    assert faster.slo_capacity_rps == pytest.approx(limit)


def test_a_state_with_an_impossible_correction_is_refused_by_its_path(rules: Loading):
    with pytest.raises(ProblemError, match=r"engines\.west-gpu\.load_factor"):
        rules().problem(demand={}, engines={ENGINE: EngineState(1.0, load_factor=1.5)})


def test_what_was_learned_excuses_an_engine_and_accuses_none(rules: Loading):
    found = rules()

    def residual(slow: float, correction: Correction) -> float:
        protection = Protection(membership := Membership(), found.policy.protection.penalties)
        profile = found.engines[ENGINE].profile
        other = ReplicaKey("east-gpu", "", "r1")
        members = {
            ENGINE: (replica(1, 1.0, 20.0, slow * profile.tbot_ms(20.0), 30.0),),
            "east-gpu": (replica(2, 1.0, 20.0, profile.tbot_ms(20.0), 30.0, key=other),),
        }
        membership.view = lambda: MembershipView(1, members)  # type: ignore[method-assign]  # as if reported
        protection.update(found, traffic(), 1.0, {ENGINE: correction})
        seen = protection.engine_penalties(1.0)[ENGINE].residual
        assert seen is not None
        return seen

    as_the_profile = residual(1.0, Correction())
    assert residual(2.0, Correction()) > 1.5
    assert residual(2.0, Correction(2.0)) == pytest.approx(as_the_profile, abs=0.15)
    assert residual(1.0, Correction(0.5)) == as_the_profile
