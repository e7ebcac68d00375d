"""A short drill on a small fleet of real processes."""

from __future__ import annotations

import signal

from headrace.drill.drill import NO_FAILURE, Drill, Stream
from headrace.drill.evidence import Sample
from headrace.drill.hands import Hands
from headrace.drill.judge import judge
from headrace.drill.stage import StageConfig, run_drill
from tests.headrace.fleet.small import small


async def _kill(hands: Hands) -> None:
    hands.signal("west-gpu", signal.SIGKILL, "r1")


async def _restart(hands: Hands) -> None:
    await hands.restart("west-gpu", "r1")


def _lost(before: Sample, now: Sample) -> bool:
    return now.ready["west-gpu"] < before.ready["west-gpu"]


KILL = Drill(
    "small-kill",
    "one replica is killed while there is more demand",
    (NO_FAILURE,),
    _kill,
    _restart,
    _lost,
    streams=(Stream("steady", calm=0.1), Stream("more", calm=0.0, fault=0.2)),
    warm_s=2.0,
    calm_s=2.0,
    fault_s=3.0,
    after_s=1.0,
)


async def test_a_drill_hurts_the_fleet_as_described_and_comes_to_a_verdict():
    found = await run_drill(KILL, StageConfig(scenario=lambda divisor: small()))
    assert {found.fault_from <= r.arrived_at <= found.fault_to for r in found.records["more"]} == {True}
    assert {r.arrived_at < found.fault_from for r in found.records["steady"]} == {True, False}
    verdict = judge(KILL, found)
    assert verdict.passed, verdict.to_json()
    assert verdict.figures["react_s"] is not None
    assert verdict.figures["retried"] is not None
