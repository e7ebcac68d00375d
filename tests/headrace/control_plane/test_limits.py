"""Retries in flight that a plan allows."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from headrace.control_plane.limits import SlowlyFalling, limits
from headrace.control_plane.rounds import Inputs, plan_round
from headrace.control_plane.served import Served
from headrace.control_plane.table import Limits
from headrace.policy import load
from headrace.problem import EngineState, PlanningRules
from optimizer import Warm
from tests.headrace.fleet.small import KEY, POLICY


def allowed(tmp_path: Path, west_rps: float, first_byte_timeout_s: float | None = None) -> int:
    """Retries in flight of what the front-end `west`, one Envoy, first sent to its own engine."""
    document = yaml.safe_load(POLICY)
    if first_byte_timeout_s:
        document["models"]["chat"]["first_byte_timeout_s"] = first_byte_timeout_s
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(document))
    policy = load(tmp_path / "policy.yaml")
    demand = {"west": {KEY: west_rps}, "east": {KEY: 20.0}}
    engines = {name: EngineState(2) for name in policy.engines}
    found = plan_round(Inputs(PlanningRules.of(policy), demand, {}, engines, Served()), Warm())
    return limits(found, policy, {"west": 1, "east": 1}).retries["west", KEY]["west-gpu"]


def test_with_a_first_byte_limit_all_that_an_engine_that_hangs_throws_back_may_wait(tmp_path: Path):
    rps, timeout_s = 20.0, 5.0
    assert allowed(tmp_path, rps, timeout_s) >= rps * timeout_s


@pytest.mark.parametrize("timeout_s", [None, 5.0])
def test_nothing_is_retried_when_nobody_has_room(tmp_path: Path, timeout_s: float | None):
    assert allowed(tmp_path, 400.0, timeout_s) == 0


def test_what_waits_is_never_more_than_the_neighbours_could_take(tmp_path: Path):
    nearly_full = allowed(tmp_path, 150.0, 5.0)
    assert 0 < nearly_full < 0.3 * 150.0 * 5.0


ROW = ("west", KEY)


def retries(number: int) -> Limits:
    return Limits(retries={ROW: {"west-gpu": number}})


def test_a_limit_rises_at_once_and_falls_when_what_was_sent_under_it_is_over():
    held = SlowlyFalling()
    assert held.update(retries(8), 0.0, 10.0) == retries(8)
    assert held.update(retries(64), 1.0, 10.0) == retries(64)
    assert held.update(retries(4), 2.0, 10.0) == retries(64)
    left = Limits(retries={ROW: {"east-gpu": 4}})
    assert held.update(left, 3.0, 10.0).retries[ROW] == {"east-gpu": 4, "west-gpu": 64}
    assert held.update(retries(4), 11.0, 10.0).retries[ROW]["west-gpu"] == 4


def test_a_limit_of_none_holds_at_once():
    held = SlowlyFalling()
    held.update(retries(64), 0.0, 10.0)
    assert held.update(retries(0), 1.0, 10.0) == retries(0)
    assert held.update(retries(2), 2.0, 10.0) == retries(2)


def test_what_comes_back_from_an_engine_that_was_left_has_no_slots_when_nobody_has_room():
    held = SlowlyFalling()
    held.update(Limits(retries={ROW: {"west-gpu": 64, "east-gpu": 64}}), 0.0, 10.0)
    full = Limits(retries={ROW: {"east-gpu": 0}})
    assert held.update(full, 1.0, 10.0) == full
