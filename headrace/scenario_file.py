"""Scenario files of `headrace simulate`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headrace.policy.source import read
from headrace.scale import Scale
from optimizer import Engine, Key, Problem, Profile, Tuning
from optimizer.simulation import Event, Retries, Scenario

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
PositiveInt = Annotated[int, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]

# Part of the peak, hour by hour, of chat traffic: mean day of a week of the Azure LLM inference trace 2024
# (CC-BY 4.0), read off the published plot.
CHAT_DAY = (
    0.67, 0.73, 0.73, 0.61, 0.60, 0.65, 0.73, 0.80, 0.82, 0.80, 0.74, 0.78,
    0.86, 0.96, 1.00, 0.96, 0.88, 0.84, 0.83, 0.78, 0.73, 0.63, 0.57, 0.58,
)  # fmt: skip


class ScenarioError(ValueError):
    """An invalid scenario: the text names file and place."""


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TtftFile(_Shape):
    """TTFT of a parametric profile: base + slope·max(0, load − knee) + queue·u/(1 − u)."""

    base: NonNegative = 0
    knee_rps: NonNegative = 0
    slope: NonNegative = 0
    queue: NonNegative = 0


class PointFile(_Shape):
    """A measured load."""

    load_rps: NonNegative
    ttft_ms: NonNegative
    tbot_ms: NonNegative


class ProfileFile(_Shape):
    """A profile: parameters or a table."""

    capacity_rps: Positive
    lambda_max_rps: Positive | None = None
    t0_ms: NonNegative = 0
    ttft_ms: TtftFile = TtftFile()
    table: tuple[PointFile, ...] = ()

    def build(self) -> Profile:
        """The optimizer's profile."""
        if self.table:
            points = [(p.load_rps, p.ttft_ms, p.tbot_ms) for p in self.table]
            return Profile.from_table(points, self.capacity_rps)
        return Profile.parametric(
            capacity_rps=self.capacity_rps,
            lambda_max_rps=self.lambda_max_rps or self.capacity_rps,
            t0_ms=self.t0_ms,
            ttft_base_ms=self.ttft_ms.base,
            ttft_knee_rps=self.ttft_ms.knee_rps,
            ttft_slope=self.ttft_ms.slope,
            ttft_queue_ms=self.ttft_ms.queue,
        )


class EngineFile(_Shape):
    """An engine."""

    profile: str
    replicas: NonNegative = 1
    max_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    true_capacity: Positive = 1
    """True capacity over what the profile says."""


class KeyFile(_Shape):
    """A model/class."""

    priority: int = 0
    output_tokens: NonNegative = 0
    work: Positive = 1
    price_ms: NonNegative = 5
    churn_work: NonNegative = 0.05


class FrontendFile(_Shape):
    """A front-end and its mean demand by model/class."""

    demand_rps: Mapping[str, NonNegative]
    curve: Literal["flat", "chat-day"] | tuple[NonNegative, ...] = "flat"
    """Factors of the demand over one period."""
    offset_h: float = 0


class EventFile(_Shape):
    """Something that happens."""

    at_s: NonNegative
    until_s: Positive = 1e18
    frontend: str | None = None
    demand_factor: NonNegative = 1
    engine: str | None = None
    lost: bool = False
    slow: Annotated[float, Field(ge=1)] = 1
    penalty: Annotated[float, Field(gt=0, le=1)] = 1
    failing: Annotated[float, Field(ge=0, le=1)] = 0


class RetriesFile(_Shape):
    """Retries of failed attempts."""

    max_attempts: Annotated[int, Field(ge=1, le=10)] = 3
    budget: NonNegative | Literal["none"] = 0.1
    failure_work: NonNegative = 0.1


class TuningFile(_Shape):
    """Settings of the feedback policies."""

    feedback_gain: NonNegative = 0.05
    feedback_ewma: Annotated[float, Field(gt=0, le=1)] = 0.3
    dgd_step: NonNegative = 1


class ScenarioFile(_Shape):
    """A whole scenario file; units in the field names."""

    name: str
    description: str = ""
    profiles: Mapping[str, ProfileFile]
    engines: Mapping[str, EngineFile]
    keys: Mapping[str, KeyFile]
    frontends: Mapping[str, FrontendFile]
    network_ms: Mapping[str, Mapping[str, NonNegative]]
    duration_s: Positive = 1800
    tick_s: Positive = 1
    interval_s: Positive = 5
    demand_window_s: NonNegative = 30
    surges: bool = False
    """Averages of demand begin anew when it surges beyond an engine's capacity."""
    report_delay_s: NonNegative = 2
    actuation_delay_s: NonNegative = 1
    warm_up_s: NonNegative = 120
    settling_s: Positive = 5
    patience_s: Positive = 30
    period_s: Positive = 86400
    dispersion: NonNegative = 0
    events: tuple[EventFile, ...] = ()
    correct: bool = False
    """Learn the engines' true curves from what they report."""
    retries: RetriesFile = RetriesFile()
    tuning: TuningFile = TuningFile()
    ttft_slo_ms: Positive = 2000
    min_gain: NonNegative = 0.0075
    max_step: Annotated[float, Field(gt=0, le=1)] | None = 0.2
    demand_scales: tuple[NonNegative, ...] = (1.0,)
    """The scenario is run once for each."""
    policies: tuple[str, ...] = ()
    """Policies to run; none = all."""
    seed: int = 1

    def check_names(self, path: Path) -> None:
        """Raise ScenarioError when something is named that is not there."""
        for name, engine in self.engines.items():
            if engine.profile not in self.profiles:
                raise ScenarioError(f"{path}: engines.{name}.profile: no profile {engine.profile!r}")
        for name, frontend in self.frontends.items():
            for key in frontend.demand_rps:
                if key not in self.keys:
                    raise ScenarioError(f"{path}: frontends.{name}.demand_rps.{key}: no such key")

    def build(self, scale: float = 1.0) -> Scenario:
        """The scenario with all demand times `scale`.

        Raises:
            ProblemError: values that cannot be planned with.
        """
        names = frozenset(self.engines)
        profiles = {name: item.build() for name, item in self.profiles.items()}
        problem = Problem(
            demand_rps={
                f: {k: rate * scale for k, rate in item.demand_rps.items()}
                for f, item in self.frontends.items()
            },
            network_ms=self.network_ms,
            engines={
                name: Engine(profiles[e.profile], e.replicas, max_utilization=e.max_utilization)
                for name, e in self.engines.items()
            },
            keys={
                name: Key(
                    priority=k.priority,
                    output_tokens=k.output_tokens,
                    work={} if k.work == 1 else dict.fromkeys(self.engines, k.work),
                    gamma_ms=k.price_ms,
                    kappa=k.churn_work,
                )
                for name, k in self.keys.items()
            },
            eligible={(f, k): names for f, item in self.frontends.items() for k in item.demand_rps},
        )
        budget = None if self.retries.budget == "none" else float(self.retries.budget)
        return Scenario(
            name=self.name,
            problem=problem,
            duration_s=self.duration_s,
            tick_s=self.tick_s,
            interval_s=self.interval_s,
            demand_window_s=self.demand_window_s,
            surges=self.surges,
            report_delay_s=self.report_delay_s,
            actuation_delay_s=self.actuation_delay_s,
            warm_up_s=self.warm_up_s,
            dispersion=self.dispersion,
            settling_s=self.settling_s,
            patience_s=self.patience_s,
            curves={f: c for f, item in self.frontends.items() if (c := _curve(item))},
            offsets_h={f: item.offset_h for f, item in self.frontends.items()},
            period_s=self.period_s,
            events=tuple(Event(**event.model_dump()) for event in self.events),
            capacity_error={name: e.true_capacity for name, e in self.engines.items()},
            correct=self.correct,
            retries=Retries(self.retries.max_attempts, budget, self.retries.failure_work),
            ttft_slo_ms=self.ttft_slo_ms,
            min_gain=self.min_gain,
            max_step=self.max_step,
            tuning=Tuning(**self.tuning.model_dump()),
            seed=self.seed,
        )


class ScaleSizes(_Shape):
    """Random fleets to plan, and how."""

    sizes: Annotated[tuple[tuple[PositiveInt, PositiveInt], ...], Field(min_length=1)]
    """Front-ends and engines."""
    classes: PositiveInt = 1
    load: Positive = 0.7
    """Demanded work over effective capacity."""
    noise: NonNegative = 0.03
    """Deviation of demand from round to round, relative."""
    rounds: PositiveInt = 6
    price_ms: NonNegative = 5
    churn_work: NonNegative = 0.05


class ScaleFile(_Shape):
    """A scenario that measures planning itself, by size of the fleet."""

    name: str
    description: str = ""
    scale: ScaleSizes
    seed: int = 1

    def build(self) -> Scale:
        """What to measure."""
        return Scale(**self.scale.model_dump(), seed=self.seed)


def read_scenario(path: Path) -> ScenarioFile | ScaleFile:
    """Read and check a YAML file; one with `scale` measures planning, others run a closed loop.

    As strictly as a policy: no key twice, nothing that YAML reinterprets.

    Raises:
        ScenarioError: unreadable or invalid, with the place.
    """
    source = read(path)
    if source.problems:
        raise ScenarioError("\n".join(map(str, sorted(source.problems))))
    try:
        if "scale" in source.value:
            return ScaleFile.model_validate(source.value)
        file = ScenarioFile.model_validate(source.value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ScenarioError(f"{source.place(first['loc'])}: {place}: {first['msg']}") from error
    file.check_names(path)
    return file


def _curve(item: FrontendFile) -> tuple[float, ...]:
    if item.curve == "flat":
        return ()
    return CHAT_DAY if item.curve == "chat-day" else tuple(item.curve)
