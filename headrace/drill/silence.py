"""Drills in which traffic is fine and the signals are not."""

from __future__ import annotations

from headrace.drill.drill import ENGINE, NO_CUT, Drill, Figures, Target
from headrace.drill.evidence import Evidence, Sample
from headrace.drill.figures import largest_move
from headrace.drill.hands import Hands

_HOUR_S = 3600.0
_NOTHING = (Target("failed", at_most=0, why="failures: users see nothing"), NO_CUT)
_HELD = Target("replicas_lost", at_most=0, why="silence is not failure")
_STILL = Target("largest_share_move", at_most=0.03, why="hold")


async def _mute_one(hands: Hands) -> None:
    await hands.fault(ENGINE, mute=True)


async def _speak(hands: Hands) -> None:
    await hands.fault(*hands.fleet.scenario.replicas, mute=False)


async def _mute_all(hands: Hands) -> None:
    await hands.fault(*hands.fleet.scenario.replicas, mute=True)


def _holding(before: Sample, now: Sample) -> bool:
    return now.mode == "holding_stale"


async def _jump(hands: Hands) -> None:
    ahead, behind, *_ = hands.fleet.scenario.replicas
    await hands.fault(ahead, clock_offset_s=_HOUR_S)
    await hands.fault(behind, clock_offset_s=-_HOUR_S)


async def _true_time(hands: Hands) -> None:
    await hands.fault(*hands.fleet.scenario.replicas, clock_offset_s=0.0)


def _held(evidence: Evidence) -> Figures:
    before = evidence.before()
    if before is None:
        return {}
    looks = evidence.between(evidence.fault_from, evidence.end)
    lost = max((before.ready[name] - look.ready[name] for look in looks for name in before.ready), default=0)
    return {"replicas_lost": lost, "largest_share_move": largest_move(before, looks)}


DRILLS = (
    Drill(
        "region-silent",
        "The load reports of one engine stop for 20 s while its traffic flows.",
        (*_NOTHING, _HELD, _STILL),
        _mute_one,
        _speak,
        figures=_held,
        fault_s=20.0,
    ),
    Drill(
        "all-stale",
        "All load reports stop for 20 s while traffic flows.",
        (*_NOTHING, _HELD, _STILL, Target("react_s", at_most=10.0, why="failures: mode holding_stale")),
        _mute_all,
        _speak,
        _holding,
        _held,
        fault_s=20.0,
    ),
    Drill(
        "clock-jump",
        "The clocks of one engine's reporters jump an hour ahead, those of another an hour back.",
        (*_NOTHING, _HELD, _STILL),
        _jump,
        _true_time,
        figures=_held,
    ),
)
