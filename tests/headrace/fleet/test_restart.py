"""The control plane comes back: what was in force still is; what was edited meanwhile meets the guards."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from typing import Any

from headrace.demo.fleet import Fleet
from tests.headrace.fleet.small import KEY, edited, until
from tests.headrace.fleet.test_policy_edits import _broken, _drastic, _headrace, _metric

Status = dict[str, Any]


def _longer_interval(document: dict[str, Any]) -> None:
    document["planning"]["interval_s"] = 2


async def _restarted(fleet: Fleet, edit: Callable[[dict[str, Any]], None]) -> tuple[Status, Status]:
    """Stop, edit, start again; returns what was said before, and first thing after."""
    before = await until(fleet, lambda status: status["last_round"] is not None)
    fleet.control.kill(signal.SIGTERM)
    await fleet.control.process.wait()
    fleet.policy_path.write_text(edited(fleet.scenario, edit))
    await fleet.start_control_plane()
    return before, await fleet.api("/api/status")


async def test_an_edit_made_meanwhile_takes_effect(fleet: Fleet):
    before, now = await _restarted(fleet, _longer_interval)
    assert now["policy_hash"] != before["policy_hash"]
    assert (now["policy_error"], now["policy_pending"], now["ready"]) == ("", None, True)
    assert now["shares"] == before["shares"]


async def test_a_drastic_edit_made_meanwhile_is_held_over_every_restart_until_it_is_accepted(fleet: Fleet):
    before, held = await _restarted(fleet, _drastic)
    assert (held["mode"], held["ready"]) == ("held", True)
    assert (held["policy_hash"], held["shares"]) == (before["policy_hash"], before["shares"])
    assert await _metric(fleet, 'headrace_policy_file{state="held"}') == 1
    _, again = await _restarted(fleet, _drastic)
    assert (again["policy_hash"], again["policy_pending"]) == (before["policy_hash"], held["policy_pending"])
    await _headrace(fleet, "policy", "accept", held["policy_pending"]["hash"][:12])
    now = await until(fleet, lambda status: status["policy_pending"] is None)
    assert now["policy_hash"] == held["policy_pending"]["hash"]


async def test_a_policy_broken_meanwhile_is_refused_and_the_last_good_one_stays(fleet: Fleet):
    before, refused = await _restarted(fleet, _broken)
    assert (refused["policy_hash"], refused["shares"]) == (before["policy_hash"], before["shares"])
    assert refused["ready"]
    assert f"{fleet.policy_path}:" in refused["policy_error"]
    assert "atlantis" in refused["policy_error"]
    assert await _metric(fleet, 'headrace_policy_file{state="refused"}') == 1
    fleet.policy_path.write_text(edited(fleet.scenario, _longer_interval))
    mended = await until(fleet, lambda status: not status["policy_error"])
    assert mended["policy_hash"] != before["policy_hash"]


async def test_the_limits_in_force_stay_until_the_first_round(fleet: Fleet):
    await until(fleet, lambda status: bool(status["limits"]["retries"].get("west", {}).get(KEY)))
    fleet.control.kill(signal.SIGTERM)
    await fleet.control.process.wait()
    saved = json.loads((fleet.directory / "state" / "headrace-state.json").read_text())["state"]["limits"]
    limits = await _runtime(fleet)
    await fleet.start_control_plane()
    now = await until(fleet, lambda status: _all_confirmed(status, envoys=2))
    assert now["last_round"] is None
    assert now["limits"] == saved
    assert limits == await _runtime(fleet)
    assert any("min_retry_concurrency" in key for key in limits)


def _all_confirmed(status: Status, envoys: int) -> bool:
    found = [envoy["types"].get("rtds") for envoy in status["envoys"]]
    return len(found) == envoys and all(told and told["waiting_s"] is None for told in found)


async def _runtime(fleet: Fleet) -> dict[str, Any]:
    """Runtime key -> value in the Envoys of both front-ends."""
    pages = await asyncio.gather(*(fleet.envoys[name][0].get("/runtime") for name in ("west", "east")))
    entries = {f"{n}/{key}": item for n, page in enumerate(pages) for key, item in _entries(page)}
    return {key: item["final_value"] for key, item in entries.items()}


def _entries(page: str) -> Any:
    return json.loads(page)["entries"].items()
