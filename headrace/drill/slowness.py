"""Drills in which an engine is there but does not do its work, or is far away."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from headrace.demo.fake_engine.engine import REPORT_SPAN_S
from headrace.demo.load_records import Record
from headrace.drill.drill import ENGINE, FRONTEND, NO_FAILURE, ROOM_TO_RETRY, Drill, Figures, Target
from headrace.drill.evidence import Evidence, Sample, arrived
from headrace.drill.figures import engine_error, largest_move
from headrace.drill.hands import Hands
from headrace.drill.policy import DWELL_S, INTERVAL_S

_LESS = 0.05
_DELAY_MS = 300.0
_EDIT_AFTER_S = 5.0
_FIRST_BYTE_S = 5.0


def _share_falls(before: Sample, now: Sample) -> bool:
    return now.share(FRONTEND, ENGINE) < before.share(FRONTEND, ENGINE) - _LESS


def _no_replica(before: Sample, now: Sample) -> bool:
    return now.ready[ENGINE] == 0 or now.share(FRONTEND, ENGINE) == 0.0


async def _slow(hands: Hands) -> None:
    await hands.fault(ENGINE, slow_factor=3.0)


async def _fast(hands: Hands) -> None:
    await hands.fault(ENGINE, slow_factor=1.0)


def _return(evidence: Evidence) -> Figures:
    """How far the share of the hurt engine fell, what of it came back, and how far it went beyond."""
    before = evidence.before()
    if before is None:
        return {}
    calm = before.share(FRONTEND, ENGINE)
    hurt = [s.share(FRONTEND, ENGINE) for s in evidence.between(evidence.fault_from, evidence.fault_to)]
    after = [s.share(FRONTEND, ENGINE) for s in evidence.between(evidence.fault_to, evidence.end)]
    return {
        "share_calm": calm,
        "share_lowest": min(hurt, default=None),
        "share_end": after[-1] if after else None,
        "returned": after[-1] / calm if after and calm else None,
        "overshoot": max(0.0, max(after) - calm) if after else None,
    }


async def _answer_500(hands: Hands) -> None:
    await hands.fault(ENGINE, error_rate=1.0, error_status=500)


async def _answer_again(hands: Hands) -> None:
    await hands.fault(ENGINE, error_rate=0.0)


def _late_errors(evidence: Evidence) -> Figures:
    """Errors in the second half of the fault, per request."""
    half = (evidence.fault_from + evidence.fault_to) / 2
    late = arrived(evidence.all_records(), half, evidence.fault_to)
    errors = sum(engine_error(record) for record in late)
    return {"late_error_ratio": errors / len(late) if late else None, **_return(evidence)}


async def _hang(hands: Hands) -> None:
    await hands.fault(ENGINE, hang=True)


async def _go_on(hands: Hands) -> None:
    await hands.fault(ENGINE, hang=False)


async def _freeze(hands: Hands) -> None:
    hands.signal(ENGINE, signal.SIGSTOP)


async def _thaw(hands: Hands) -> None:
    hands.signal(ENGINE, signal.SIGCONT)


def _first_byte_limit(document: dict[str, Any]) -> None:
    for model in document["models"].values():
        model["first_byte_timeout_s"] = _FIRST_BYTE_S


def _late_failures(evidence: Evidence) -> Figures:
    """Failures among requests that arrived in the last third of the fault, per request."""
    start = evidence.fault_from + (evidence.fault_to - evidence.fault_from) * 2 / 3
    late: list[Record] = arrived(evidence.all_records(), start, evidence.fault_to)
    failed = sum(record.failure is not None for record in late)
    return {"late_failure_ratio": failed / len(late) if late else None, **_return(evidence)}


async def _delay(hands: Hands) -> None:
    await hands.fault(ENGINE, extra_delay_ms=_DELAY_MS)
    await asyncio.sleep(_EDIT_AFTER_S)
    hands.edit_policy(_farther)


def _far_moves_allowed(document: dict[str, Any]) -> None:
    """The edit moves a third of all demand, which the guards would hold."""
    document["planning"]["guards"] = {"hold_if_moves_over": 0.9}


def _farther(document: dict[str, Any]) -> None:
    same = document["network"].get("same_region_rtt_ms", 1)
    document["network"]["rtt_ms"].setdefault(FRONTEND, {})[ENGINE] = same + _DELAY_MS


async def _undelay(hands: Hands) -> None:
    await hands.fault(ENGINE, extra_delay_ms=0.0)


def _step_answer(evidence: Evidence) -> Figures:
    before = evidence.before()
    if before is None:
        return {}
    edited_at = evidence.fault_from + _EDIT_AFTER_S
    return {
        "share_moved_before_edit": largest_move(before, evidence.between(evidence.fault_from, edited_at)),
        "share_moved_after_edit": largest_move(before, evidence.between(edited_at, evidence.fault_to)),
    }


DRILLS = (
    Drill(
        "engine-slow",
        "All replicas of an engine take three times as long for everything, for 20 s.",
        (
            Target(
                "react_s",
                at_most=REPORT_SPAN_S + DWELL_S + 2 * INTERVAL_S,
                why="issue: within two rounds, once it shows in reports and the dwell is over",
            ),
            Target("returned", at_least=0.9, why="issue: its share returns, over 10 s once it is well"),
            Target("overshoot", at_most=0.05, why="issue: without overshoot"),
            Target("failed", at_most=0, why="slow is not failed"),
        ),
        _slow,
        _fast,
        _share_falls,
        _return,
        fault_s=20.0,
        after_s=45.0,
    ),
    Drill(
        "engine-500",
        "All replicas of an engine answer 500 at once, for 14 s.",
        (
            Target("without_headers", at_most=0, why="DESIGN §9"),
            Target("late_error_ratio", at_most=0.02, why="failures: none or one slow answer"),
        ),
        _answer_500,
        _answer_again,
        _share_falls,
        _late_errors,
        fault_s=14.0,
    ),
    Drill(
        "engine-hanging",
        "An engine gives no token any more; health checks and reports go on, headers of streams come early.",
        (
            Target("late_failure_ratio", at_most=0.02, why="failures: found by sent against reported"),
            Target("react_s", at_most=15.0, why="10 s of dwell, two rounds and a flush"),
            ROOM_TO_RETRY,
        ),
        _hang,
        _go_on,
        _no_replica,
        _late_failures,
        amend=_first_byte_limit,
        fault_s=30.0,
    ),
    Drill(
        "engine-frozen",
        "The processes of an engine are stopped (SIGSTOP): connections open, nothing is answered, nothing "
        "reported. The first-byte limit is 5 s.",
        (
            NO_FAILURE,
            ROOM_TO_RETRY,
            Target("late_failure_ratio", at_most=0.0, why="retried after the first-byte limit"),
        ),
        _freeze,
        _thaw,
        _no_replica,
        _late_failures,
        amend=_first_byte_limit,
        fault_s=24.0,
    ),
    Drill(
        "network-step",
        "The way to an engine takes 300 ms more. Loopback connects at once all the same, so the Envoys' "
        "connect times cannot show it; after 5 s an operator writes it into the policy.",
        (
            Target("failed", at_most=0, why="slow is not failed"),
            Target("added_p50_ms", at_most=_DELAY_MS * 1.1, why="never more than the step itself"),
            Target("react_s", at_most=_EDIT_AFTER_S + 2 * INTERVAL_S, why="two rounds after the edit"),
            Target("reversals", at_most=1, why="no oscillation"),
        ),
        _delay,
        _undelay,
        _share_falls,
        _step_answer,
        amend=_far_moves_allowed,
        fault_s=14.0,
    ),
)
