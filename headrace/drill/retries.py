"""The retry storm, under the limits that follow the load, under a fixed one, and under none."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from headrace.drill.drill import Drill, Figures, Stream, Target
from headrace.drill.evidence import Evidence
from headrace.drill.hands import Hands
from headrace.drill.policy import protect

_STATIC = 10
_NONE = 100_000
_BUSY = 0.873
"""Of nominal capacity: 90 % of what may be planned with."""


async def _fail_some(hands: Hands) -> None:
    await hands.fault(*hands.fleet.scenario.replicas, error_rate=0.3, error_status=503)


async def _fail_none(hands: Hands) -> None:
    await hands.fault(*hands.fleet.scenario.replicas, error_rate=0.0)


def _storm(evidence: Evidence) -> Figures:
    looks = [c for c in evidence.counters if evidence.fault_from <= c.at < evidence.fault_to]
    rates = [
        (after.retries - before.retries) / (after.at - before.at)
        for before, after in pairwise(looks)
        if after.at > before.at
    ]
    limits = [c.largest_limit for c in looks if c.largest_limit is not None]
    return {"peak_retries_per_s": max(rates, default=None), "largest_limit": max(limits, default=None)}


def _limited(limit: int, document: dict[str, Any]) -> None:
    protect(document, retries={"limit": limit})


_STORM = Drill(
    "retry-storm",
    "At 90 % of plannable capacity every engine answers 30 % of requests with 503 for 20 s; retry limits "
    "follow the load.",
    (
        Target("recover_s", at_most=10.0, why="issue: normal within 10 s of the storm's end"),
        Target("attempts", at_most=1.35, why="1.3 are the errors themselves; more would feed the storm"),
    ),
    _fail_some,
    _fail_none,
    figures=_storm,
    streams=(Stream("all", calm=_BUSY),),
    calm_s=12.0,
    fault_s=20.0,
    after_s=16.0,
)

DRILLS = (
    _STORM,
    replace(
        _STORM,
        name="retry-storm-static",
        what=f"The same with a fixed limit of {_STATIC} retries in flight per Envoy, key and engine.",
        targets=(),
        amend=partial(_limited, _STATIC),
    ),
    replace(
        _STORM,
        name="retry-storm-unlimited",
        what="The same without a limit.",
        targets=(),
        amend=partial(_limited, _NONE),
    ),
)
