"""Drills on what sessions do to single replicas."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from headrace.demo.load import SESSION_HEADER
from headrace.drill.drill import NO_CUT, Drill, Figures, Stream, Target
from headrace.drill.evidence import Evidence, arrived
from headrace.drill.figures import mean_e2e_ms

_BALANCE_PERCENT = 125
_SETTLE_S = 4.0


def _balanced(document: dict[str, Any]) -> None:
    defaults = document.setdefault("defaults", {}).setdefault("engine", {})
    defaults.setdefault("protection", {})["hash"] = {"balance_factor": _BALANCE_PERCENT}


def _spread(evidence: Evidence) -> Figures:
    """The busiest replica over its engine's mean, at the worst engine; what the hot key did to the others."""
    start = evidence.fault_from + _SETTLE_S
    hurt = arrived(evidence.all_records(), start, evidence.fault_to)
    counts: dict[str, Counter[str]] = {}
    for record in hurt:
        if record.engine and record.replica:
            counts.setdefault(record.engine, Counter())[record.replica] += 1
    busiest = max(
        (max(found.values()) * evidence.replicas[engine] / found.total() for engine, found in counts.items()),
        default=None,
    )
    others = evidence.records["others"]
    calm = mean_e2e_ms(arrived(others, evidence.calm_from, evidence.fault_from))
    during = mean_e2e_ms(arrived(others, start, evidence.fault_to))
    hot = mean_e2e_ms(arrived(evidence.records["hot"], start, evidence.fault_to))
    return {
        "busiest_replica": busiest,
        "others_ratio": during / calm if calm and during else None,
        "hot_mean_ms": hot,
        "others_mean_ms": during,
    }


_HOT = Drill(
    "hot-session",
    f"One session is 30 % of a class for 16 s; bounded load (hash.balance_factor {_BALANCE_PERCENT}).",
    (
        Target("failed", at_most=0, why="failures: only that replica is slow"),
        NO_CUT,
        Target("busiest_replica", at_most=1.75, why="1.25 by the bound, which is coarse for few requests"),
        Target("others_ratio", at_most=1.25, why="failures: bounded load spreads it"),
    ),
    figures=_spread,
    streams=(
        Stream("others", calm=0.6, fault=0.42),
        Stream("hot", calm=0.0, fault=0.18, headers={SESSION_HEADER: "hot"}),
    ),
    amend=_balanced,
    fault_s=16.0,
)

DRILLS = (
    _HOT,
    replace(
        _HOT,
        name="hot-session-unbounded",
        what="The same without a bound, for comparison.",
        targets=(),
        amend=lambda document: None,
    ),
)
