"""What a drill is: a frozen description of the fleet, the load, the fault and the targets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from headrace.drill.evidence import Evidence, Sample

if TYPE_CHECKING:
    from headrace.drill.hands import Hands

Figures = dict[str, float | None]
"""Name -> number; None where it could not be seen (a reaction that never came)."""

ENGINE = "eu-west-gpu"
"""The engine that most drills hurt: it stands where demand is highest."""
FRONTEND = "eu-west"


@dataclass(frozen=True, slots=True)
class Stream:
    """A part of the load, sent to every front-end in the demo's proportions."""

    name: str
    calm: float = 0.5
    """Its rate before and after the fault, as a fraction of the fleet's nominal capacity."""
    fault: float | None = None
    """Its rate while the fault lasts, None for the same."""
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on one figure; a figure that is None misses it."""

    figure: str
    at_most: float | None = None
    at_least: float | None = None
    why: str = ""
    """Where the bound comes from."""

    def met(self, value: float | None) -> bool:
        """Whether `value` keeps the bound."""
        if value is None:
            return False
        return (self.at_most is None or value <= self.at_most) and (
            self.at_least is None or value >= self.at_least
        )

    def __str__(self) -> str:
        if self.at_most is not None:
            return f"{self.figure} ≤ {self.at_most:g}"
        return f"{self.figure} ≥ {self.at_least:g}"


def _unchanged(document: dict[str, Any]) -> None:
    pass


async def nothing(hands: Hands) -> None:
    """Do nothing."""


def no_figures(evidence: Evidence) -> Figures:
    """Add nothing to the usual figures."""
    return {}


@dataclass(frozen=True, slots=True)
class Drill:
    """One drill. Its times are seconds: warm-up, calm, the fault, and after it."""

    name: str
    what: str
    """What is done to the fleet, in a sentence."""
    targets: tuple[Target, ...]
    inflict: Callable[[Hands], Awaitable[None]] = nothing
    """Hurts the fleet; cancelled when the fault's time is over."""
    lift: Callable[[Hands], Awaitable[None]] = nothing
    """Ends the fault."""
    reacted: Callable[[Sample, Sample], bool] | None = None
    """Whether the fleet has reacted, from the last look before the fault and a look since."""
    figures: Callable[[Evidence], Figures] = no_figures
    """Figures beyond the usual ones."""
    streams: tuple[Stream, ...] = (Stream("all"),)
    amend: Callable[[dict[str, Any]], None] = _unchanged
    """Changes the policy, in place."""
    early_headers: bool = True
    """Engines send a stream's headers before its first token, as vLLM does."""
    warm_s: float = 10.0
    """Least time of load before the calm phase."""
    calm_s: float = 10.0
    fault_s: float = 12.0
    after_s: float = 10.0

    @property
    def length_s(self) -> float:
        """Seconds of all three phases."""
        return self.calm_s + self.fault_s + self.after_s


NO_FAILURE = Target("without_headers", at_most=0, why="DESIGN §9")
"""No request failed for which no engine had sent response headers."""
ROOM_TO_RETRY = Target("retries_refused", at_most=0, why="data plane: the limit covers the loss of an engine")
"""No retry was refused by its limit; what was refused so shows as 429, not as failed."""
NO_CUT = Target("cut", at_most=0, why="failures: users see nothing")
