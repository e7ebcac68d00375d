"""What can go wrong on purpose, as one immutable value that the admin endpoint replaces."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any


class FaultError(ValueError):
    """A fault request that cannot be carried out; the text names the field and what it should be."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Switches of a fake engine. The defaults are a healthy vLLM."""

    slow_factor: float = 1.0
    """Multiplies every model time; >= 0.01."""
    error_rate: float = 0.0
    """Fraction of requests refused with `error_status`."""
    error_status: int = 500
    inband_error_rate: float = 0.0
    """Fraction of streams that end in an error event inside a 200."""
    hang: bool = False
    """No token leaves the engine any more; health and metrics still answer."""
    refuse: bool = False
    """The port refuses connections (the admin port, if there is one, still answers)."""
    drain: bool = False
    """Report DRAINING, finish what runs, refuse the rest once the control plane acknowledged."""
    crash: bool = False
    """The engine core dies: streams end in an error event, health 503, then the process exits."""
    early_headers: bool = True
    """Response headers leave before the first token, as from vLLM."""
    extra_delay_ms: float = 0.0
    """Added to the round trip of every caller, up to a minute."""
    mute: bool = False
    """No load report leaves the engine: the report stream ends, and none begins until this is lifted."""
    clock_offset_s: float = 0.0
    """How far the engine's clock is ahead of the true one in its reports, up to a day; may be negative."""

    def changed(self, request: Mapping[str, Any]) -> Faults:
        """Return these faults with the fields of `request` replaced; raises FaultError."""
        known = {field.name: field for field in fields(self)}
        for name, value in request.items():
            if name not in known:
                raise FaultError(f"unknown fault {name!r}, expected one of {', '.join(sorted(known))}")
            _check(name, value)
        return replace(self, **request)


def _check(name: str, value: Any) -> None:
    if name == "error_status":
        valid, wanted = type(value) is int and 400 <= value <= 599, "an integer from 400 to 599"
    elif name == "slow_factor":
        valid, wanted = _number(value) and 0.01 <= value <= 1000, "a number from 0.01 to 1000"
    elif name == "extra_delay_ms":
        valid, wanted = _number(value) and 0 <= value <= 60_000, "a number from 0 to 60000"
    elif name == "clock_offset_s":
        valid, wanted = _number(value) and abs(value) <= 86_400, "a number from -86400 to 86400"
    elif name.endswith("_rate"):
        valid, wanted = _number(value) and 0 <= value <= 1, "a number from 0 to 1"
    else:
        valid, wanted = type(value) is bool, "true or false"
    if not valid:
        raise FaultError(f"fault {name} is {value!r}, expected {wanted}")


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
