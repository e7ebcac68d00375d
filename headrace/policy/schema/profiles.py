"""How one replica behaves under load. `{file: path}` is replaced by the file's content before this."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator

from headrace.policy.schema.base import Shape
from headrace.policy.types import Fraction, NonNegative, Positive, fault


class Reference(Shape):
    """The request that a profile was measured with."""

    input_tokens: Positive
    """Prompt length, tokens."""
    output_tokens: Positive
    """Answer length, tokens."""
    prefix_hit: Annotated[float, Field(ge=0, lt=1)] = 0
    """Fraction of the prompt found in the prefix cache."""


class ProfileFields(Shape):
    """What every profile says, for one replica and the reference request."""

    capacity_rps: Positive
    """Reference requests per second that a replica serves within the service levels."""
    reference: Reference | None = None
    """The request it was measured with; needed to turn token counts into work."""
    prefill_share: Fraction = 0.5
    """Part of a reference request's work that is prefill."""
    source: str = ""
    """Where the numbers come from; free text."""
    fit: Mapping[str, Any] = {}
    """Quality of the fit, written by `headrace fit`; shown, not used."""


class Ttft(Shape):
    """TTFT in ms = base + slope · max(0, load - knee) + queue · u/(1 - u), u = load/lambda_max."""

    base: NonNegative
    """Idle time to first token, ms."""
    knee_rps: NonNegative = 0
    """Load at which it begins to rise, requests/s of one replica."""
    slope: NonNegative = 0
    """Rise above the knee, ms per request/s."""
    queue: NonNegative = 0
    """Queueing on the way to lambda_max, ms."""


class ParametricProfile(ProfileFields):
    """TBOT in ms = t0 / (1 - load/lambda_max), as continuous batching gives."""

    t0_ms: NonNegative
    """Time between output tokens of an idle replica, ms."""
    lambda_max_rps: Positive
    """Load at which time between tokens has no bound, requests/s of one replica."""
    ttft_ms: Ttft
    """Time to first token."""


class TablePoint(Shape):
    """One measured load of a replica."""

    load_rps: NonNegative
    """Load, requests/s."""
    ttft_ms: NonNegative
    """Mean time to first token, ms."""
    tbot_ms: NonNegative
    """Mean time between output tokens, ms."""


class TableProfile(ProfileFields):
    """A profile as measured; made monotone and convex by the planner."""

    table: Annotated[tuple[TablePoint, ...], Field(min_length=2, max_length=10_000)]
    """Measured loads, rising."""

    @model_validator(mode="after")
    def _rising(self) -> TableProfile:
        loads = [point.load_rps for point in self.table]
        for low, high in pairwise(loads):
            if high <= low:
                raise fault(f"the table has load_rps {high:g} after {low:g}", "loads that rise")
        return self


def _profile_kind(value: Any) -> str:
    """The kind of a profile, written (validation) or read in (serialisation)."""
    table = "table" in value if isinstance(value, dict) else hasattr(value, "table")
    return "~table" if table else "~parametric"


Profile = Annotated[
    Annotated[ParametricProfile, Tag("~parametric")] | Annotated[TableProfile, Tag("~table")],
    Discriminator(_profile_kind),
]
"""`{file: path}` is replaced by the file's content before validation."""
