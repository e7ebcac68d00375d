"""How shares are computed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headrace.policy.schema.base import Shape
from headrace.policy.types import Fraction, MaxUtilization, NonNegative, Positive, PositiveFraction

PolicyName = Literal[
    "global", "round_robin", "nearest", "local", "capacity_weighted", "waterfall", "feedback", "dgd"
]


class Churn(Shape):
    """The price of moving sessions."""

    price_ms: NonNegative = 5
    """Latency price of one moved request, ms."""
    work: Fraction = 0.05
    """Extra work of one moved request (its prefix is cold there), in reference requests."""


class Guards(Shape):
    """Brakes on plans and on edits."""

    max_step: PositiveFraction = 0.2
    """Largest part of a key's demand that moves in one round (soft: capacity comes first)."""
    hold_if_moves_over: Fraction = 0.3
    """An edit that would move a larger part of all demand is held until accepted."""
    hold_if_capacity_drops_over: Fraction = 0.25
    """An edit that takes away a larger part of capacity is held until accepted."""


LearningMode = Literal["learn", "frozen", "ignore"]


class Learning(Shape):
    """Slow correction of profiles by what replicas report."""

    mode: LearningMode = "learn"
    """`frozen`: plan with what was learned, learn nothing more; `ignore`: plan with the profiles as given."""
    half_life_s: Annotated[float, Field(ge=1, le=86_400)] = 600
    """Age at which a sample counts half, seconds."""
    explore: Annotated[float, Field(ge=0, le=0.05)] = 0.01
    """Part of one key's demand for an engine that never served, until a plan takes it back; 0 = none."""


class Feedback(Shape):
    """The loop of `policy: feedback`; its delay is that of reports, and one round."""

    gain: Annotated[float, Field(ge=0, le=2)] = 0.05
    """Relative step of a share per relative difference of an engine's latency from the mean."""
    ewma: PositiveFraction = 0.3
    """Weight of the newest latency in the smoothed one."""


class Dgd(Shape):
    """The descent of `policy: dgd`."""

    step: Annotated[float, Field(ge=0, le=4)] = 1
    """Step over the one that is stable without delay."""


class Planning(Shape):
    """How shares are computed."""

    policy: PolicyName = "global"
    """`global`, or a baseline to compare with."""
    interval_s: Annotated[float, Field(ge=0.1, le=3_600)] = 5
    """Seconds between rounds."""
    demand_window_s: Annotated[float, Field(ge=0.1, le=86_400)] = 60
    """Window of the smoothed demand, seconds: an exponential average with half of it as its time constant."""
    max_utilization: MaxUtilization = 0.90
    """Part of capacity that is planned with, or auto: from demand and its noise."""
    max_gap: Annotated[float, Field(gt=0, le=0.5)] = 0.001
    """Largest certified gap to the optimum, as a fraction; gains below it move nothing."""
    time_limit_s: Positive = 2
    """Longest solving time of a round, seconds; then the best plan so far, with its gap."""
    churn: Churn = Churn()
    """Price of movement."""
    learning: Learning = Learning()
    """Corrected profiles."""
    guards: Guards = Guards()
    """Brakes."""
    feedback: Feedback = Feedback()
    """Loop of the baseline `feedback`."""
    dgd: Dgd = Dgd()
    """Descent of the baseline `dgd`."""
