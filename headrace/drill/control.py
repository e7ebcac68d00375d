"""Drills in which the control plane is away."""

from __future__ import annotations

import asyncio
import signal

from headrace.drill.drill import FRONTEND, NO_CUT, Drill, Figures, Target
from headrace.drill.evidence import Evidence
from headrace.drill.figures import largest_move
from headrace.drill.hands import Hands

_NOTHING = (Target("failed", at_most=0, why="DESIGN §9"), NO_CUT)
_STILL = Target("share_jump", at_most=0.0, why="DESIGN §9: back, no jump in shares")
_LATE = f"{FRONTEND}-late"


async def _kill(hands: Hands) -> None:
    hands.fleet.control.kill(signal.SIGKILL)
    await hands.fleet.control.process.wait()


async def _return(hands: Hands) -> None:
    began = hands.clock()
    await hands.fleet.start_control_plane()
    hands.notes["control_plane_start_s"] = hands.clock() - began


async def _kill_and_start_envoy(hands: Hands) -> None:
    await _kill(hands)
    hands.notes["ready_without_control_plane"] = 0
    hands.spawn(_late_envoy(hands))


async def _late_envoy(hands: Hands) -> None:
    """Start an Envoy that finds no control plane, and note when it serves."""
    envoy = await hands.fleet.start_envoy(FRONTEND, _LATE, timeout_s=None)
    away = not hands.fleet.control.running
    hands.notes["ready_without_control_plane"] = int(away)
    hands.notes["envoy_ready_at"] = hands.clock()
    url = f"http://127.0.0.1:{envoy.ports['public']}/v1/models"
    async with hands.fleet.http.get(url) as answer:
        hands.notes["envoy_status"] = answer.status


async def _return_for_envoy(hands: Hands) -> None:
    await _return(hands)
    back_at = hands.clock()
    async with asyncio.timeout(20):
        while "envoy_status" not in hands.notes:  # noqa: ASYNC110  # set by a task that ends the drill if it fails
            await asyncio.sleep(0.02)
    ready_at = hands.notes.pop("envoy_ready_at") or back_at
    hands.notes["envoy_ready_after_s"] = max(0.0, ready_at - back_at)


def _jump(evidence: Evidence) -> Figures:
    """The largest difference of any share between the last look before and the first looks after."""
    before = evidence.before()
    after = evidence.between(evidence.fault_to, evidence.end)
    if before is None or not after:
        return {"share_jump": None}
    return {
        "share_jump": largest_move(before, after[:1]),
        "largest_share_move": largest_move(before, after),
    }


DRILLS = (
    Drill(
        "control-plane-lost",
        "The control plane is killed with SIGKILL and started again 20 s later.",
        (*_NOTHING, _STILL, Target("largest_share_move", at_most=0.1, why="then only demand's noise moves")),
        _kill,
        _return,
        figures=_jump,
        fault_s=20.0,
        after_s=20.0,
    ),
    Drill(
        "envoy-started-alone",
        "While the control plane is away for 10 s, one more Envoy of a front-end is started.",
        (
            *_NOTHING,
            Target("ready_without_control_plane", at_most=0, why="failures: never ready with nothing"),
            Target("envoy_ready_after_s", at_most=5.0, why="it connects by itself"),
        ),
        _kill_and_start_envoy,
        _return_for_envoy,
        figures=_jump,
        fault_s=10.0,
    ),
)
