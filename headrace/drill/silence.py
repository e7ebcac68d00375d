"""Drills in which traffic is fine and the signals are not."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from headrace.drill.drill import ENGINE, NO_CUT, Drill, Figures, Target
from headrace.drill.evidence import Destination, Evidence, Sample
from headrace.drill.figures import largest_move
from headrace.drill.hands import Hands

_HOUR_S = 3600.0
_NOTHING = (Target("failed", at_most=0, why="failures: users see nothing"), NO_CUT)
_HELD = Target("replicas_lost", at_most=0, why="silence is not failure")
_STILL = Target("largest_share_move", at_most=0.0, why="failures: hold the last snapshot")
_STEADY = Target("share_drift", at_most=0.1, why="planned on, as before: only demand's noise moves shares")


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
    calm, hurt = (
        mean_shares(evidence.between(start, stop))
        for start, stop in (
            (evidence.calm_from, evidence.fault_from),
            (evidence.fault_from, evidence.fault_to),
        )
    )
    return {
        "replicas_lost": lost,
        "largest_share_move": largest_move(before, looks),
        "share_drift": max((abs(hurt.get(n, 0.0) - calm.get(n, 0.0)) for n in {*calm, *hurt}), default=0.0),
    }


def mean_shares(samples: Sequence[Sample]) -> dict[Destination, float]:
    """Shares over a while."""
    names = {name for sample in samples for name in sample.shares}
    return {name: fmean(sample.shares.get(name, 0.0) for sample in samples) for name in names}


DRILLS = (
    Drill(
        "region-silent",
        "The load reports of one engine stop for 20 s while its traffic flows.",
        (*_NOTHING, _HELD, _STEADY),
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
        (*_NOTHING, _HELD, _STEADY),
        _jump,
        _true_time,
        figures=_held,
    ),
)
