"""Short drills on a small fleet of real processes."""

from __future__ import annotations

import signal

from headrace.drill.drill import Drill, Stream
from headrace.drill.evidence import Evidence, Sample
from headrace.drill.hands import Hands
from headrace.drill.judge import judge
from headrace.drill.losses import NO_FAILURE
from headrace.drill.stage import StageConfig, run_drill
from tests.headrace.fleet.small import small

CONFIG = StageConfig(scenario=lambda divisor: small())


async def _kill(hands: Hands) -> None:
    hands.signal("west-gpu", signal.SIGKILL, "r1")


async def _restart(hands: Hands) -> None:
    await hands.restart("west-gpu", "r1")


def _lost(before: Sample, now: Sample) -> bool:
    return now.ready["west-gpu"] < before.ready["west-gpu"]


async def test_a_killed_replica_is_drilled_to_a_verdict():
    drill = Drill(
        "small-kill",
        "one replica is killed",
        (NO_FAILURE,),
        _kill,
        _restart,
        _lost,
        streams=(Stream("all", calm=0.2),),
        warm_s=2.0,
        calm_s=2.0,
        fault_s=3.0,
        after_s=2.0,
    )
    verdict = judge(drill, await run_drill(drill, CONFIG))
    assert verdict.passed, verdict.to_json()
    assert verdict.figures["requests"] > 50
    assert verdict.figures["react_s"] is not None
    assert verdict.figures["retried"] is not None


async def test_the_rates_of_a_stream_hold_in_the_fault_alone():
    drill = Drill(
        "small-demand",
        "nothing but a change of demand",
        (),
        streams=(Stream("steady", calm=0.1), Stream("more", calm=0.0, fault=0.2)),
        warm_s=2.0,
        calm_s=2.0,
        fault_s=3.0,
        after_s=1.0,
    )
    found: Evidence = await run_drill(drill, CONFIG)
    assert len(found.records["steady"]) > 60
    assert len(found.records["more"]) > 60
    assert {found.fault_from <= r.arrived_at <= found.fault_to for r in found.records["more"]} == {True}
