"""The policy file is edited while the fleet runs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from headrace.demo.fleet import Fleet
from tests.headrace.fleet.conftest import Loading
from tests.headrace.fleet.small import cut, demand, edited, failures, share, small, until


def _less_capacity(document: dict[str, Any]) -> None:
    """From 90 to 50 requests/s: 22 % of the model's capacity."""
    document["engines"]["west-gpu"]["max_utilization"] = 0.5


def _drastic(document: dict[str, Any]) -> None:
    document["engines"]["west-gpu"]["max_utilization"] = 0.1


def _drained(document: dict[str, Any]) -> None:
    document["engines"]["west-gpu"]["state"] = "drain"


def _broken(document: dict[str, Any]) -> None:
    document["engines"]["west-gpu"]["region"] = "atlantis"


async def test_changed_capacity_shows_in_the_shares_and_fails_nothing(tmp_path: Path, loaded: Loading):
    far = small(network={"rtt_ms": {"west": {"east": 400}}})
    async with Fleet(far, tmp_path, early_headers=False) as fleet, loaded(fleet) as generator:
        generator.set_rate("west", 60)
        await until(fleet, lambda status: demand(status) > 75 and share(status, "west", "west-gpu") > 0.95)
        fleet.policy_path.write_text(edited(fleet.scenario, _less_capacity))
        await until(fleet, lambda status: share(status, "west", "east-gpu") > 0.1)
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


async def test_a_drastic_edit_is_held_until_it_is_accepted(fleet: Fleet):
    before = await fleet.api("/api/status")
    fleet.policy_path.write_text(edited(fleet.scenario, _drastic))
    held = await until(fleet, lambda status: status["policy_pending"] is not None)
    assert held["mode"] == "held"
    assert held["policy_hash"] == before["policy_hash"]
    assert "capacity" in held["policy_pending"]["reasons"][0]
    assert {
        "path": "engines.west-gpu.max_utilization",
        "old": "0.9",
        "new": "0.1",
    } in held["policy_pending"]["changes"]
    shown = await _headrace(fleet, "policy", "show")
    assert f"headrace policy accept {held['policy_pending']['hash'][:12]}" in shown
    await _headrace(fleet, "policy", "accept", held["policy_pending"]["hash"][:12])
    now = await until(fleet, lambda status: status["policy_pending"] is None)
    assert now["policy_hash"] == held["policy_pending"]["hash"]


async def test_an_engine_that_an_edit_drains_hands_its_traffic_over_without_a_failure(
    fleet: Fleet, loaded: Loading
):
    async with loaded(fleet) as generator:
        await until(fleet, lambda status: demand(status) > 40 and share(status, "west", "west-gpu") > 0.95)
        fleet.policy_path.write_text(edited(fleet.scenario, _drained))
        held = await until(fleet, lambda status: status["policy_pending"] is not None)
        await _headrace(fleet, "policy", "accept", held["policy_pending"]["hash"][:12])
        await until(fleet, lambda status: share(status, "west", "east-gpu") == 1.0)
        before = await fleet.stats("west-gpu", "r1")
        await asyncio.sleep(2)  # more load, none of it may go there
        after = await fleet.stats("west-gpu", "r1")
    assert failures(generator) == cut(generator) == []
    assert after["paths"]["/v1/chat/completions"] - before["paths"]["/v1/chat/completions"] <= 2


async def test_a_held_edit_that_is_taken_back_waits_no_more(fleet: Fleet):
    fleet.policy_path.write_text(edited(fleet.scenario, _drastic))
    await until(fleet, lambda status: status["policy_pending"] is not None)
    fleet.policy_path.write_text(edited(fleet.scenario, lambda document: None))
    await until(fleet, lambda status: status["policy_pending"] is None)


async def test_an_operator_holds_and_releases_a_penalty(fleet: Fleet):
    held = ("penalty", "hold", "west-gpu/r1", "--to", "0.25", "--reason", "fan noise", "--for", "15m")
    await _headrace(fleet, *held)
    seen = await until(fleet, lambda status: _replica(status, "r1")["penalty"] == 0.25)
    assert "fan noise" in _replica(seen, "r1")["penalty_reason"]
    assert "west-gpu/r1" in await _headrace(fleet, "penalty", "list")
    await _headrace(fleet, "penalty", "release", "west-gpu/r1")
    await until(fleet, lambda status: _replica(status, "r1")["penalty"] == 1.0)


def _replica(status: dict[str, Any], name: str) -> dict[str, Any]:
    return next(r for r in status["engines"]["west-gpu"]["replicas"] if r["replica"] == name)


async def _headrace(fleet: Fleet, *arguments: str) -> str:
    """Run a sub-command against the fleet's control plane and return what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace", *arguments[:2]),
        *("--admin", f"http://127.0.0.1:{fleet.ports['admin']}", *arguments[2:]),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    text, _ = await process.communicate()
    assert process.returncode == 0, text.decode()
    return text.decode()


async def _metric(fleet: Fleet, series: str) -> float:
    async with fleet.http.get(f"http://127.0.0.1:{fleet.ports['metrics']}/metrics") as answer:
        text = await answer.text()
    return next(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(series))
