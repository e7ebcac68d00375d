"""A planning policy that steers by what it sees, in a fleet of real processes."""

from __future__ import annotations

from pathlib import Path

from headrace.demo.fleet import Fleet
from tests.headrace.fleet.conftest import Loading
from tests.headrace.fleet.small import demand, share, small, until


async def test_feedback_leaves_an_engine_that_is_slower_than_any_profile_says(
    tmp_path: Path, loaded: Loading
):
    planning = {
        "policy": "feedback",
        "feedback": {"gain": 0.3},
        "interval_s": 1,
        "demand_window_s": 4,
        "learning": {"mode": "ignore"},
    }
    scenario = small(planning=planning, protection={"penalties": {"enabled": False}})
    async with Fleet(scenario, tmp_path) as fleet, loaded(fleet):
        before = await until(fleet, lambda status: demand(status) > 40)
        assert share(before, "west", "west-gpu") > 0.4
        for engine, replica in fleet.engines:
            if engine == "west-gpu":
                await fleet.fault(engine, replica, slow_factor=3)
        await until(fleet, lambda status: share(status, "west", "west-gpu") < 0.25)
