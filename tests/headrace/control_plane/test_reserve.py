"""What stays free in engines while a part of their traffic is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.control_plane.rounds import Inputs, Round, plan_round
from headrace.control_plane.served import Served
from headrace.policy import load
from headrace.problem import EngineState, PlanningRules
from optimizer import SHED, Warm
from tests.headrace.fleet.small import KEY, POLICY

WHOLE = 2 * 2 * 50 * 0.9
"""What may be planned with: two engines of two replicas of 50 requests/s."""


AUTO = 0.75 * 0.05
"""Three quarters of what noise may exceed capacity by."""


class Rounds:
    """Rounds of the small fleet one after another."""

    def __init__(self, folder: Path, edit: Callable[[dict[str, Any]], object] = lambda _: None) -> None:
        document = yaml.safe_load(POLICY)
        edit(document)
        (folder / "policy.yaml").write_text(yaml.safe_dump(document))
        self._rules = PlanningRules.of(load(folder / "policy.yaml"))
        self._warm = Warm()
        self._served = Served()

    def plan(self, west_rps: float, east_rps: float = 20.0, *, west_replicas: int = 2) -> Round:
        demand = {"west": {KEY: west_rps}, "east": {KEY: east_rps}}
        engines = {"west-gpu": EngineState(west_replicas), "east-gpu": EngineState(2)}
        inputs = Inputs(self._rules, demand, {}, engines, self._served, stepwise=False)
        found = plan_round(inputs, self._warm)
        self._served = found.served
        return found


def shedding(**fields: object) -> Callable[[dict[str, Any]], object]:
    return lambda document: document.setdefault("protection", {}).update(shedding=fields)


def apart(document: dict[str, Any]) -> None:
    """Each front-end may use the engine of its own region only."""
    document["deny"] = [
        {"frontend": "west", "engine": "east-gpu", "reason": "test"},
        {"frontend": "east", "engine": "west-gpu", "reason": "test"},
    ]


def admitted(found: Round, frontend: str, rps: float) -> float:
    return rps * (1.0 - found.served.shares()[frontend][KEY].get(SHED, 0.0))


def served_rps(found: Round, west_rps: float) -> float:
    return admitted(found, "west", west_rps) + admitted(found, "east", 20.0)


def capacity(found: Round, *engines: str) -> float:
    assert found.problem is not None
    return sum(found.problem.engines[name].capacity_rps for name in engines or found.problem.engines)


def test_while_a_part_is_refused_engines_keep_free_what_noise_may_add(tmp_path: Path):
    rounds = Rounds(tmp_path)
    for _ in range(2):
        assert served_rps(rounds.plan(400.0), 400.0) == pytest.approx((1 - AUTO) * WHOLE, rel=1e-3)


@pytest.mark.parametrize("reserve", [0.0, 0.02, 0.2])
def test_the_reserve_is_the_policys_where_it_says_one(tmp_path: Path, reserve: float):
    rounds = Rounds(tmp_path, shedding(reserve=reserve))
    for _ in range(2):
        assert served_rps(rounds.plan(400.0), 400.0) == pytest.approx((1 - reserve) * WHOLE, rel=1e-3)


def test_demand_that_falls_a_little_as_refusal_begins_does_not_lose_the_reserve(tmp_path: Path):
    rounds = Rounds(tmp_path)
    rounds.plan(400.0)
    assert served_rps(rounds.plan(398.0), 398.0) < (1.001 - AUTO) * WHOLE


def test_what_fits_beside_the_reserve_is_refused_no_longer_and_all_capacity_is_there_again(tmp_path: Path):
    rounds = Rounds(tmp_path)
    rounds.plan(400.0)
    calm = 0.9 * WHOLE - 20.0
    assert served_rps(rounds.plan(calm), calm) == pytest.approx(0.9 * WHOLE)
    assert capacity(rounds.plan(calm)) == pytest.approx(WHOLE)


def test_between_reserve_and_capacity_what_is_not_refused_stays_so(tmp_path: Path):
    rounds = Rounds(tmp_path)
    nearly_full = 0.99 * WHOLE - 20.0
    for _ in range(3):
        assert served_rps(rounds.plan(nearly_full), nearly_full) == pytest.approx(0.99 * WHOLE)


def test_engines_that_may_not_serve_what_is_refused_keep_no_reserve(tmp_path: Path):
    rounds = Rounds(tmp_path, apart)
    for _ in range(3):
        found = rounds.plan(150.0, 87.0)
    assert admitted(found, "west", 150.0) < 87.0
    assert admitted(found, "east", 87.0) == 87.0


def test_what_nobody_is_there_to_serve_takes_no_reserve_from_others(tmp_path: Path):
    rounds = Rounds(tmp_path, apart)
    rounds.plan(150.0, 87.0)
    found = rounds.plan(150.0, 87.0, west_replicas=0)
    assert capacity(found, "east-gpu") == pytest.approx(WHOLE / 2)


def test_where_the_policy_sheds_nothing_there_is_no_reserve(tmp_path: Path):
    rounds = Rounds(tmp_path, shedding(enabled=False))
    assert capacity(rounds.plan(400.0)) == pytest.approx(WHOLE)
