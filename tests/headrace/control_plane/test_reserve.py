"""What stays free in engines while a part of their traffic is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from headrace.control_plane.rounds import Inputs, Round, plan_round
from headrace.control_plane.served import Served
from headrace.policy import load
from headrace.problem import EngineState, PlanningRules
from optimizer import SHED, Warm
from tests.headrace.fleet.small import KEY, POLICY


class Rounds:
    """Rounds of the small fleet one after another, each with its own demand of `west`."""

    def __init__(self, folder: Path, **shedding: object) -> None:
        document = yaml.safe_load(POLICY)
        document.setdefault("protection", {})["shedding"] = shedding
        (folder / "policy.yaml").write_text(yaml.safe_dump(document))
        self._rules = PlanningRules.of(load(folder / "policy.yaml"))
        self._warm = Warm()
        self._served = Served()

    def plan(self, west_rps: float) -> Round:
        demand = {"west": {KEY: west_rps}, "east": {KEY: 20.0}}
        engines = {name: EngineState(2) for name in self._rules.engines}
        inputs = Inputs(self._rules, demand, {}, engines, self._served, stepwise=False)
        found = plan_round(inputs, self._warm)
        self._served = found.served
        return found


def refused_rps(found: Round, west_rps: float) -> float:
    shares = found.served.shares()
    return shares["west"][KEY].get(SHED, 0.0) * west_rps + shares["east"][KEY].get(SHED, 0.0) * 20.0


def capacity(found: Round) -> float:
    assert found.problem is not None
    return sum(engine.capacity_rps for engine in found.problem.engines.values())


@pytest.fixture
def whole(tmp_path: Path) -> float:
    """Capacity of the fleet with nothing refused, work/s."""
    (tmp_path / "calm").mkdir()
    return capacity(Rounds(tmp_path / "calm").plan(20.0))


def test_while_a_part_is_refused_engines_keep_free_what_noise_may_add(tmp_path: Path, whole: float):
    rounds = Rounds(tmp_path)
    first = rounds.plan(400.0)
    assert 420.0 - refused_rps(first, 400.0) == pytest.approx(whole, rel=1e-3)
    second = rounds.plan(400.0)
    assert 420.0 - refused_rps(second, 400.0) == pytest.approx(0.95 * whole, rel=1e-3)


def test_the_reserve_is_the_policys_where_it_says_one(tmp_path: Path, whole: float):
    rounds = Rounds(tmp_path, reserve=0.2)
    rounds.plan(400.0)
    assert 420.0 - refused_rps(rounds.plan(400.0), 400.0) == pytest.approx(0.8 * whole, rel=1e-3)


def test_what_fits_beside_the_reserve_is_refused_no_longer_and_all_capacity_is_there_again(
    tmp_path: Path, whole: float
):
    rounds = Rounds(tmp_path)
    rounds.plan(400.0)
    rounds.plan(400.0)
    calm = 0.9 * whole - 20.0
    assert refused_rps(rounds.plan(calm), calm) == 0.0
    assert capacity(rounds.plan(calm)) == pytest.approx(whole)


def test_between_reserve_and_capacity_what_is_not_refused_stays_so(tmp_path: Path, whole: float):
    rounds = Rounds(tmp_path)
    nearly_full = 0.99 * whole - 20.0
    for _ in range(3):
        assert refused_rps(rounds.plan(nearly_full), nearly_full) == 0.0
