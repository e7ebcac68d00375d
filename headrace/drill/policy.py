"""The policy of the drills' fleet: the demo's, with time constants that fit half a minute."""

from __future__ import annotations

from typing import Any

INTERVAL_S = 2.0
DEMAND_WINDOW_S = 10.0
DWELL_S = 3.0
RETURN_S = 10.0
RAMP_S = 10.0
CLASS_HEADER = "x-class"


def quicken(document: dict[str, Any]) -> None:
    """Plan every 2 s instead of 5, smooth demand over 10 s instead of 30, judge outliers after 3 s instead of
    10, give their traffic back over 10 s instead of 60, and new replicas all of theirs after 10 s instead of
    30."""
    document["planning"] |= {"interval_s": INTERVAL_S, "demand_window_s": DEMAND_WINDOW_S}
    protect(document, penalties={"dwell_s": DWELL_S, "return_s": RETURN_S}, ramp={"duration_s": RAMP_S})


def protect(document: dict[str, Any], **sections: dict[str, Any]) -> None:
    """Set fields of the fleet's protection."""
    protection = document.setdefault("protection", {})
    for name, fields in sections.items():
        protection.setdefault(name, {}).update(fields)


def two_classes(document: dict[str, Any]) -> None:
    """A class `batch` below `interactive`, asked for by a header, and some room in every engine."""
    tokens = document["classes"]["interactive"]["output_tokens"]
    document["classes"]["batch"] = {
        "priority": 10,
        "output_tokens": tokens,
        "match": {"header": CLASS_HEADER, "value": "batch"},
    }
    document["listeners"]["public"]["trust_headers"] = True
    document["planning"]["max_utilization"] = 0.85
