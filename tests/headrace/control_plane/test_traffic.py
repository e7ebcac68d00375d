"""Demand as the control plane plans with it, from Envoys' flushes: steps, falls, and what looks like them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.control_plane.served import Served
from headrace.control_plane.traffic import Traffic
from headrace.policy import Policy, load
from headrace.problem import EngineState, PlanningRules
from optimizer import SHED, Partition
from signals.metrics_codec import Flush, Point
from tests.headrace.fleet.small import KEY, POLICY

HOME = {"west": {"west-gpu": 1.0}, "east": {"east-gpu": 1.0}}
REFUSING = {"west": {"west-gpu": 0.6, SHED: 0.4}, "east": {"east-gpu": 1.0}}
"""An engine here can do 90 requests/s."""


def policy_of(folder: Path, edit: Callable[[dict[str, Any]], object] = lambda _: None) -> Policy:
    document = yaml.safe_load(POLICY)
    document["planning"]["demand_window_s"] = 30
    edit(document)
    (folder / "policy.yaml").write_text(yaml.safe_dump(document))
    return load(folder / "policy.yaml")


class Flow:
    """One Envoy a front-end that flushes every `every_s`; looks at surges and falls after each flush."""

    def __init__(self, folder: Path, shares: dict[str, dict[str, float]], every_s: float = 1.0) -> None:
        self.now, self._every_s = 0.0, every_s
        policy = policy_of(folder)
        self.traffic = Traffic(policy, lambda: self.now)
        self.served = Served(1, {(f, KEY): Partition.fresh(row) for f, row in shares.items()})
        self._problem = PlanningRules.of(policy).problem(
            demand={f: {KEY: 50.0} for f in shares},
            engines={name: EngineState(2) for name in policy.engines},
            previous_shares={f: {KEY: row} for f, row in shares.items()},
        )
        self._total = dict.fromkeys(shares, 0.0)
        self._node = 0
        self.look = True
        self._flush()

    def replace_envoys(self) -> None:
        """Others take the place of all Envoys."""
        self._node += 1
        self._total = dict.fromkeys(self._total, 0.0)

    def ask(self, rps: float, for_s: float, *, east_rps: float = 10.0) -> float:
        """Let `west` ask for `rps` and `east` for `east_rps`; what is planned for in `west` at the end."""
        until = self.now + for_s
        while self.now < until:
            self.now += self._every_s
            self._total["west"] += rps * self._every_s
            self._total["east"] += east_rps * self._every_s
            self._flush()
        return self.traffic.planned()["west"][KEY]

    def _flush(self) -> None:
        for frontend, total in self._total.items():
            point = Point(f"demand.{KEY}.http_local_rate_limit.enabled", "", total)
            self.traffic.observe(frontend, f"envoy-{self._node}", Flush(None, (point,)), self.now)
        if self.look:
            self.traffic.overloaded(self.served, self._problem)
            self.traffic.relieved(self.served)


def test_a_step_beyond_capacity_is_believed_by_half_at_once_and_nearly_whole_in_three_seconds(tmp_path: Path):
    flow = Flow(tmp_path, HOME)
    flow.ask(70.0, 60.0)
    assert flow.ask(200.0, 1.0) == pytest.approx(135.0, abs=1.0)
    assert 180.0 < flow.ask(200.0, 2.0) < 200.0


def test_a_step_within_capacity_is_believed_slowly(tmp_path: Path):
    flow = Flow(tmp_path, HOME)
    flow.ask(40.0, 60.0)
    assert flow.ask(80.0, 2.0) < 46.0


def test_a_step_that_was_no_step_is_forgotten_soon(tmp_path: Path):
    flow = Flow(tmp_path, HOME)
    flow.ask(70.0, 60.0)
    flow.ask(210.0, 1.0)
    assert flow.ask(70.0, 4.0) < 90.0


@pytest.mark.parametrize("every_s", [1.0, 5.0])
def test_nothing_is_refused_for_demand_that_is_over(tmp_path: Path, every_s: float):
    flow = Flow(tmp_path, REFUSING, every_s)
    flow.ask(150.0, 60.0)
    assert flow.ask(60.0, 5.0) < 90.0


def test_demand_that_stays_is_planned_for_as_it_is_while_a_part_is_refused(tmp_path: Path):
    flow = Flow(tmp_path, REFUSING)
    flow.ask(150.0, 60.0)
    assert flow.ask(145.0, 5.0) == pytest.approx(149.0, abs=1.5)


def test_a_front_end_that_the_policy_lost_is_looked_at_no_more(tmp_path: Path):
    flow = Flow(tmp_path, REFUSING)
    flow.ask(150.0, 30.0)
    flow.traffic.adopt(policy_of(tmp_path, lambda document: document["frontends"].pop("east")))
    flow.look = False
    flow.ask(20.0, 3.0)
    assert flow.traffic.relieved(flow.served) == [f"west/{KEY}"]


def test_a_row_that_did_not_fall_is_planned_for_as_before(tmp_path: Path):
    flow = Flow(tmp_path, REFUSING, 5.0)
    flow.ask(250.0, 60.0, east_rps=85.0)
    flow.ask(0.0, 10.0, east_rps=85.0)
    assert flow.traffic.planned()["east"][KEY] == pytest.approx(85.0, rel=0.15)


def test_an_envoy_that_was_replaced_does_not_dampen_a_step(tmp_path: Path):
    flow = Flow(tmp_path, HOME)
    flow.ask(70.0, 60.0)
    flow.replace_envoys()
    flow.ask(70.0, 300.0)
    assert 180.0 < flow.ask(200.0, 3.0) < 200.0
