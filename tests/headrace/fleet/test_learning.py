"""Engines that are slower than their profile: what is learned is planned with, unless it is frozen."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from headrace.demo.fleet import Fleet
from headrace.demo.scenario import Scenario
from tests.headrace.fleet.conftest import Loading
from tests.headrace.fleet.small import answered, demand, small, until

SLOWER = 1.3


def slow_to_tell() -> Scenario:
    """The small fleet with a long first token, quick to learn, with one engine's profile frozen."""
    scenario = small(planning={"interval_s": 1, "demand_window_s": 4, "learning": {"half_life_s": 5}})
    document: Any = scenario.document
    document["profiles"]["gpu"]["ttft_ms"]["base"] = 100
    document["engines"]["east-gpu"]["learning"] = "frozen"
    return scenario


def learned_tbot(status: dict[str, Any]) -> float:
    """What plans use for west-gpu."""
    return float(status["engines"]["west-gpu"]["learning"]["used"]["tbot_factor"])


async def ttft_errors(fleet: Fleet) -> dict[str, Any]:
    """engine -> planned less reported TTFT, ms; with the status of that moment."""
    status, plan = await fleet.api("/api/status"), await fleet.api("/api/plan")
    errors = {}
    for engine, planned in plan["engines"].items():
        reported = [r["signals"]["ttft_mean_ms"] for r in status["engines"][engine]["replicas"]]
        errors[engine] = abs(planned["ttft_ms"] - sum(reported) / len(reported))
    return {"errors": errors, "status": status}


async def test_what_is_learned_is_planned_with_unless_frozen_and_survives_a_restart(
    tmp_path: Path, loaded: Loading
):
    async with Fleet(slow_to_tell(), tmp_path, early_headers=False) as fleet, loaded(fleet):
        for engine, replica in fleet.engines:
            await fleet.fault(engine, replica, slow_factor=SLOWER)
        await until(fleet, lambda status: demand(status) > 40 and learned_tbot(status) > 1.15)
        # Cached prefixes make the first token come sooner than the profile says, on both engines alike.
        found = await answered(
            lambda: ttft_errors(fleet),
            lambda now: now["errors"]["west-gpu"] < 0.5 * now["errors"]["east-gpu"],
        )
        frozen = found["status"]["engines"]["east-gpu"]["learning"]
        assert frozen["used"] == {"tbot_factor": 1.0, "load_factor": 1.0, "ttft_offset_ms": 0.0}
        assert frozen["paused"] == "frozen by the policy"

        fleet.control.kill(signal.SIGTERM)
        await fleet.control.process.wait()
        await fleet.start_control_plane()
        again = await until(fleet, lambda status: status["engines"]["west-gpu"]["learning"] is not None)
        assert learned_tbot(again) > 1.1
        assert all(r["ramp"] == 1.0 for engine in again["engines"].values() for r in engine["replicas"])


async def test_a_new_replica_ramps_beside_the_others_and_a_fleet_that_starts_does_not(
    tmp_path: Path, loaded: Loading
):
    scenario = small(protection={"ramp": {"duration_s": 3, "start": 0.2}})
    async with Fleet(scenario, tmp_path, early_headers=False) as fleet, loaded(fleet):
        seen: list[dict[str, float]] = []

        def ramps(status: dict[str, Any]) -> dict[str, float]:
            seen.append({r["replica"]: r["ramp"] for r in status["engines"]["west-gpu"]["replicas"]})
            return seen[-1]

        await until(fleet, lambda status: len(ramps(status)) == 2 and demand(status) > 50)
        assert {part for parts in seen for part in parts.values()} <= {1.0}
        await fleet.start_engine("west-gpu", "r3")
        first = await until(fleet, lambda status: ramps(status).get("r3", 1.0) < 1.0)
        assert first["engines"]["west-gpu"]["capacity_rps"] is not None
        await until(fleet, lambda status: ramps(status).get("r3") == 1.0)
        parts = [parts["r3"] for parts in seen if "r3" in parts and parts["r3"] < 1.0]
    assert parts == sorted(parts)
    assert 0.2 <= parts[0] < 0.5
