"""Engines that have never served get a trickle, where they may, until they have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.control_plane.rounds import Inputs, Result, plan_round
from headrace.control_plane.served import Served
from headrace.policy import load
from headrace.problem import EngineState, PlanningRules
from optimizer import Warm
from tests.headrace.fleet.small import KEY, POLICY

EAST = "east-gpu"
NEAR = "engines:\n"
FAR = (
    (NEAR, NEAR + "  far-gpu: {model: chat, region: moon, profile: gpu}\n"),
    ("regions:\n", "regions:\n  moon: {jurisdiction: moon}\n"),
    ("west: {east: 40}", "west: {east: 40, moon: 80}, east: {moon: 90}"),
)


@pytest.fixture
def inputs(tmp_path: Path):
    """Inputs of a round in which west-gpu serves all of west, and nobody needs far-gpu."""

    def making(*edits: tuple[str, str], **changes: object) -> Inputs:
        text = POLICY
        for old, new in (*FAR, *edits):
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "policy.yaml").write_text(text)
        policy = load(tmp_path / "policy.yaml")
        first = Inputs(
            rules=PlanningRules.of(policy),
            demand_rps={"west": {KEY: 30.0}, "east": {KEY: 0.0}},
            network_ms={},
            engines={name: EngineState(2.0) for name in policy.engines},
            served=Served(),
            unknown=frozenset({"far-gpu"}),
        )
        return replace(first, **changes)  # type: ignore[arg-type]  # fields of the inputs

    return making


def share(served: Served, engine: str = "far-gpu", frontend: str = "west") -> float:
    return served.shares()[frontend][KEY].get(engine, 0.0)


def test_an_engine_that_never_served_gets_a_trickle_with_a_fallback(inputs):
    served = plan_round(inputs(), Warm()).served
    assert share(served) == pytest.approx(0.01, abs=1e-5)
    assert served.fallback["west", KEY]["far-gpu"] == "west-gpu"


def test_the_trickle_stays_as_it_is_and_is_not_added_again(inputs):
    given, warm = inputs(), Warm()
    first = plan_round(given, warm).served
    for _ in range(3):
        again = plan_round(replace(given, served=first), warm)
        assert again.served is first


def test_a_quiet_round_tries_an_engine_that_has_just_come(inputs):
    given, warm = inputs(unknown=frozenset()), Warm()
    first = plan_round(given, warm).served
    quiet = replace(given, served=first, unknown=frozenset({"far-gpu"}))
    found = plan_round(quiet, warm)
    assert share(first) == 0.0
    assert share(found.served) == pytest.approx(0.01, abs=1e-5)
    assert found.result is Result.PUBLISHED
    assert found.moved == pytest.approx(0.01, abs=1e-3)


@pytest.mark.parametrize(
    "edits",
    [
        [("planning: {", "planning: {learning: {explore: 0}, ")],
        [("far-gpu: {", "far-gpu: {state: drain, ")],
        [("network: {", "deny: [{engine: far-gpu}]\nnetwork: {")],
        [("chat: {served_as", "chat: {residency: [us], served_as")],
    ],
    ids=["off", "draining", "denied", "residency"],
)
def test_no_trickle_where_there_may_be_none(inputs, edits: list[tuple[str, str]]):
    assert share(plan_round(inputs(*edits), Warm()).served) == 0.0


@pytest.mark.parametrize(
    "state", [EngineState(0.0), EngineState(2.0, penalty=0.5)], ids=["nobody ready", "penalised"]
)
def test_no_trickle_for_an_engine_that_cannot_or_should_not_serve(inputs, state: EngineState):
    given = inputs()
    engines = {**given.engines, "far-gpu": state}
    assert share(plan_round(replace(given, engines=engines), Warm()).served) == 0.0


def test_a_trickle_is_small_for_the_engine_too(inputs):
    given = inputs(
        demand_rps={"west": {KEY: 1000.0}, "east": {KEY: 0.0}},
        engines={"west-gpu": EngineState(400.0), EAST: EngineState(2.0), "far-gpu": EngineState(1.0)},
    )
    served = plan_round(given, Warm()).served
    assert 0.0 < share(served) * 1000.0 <= 0.1 * 0.9 * 50.0 + 0.1


def test_baselines_are_served_as_they_are(inputs):
    assert share(plan_round(inputs(planning_policy="nearest"), Warm()).served) == 0.0
