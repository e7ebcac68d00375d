"""The planning loop: faults of its own, and moves that outlive it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.control_plane.planner import Planner, unfinished_rows
from headrace.control_plane.rounds import Inputs, Round
from headrace.control_plane.served import Served
from headrace.control_plane.telemetry import Telemetry
from headrace.log import make_logger
from headrace.policy import load
from headrace.problem import EngineState, PlanningRules
from tests.headrace.fleet.small import KEY, POLICY


async def _soon() -> None:
    """The first round waits for nothing."""


async def _until(done: asyncio.Event, planner: Planner) -> None:
    """Let a planner work until something is done."""
    running = asyncio.create_task(planner.run(_soon()))
    await asyncio.wait_for(done.wait(), 20)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def faults(*rounds: Callable[[], Inputs | None]) -> tuple[list[dict], float]:
    """Run one round after the other; the `plan_failed` lines and how many rounds were counted as failed."""
    stream, done = io.StringIO(), asyncio.Event()
    left = list(rounds)

    def inputs() -> Inputs | None:
        if not left:
            done.set()
            return None
        return left.pop(0)()

    telemetry = Telemetry(make_logger(stream))
    planner = Planner(
        inputs=inputs,
        take=lambda found, inputs, trigger: True,
        interval_s=lambda: 0.0,
        telemetry=telemetry,
        clock=asyncio.get_running_loop().time,
    )
    await _until(done, planner)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    labels = {"trigger": "timer", "result": "failed"}
    counted = telemetry.registry.get_sample_value("headrace_plan_rounds_total", labels)
    return [line for line in lines if line["event"] == "plan_failed"], counted or 0.0


def broken(text: str, kind: type[Exception] = RuntimeError) -> Callable[[], Inputs | None]:
    def inputs() -> Inputs | None:
        raise kind(text)

    return inputs


async def test_a_fault_is_counted_each_round_and_told_once_while_it_lasts():
    told, counted = await faults(broken("at 0x1"), broken("at 0x2"), broken("at 0x3"))
    assert [line["error"] for line in told] == ["RuntimeError('at 0x1')"]
    assert "Traceback" in told[0]["exception"]
    assert counted == 3.0


async def test_another_fault_is_told_of_its_own_and_not_again_when_they_take_turns():
    told, _ = await faults(*(broken("a"), broken("b", KeyError)) * 2)
    assert [line["error"] for line in told] == ["RuntimeError('a')", "KeyError('b')"]


class Restarted:
    """Rounds of the small fleet in which west's traffic comes home in steps, each by a planner of its own."""

    def __init__(self, folder: Path) -> None:
        (folder / "policy.yaml").write_text(POLICY)
        self._rules = PlanningRules.of(load(folder / "policy.yaml"))
        self._served, self._saved = Served(), None

    async def round(self, west_replicas: int, *, remembers: bool) -> float:
        """Plan once in a planner that knows what the one before saved, or not; west's share at home."""
        done, served = asyncio.Event(), self._served
        engines = {"west-gpu": EngineState(west_replicas), "east-gpu": EngineState(2)}
        demand = {"west": {KEY: 30.0}, "east": {KEY: 24.0}}

        def take(found: Round, inputs: Inputs, trigger: str) -> bool:
            self._served = found.served
            done.set()
            return True

        planner = Planner(
            inputs=lambda: Inputs(self._rules, demand, {}, engines, served),
            take=take,
            interval_s=lambda: 60.0,
            telemetry=Telemetry(make_logger(io.StringIO())),
            clock=asyncio.get_running_loop().time,
        )
        planner.resume(unfinished_rows(json.loads(json.dumps(self._saved))) if remembers else None)
        await _until(done, planner)
        self._saved = planner.save()
        return self._served.shares()["west"][KEY].get("west-gpu", 0.0)


async def _home_at_the_end(folder: Path, *, remembers: bool) -> float:
    rounds = Restarted(folder)
    assert await rounds.round(0, remembers=remembers) == 0.0
    for _ in range(12):
        home = await rounds.round(2, remembers=remembers)
    return home


async def test_a_move_under_way_goes_on_over_restarts_until_all_is_home(tmp_path: Path):
    assert await _home_at_the_end(tmp_path, remembers=True) == 1.0


async def test_a_planner_that_knows_nothing_of_the_move_leaves_the_last_of_it_away(tmp_path: Path):
    assert 0.5 < await _home_at_the_end(tmp_path, remembers=False) < 1.0


@pytest.mark.parametrize("saved", ["", {}, ["ab"], [["west"]], [["west", 1]]])
def test_what_is_no_saved_move_is_refused(saved: object):
    with pytest.raises(ValueError, match="expected a list of pairs"):
        unfinished_rows(saved)


async def _home_with(folder: Path, third: str) -> float:
    """One planner; its third step home is taken, void or a fault. West's share at home at the end."""
    (folder / "policy.yaml").write_text(POLICY)
    rules, done = PlanningRules.of(load(folder / "policy.yaml")), asyncio.Event()
    demand = {"west": {KEY: 30.0}, "east": {KEY: 24.0}}
    served, rounds = Served(), 0

    def inputs() -> Inputs:
        engines = {"west-gpu": EngineState(2 if rounds else 0), "east-gpu": EngineState(2)}
        return Inputs(rules, demand, {}, engines, served)

    def take(found: Round, inputs: Inputs, trigger: str) -> bool:
        nonlocal served, rounds
        rounds += 1
        if rounds == 4 and third == "fault":
            raise RuntimeError("on the third step home")
        if rounds == 14:
            done.set()
        if rounds == 4 and third == "void":
            return False
        served = found.served
        return True

    planner = Planner(
        inputs=inputs,
        take=take,
        interval_s=lambda: 0.0,
        telemetry=Telemetry(make_logger(io.StringIO())),
        clock=asyncio.get_running_loop().time,
    )
    await _until(done, planner)
    return served.shares()["west"][KEY].get("west-gpu", 0.0)


@pytest.mark.parametrize("third", ["taken", "void", "fault"])
async def test_a_round_that_comes_to_nothing_does_not_end_a_move(tmp_path: Path, third: str):
    assert await _home_with(tmp_path, third) == 1.0
