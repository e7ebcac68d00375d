"""Drills in which replicas are killed, drained or keep coming and going."""

from __future__ import annotations

import asyncio
import signal

from headrace.drill.drill import (
    ENGINE,
    FRONTEND,
    NO_CUT,
    NO_FAILURE,
    ROOM_TO_RETRY,
    Drill,
    Figures,
    Stream,
    Target,
)
from headrace.drill.evidence import Evidence, Sample
from headrace.drill.figures import largest_move
from headrace.drill.hands import Hands

_FLAP_DOWN_S = 1.0
_FLAP_UP_S = 3.0


async def _kill_one(hands: Hands) -> None:
    hands.signal(ENGINE, signal.SIGKILL, "r1")


async def _restart_one(hands: Hands) -> None:
    await hands.restart(ENGINE, "r1")


def _one_less(before: Sample, now: Sample) -> bool:
    return now.ready[ENGINE] < before.ready[ENGINE]


async def _kill_all(hands: Hands) -> None:
    hands.signal(ENGINE, signal.SIGKILL)


async def _restart_all(hands: Hands) -> None:
    await hands.restart(ENGINE)


def _nothing_left(before: Sample, now: Sample) -> bool:
    return now.share(FRONTEND, ENGINE) == 0.0


async def _drain(hands: Hands) -> None:
    await hands.fault(ENGINE, drain=True)


async def _undrain(hands: Hands) -> None:
    await hands.fault(ENGINE, drain=False)


async def _drain_most(hands: Hands) -> None:
    await hands.fault(*list(hands.fleet.scenario.replicas)[:2], drain=True)


async def _undrain_most(hands: Hands) -> None:
    await hands.fault(*list(hands.fleet.scenario.replicas)[:2], drain=False)


def _kept(evidence: Evidence) -> Figures:
    """How many of all replicas stayed in use at the worst moment of the wave."""
    looks = evidence.between(evidence.fault_from, evidence.fault_to)
    lowest = min((sum(look.ready.values()) for look in looks), default=0)
    return {"kept_in_use": lowest / sum(evidence.replicas.values())}


async def _flap(hands: Hands) -> None:
    while True:
        hands.signal(ENGINE, signal.SIGKILL, "r1")
        await asyncio.sleep(_FLAP_DOWN_S)
        await hands.restart(ENGINE, "r1")
        hands.notes["flaps"] = (hands.notes.get("flaps") or 0) + 1
        await asyncio.sleep(_FLAP_UP_S)


def _moved(evidence: Evidence) -> Figures:
    before = evidence.before()
    looks = evidence.between(evidence.fault_from, evidence.end)
    return {"largest_share_move": largest_move(before, looks) if before else None}


DRILLS = (
    Drill(
        "replica-killed",
        "One of five replicas is killed with SIGKILL and started again 12 s later.",
        (NO_FAILURE, Target("react_s", at_most=1.0, why="its EDS removal needs the lost stream and a probe")),
        _kill_one,
        _restart_one,
        _one_less,
    ),
    Drill(
        "engine-killed",
        "All five replicas of an engine are killed at once with SIGKILL and started again 15 s later.",
        (
            NO_FAILURE,
            ROOM_TO_RETRY,
            Target("react_s", at_most=3.0, why="replanned at once"),
            Target("recover_s", at_most=5.0, why="it comes back in steps; users see none of them"),
        ),
        _kill_all,
        _restart_all,
        _nothing_left,
        fault_s=15.0,
        after_s=12.0,
    ),
    Drill(
        "engine-draining",
        "All replicas of an engine report DRAINING within a second, finish what runs and refuse new requests "
        "once acknowledged.",
        (NO_FAILURE, NO_CUT, Target("failed", at_most=0, why="failures: users see nothing")),
        _drain,
        _undrain,
        _nothing_left,
    ),
    Drill(
        "draining-wave",
        "Ten of fourteen replicas, of two engines, report DRAINING at once while they go on serving: a "
        "mistake, not a wish.",
        (
            Target("failed", at_most=0, why="failures: users see nothing"),
            Target("kept_in_use", at_least=0.45, why="signals: more than half at once is held and alarmed"),
        ),
        _drain_most,
        _undrain_most,
        figures=_kept,
        streams=(Stream("all", calm=0.4),),
    ),
    Drill(
        "flapping-replica",
        "One of five replicas is killed, started again a second later, and so on for 24 s.",
        (NO_FAILURE, Target("reversals", at_most=1, why="issue: no oscillation of shares")),
        _flap,
        figures=_moved,
        fault_s=24.0,
    ),
)
