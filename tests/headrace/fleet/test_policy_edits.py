"""The policy file is edited while the fleet runs."""

from __future__ import annotations

from typing import Any

from headrace.demo.fleet import Fleet
from tests.headrace.fleet.conftest import Loading
from tests.headrace.fleet.small import cut, demand, edited, failures, share, until


def _less_capacity(document: dict[str, Any]) -> None:
    document["engines"]["west-gpu"]["max_utilization"] = 0.1


def _broken(document: dict[str, Any]) -> None:
    document["engines"]["west-gpu"]["region"] = "atlantis"


async def test_changed_capacity_shows_in_the_shares_and_fails_nothing(fleet: Fleet, loaded: Loading):
    async with loaded(fleet) as generator:
        await until(fleet, lambda status: demand(status) > 40 and share(status, "west", "west-gpu") > 0.95)
        fleet.policy_path.write_text(edited(fleet.scenario, _less_capacity))
        await until(fleet, lambda status: share(status, "west", "east-gpu") > 0.5)
    assert failures(generator) == cut(generator) == []


async def test_a_broken_edit_changes_nothing_and_is_reported(fleet: Fleet):
    before = await fleet.api("/api/status")
    fleet.policy_path.write_text(edited(fleet.scenario, _broken))
    refused = await until(fleet, lambda status: bool(status["policy_error"]))
    assert "atlantis" in refused["policy_error"]
    assert f"{fleet.policy_path}:" in refused["policy_error"]
    assert refused["policy_hash"] == before["policy_hash"]
    assert refused["shares"] == before["shares"]
    assert await _metric(fleet, 'headrace_policy_reloads_total{result="refused"}') == 1
    fleet.policy_path.write_text(edited(fleet.scenario, lambda document: None))
    await until(fleet, lambda status: not status["policy_error"])


async def _metric(fleet: Fleet, series: str) -> float:
    async with fleet.http.get(f"http://127.0.0.1:{fleet.ports['metrics']}/metrics") as answer:
        text = await answer.text()
    return next(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(series))
