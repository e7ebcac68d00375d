"""Profiles against what is asked of them: head-room below the pole, and service levels that can be met."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.policy.problems import Path
from headrace.policy.schema import Document, ParametricProfile, Slo, TableProfile
from headrace.policy.source import Source

AUTO_UTILIZATION = 0.95
"""The most that `max_utilization: auto` can give."""
STABLE = 0.98
"""Capacity in use must stay below this part of lambda_max, or latency has no bound."""


def check_head_room(document: Document, source: Source) -> None:
    """Capacity in use stays where the profile is finite and measured."""
    for key, engine in document.engines.items():
        for_engine = engine.max_utilization or document.defaults.engine.max_utilization
        limit = for_engine or document.planning.max_utilization
        share = AUTO_UTILIZATION if limit == "auto" else float(limit)
        profile, path = document.profiles[engine.profile], ("profiles", engine.profile, "capacity_rps")
        used = profile.capacity_rps * share
        product = f"{profile.capacity_rps:g} × max_utilization {share:g} (engine {key})"
        if isinstance(profile, ParametricProfile) and used >= STABLE * profile.lambda_max_rps:
            source.complain(
                path,
                f"{product} is too near to lambda_max_rps {profile.lambda_max_rps:g}",
                f"less than {STABLE} × lambda_max_rps = {STABLE * profile.lambda_max_rps:g}",
            )
        if isinstance(profile, TableProfile) and used > profile.table[-1].load_rps:
            source.complain(
                path,
                f"{product} is above the last measured load {profile.table[-1].load_rps:g}",
                "a table that covers the capacity in use",
            )


def check_service_levels(document: Document, source: Source) -> None:
    """An idle replica must meet the levels of every class that its engine serves.

    Capacity is the load up to which the levels hold: one that nothing meets would leave the engine none.
    """
    told: set[tuple[Path, str]] = set()
    for key, engine in document.engines.items():
        idle = _idle(document.profiles[engine.profile])
        served = engine.classes or document.defaults.engine.classes or tuple(document.classes)
        for path, word, level in _levels(document, engine.model, served):
            if level < idle[word] and (path, engine.profile) not in told:
                told.add((path, engine.profile))
                source.complain(
                    path,
                    f"{level:g} ms cannot be met: an idle replica of profile {engine.profile} "
                    f"(engine {key}) needs {idle[word]:g} ms",
                    "a level above that, or `classes` of the engine without this class",
                )


def _levels(document: Document, model_id: str, classes: tuple[str, ...]) -> Iterator[tuple[Path, str, float]]:
    """Every level in force for a model: where it is written, of what, its strictest value in ms."""
    for name in classes:
        override = document.models[model_id].classes.get(name)
        for field in ("ttft_slo_ms", "tbot_slo_ms"):
            own = override is not None and field in override.model_fields_set
            slo = getattr(override if own else document.classes[name], field)
            if slo is not None:
                path: Path = ("models", model_id, "classes", name) if own else ("classes", name)
                yield (*path, field), field.removesuffix("_slo_ms"), _strictest(slo)


def _strictest(slo: Slo) -> float:
    return min(value for value in (slo.p50, slo.p95, slo.p99) if value is not None)


def _idle(profile: ParametricProfile | TableProfile) -> dict[str, float]:
    """Latency of a replica without load, ms."""
    if isinstance(profile, ParametricProfile):
        return {"ttft": profile.ttft_ms.base, "tbot": profile.t0_ms}
    return {
        "ttft": min(point.ttft_ms for point in profile.table),
        "tbot": min(point.tbot_ms for point in profile.table),
    }
