"""Ways to plan, by name, behind one function: rows of one component in, a flow out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from optimizer.bound import Duals, Shed
from optimizer.component import Flow
from optimizer.layout import Round
from optimizer.problem import Problem
from optimizer.shedding import least_shed, shed_prices
from optimizer.warm import Warm

Array = npt.NDArray[np.float64]
Policy = Callable[[Round, Problem, Warm, float], Flow]
"""(component, whole problem, state kept between rounds, deadline on the warm state's clock) -> flow."""


def split(round_: Round, weight: Array, notes: tuple[str, ...] = ()) -> Flow:
    """A flow by fixed weights [R, E]; a row without a usable engine is shed. No prices, no bound."""
    weight = np.where(round_.usable, weight, 0.0)
    total = weight.sum(axis=1, keepdims=True)
    fractions = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0)
    x = fractions * round_.demand[:, None]
    rows, engines = weight.shape
    nothing = Duals(np.zeros(rows), np.zeros(engines), np.zeros(rows), np.zeros(rows))
    shed = np.where(total[:, 0] > 0, 0.0, round_.demand)
    return Flow(round_, x, shed, nothing, -math.inf, False, notes)


def round_robin(round_: Round, problem: Problem, warm: Warm, deadline: float) -> Flow:
    """Equal shares on every usable engine."""
    return split(round_, np.ones(round_.usable.shape))


def nearest(round_: Round, problem: Problem, warm: Warm, deadline: float) -> Flow:
    """Everything to the usable engine with the shortest round trip."""
    distance = np.where(round_.usable, round_.layout.network - round_.layout.tie_break, np.inf)
    weight = np.zeros(round_.usable.shape)
    weight[np.arange(len(weight)), np.argmin(distance, axis=1)] = 1.0
    return split(round_, weight)


def capacity_weighted(round_: Round, problem: Problem, warm: Warm, deadline: float) -> Flow:
    """Shares proportional to effective capacity."""
    return split(round_, np.broadcast_to(round_.capacity, round_.usable.shape))


def global_(round_: Round, problem: Problem, warm: Warm, deadline: float) -> Flow:
    """The optimum of the linear program; when every solver fails, shares by capacity."""
    nothing = np.where(round_.usable.any(axis=1), 0.0, round_.demand)
    flow = _solve(round_, Shed(nothing, shed_prices(round_)), problem.max_step, warm, deadline)
    if flow is not None and np.any(flow.shed > nothing + 1e-7 * round_.demand):
        # A moved request's extra work must not be the reason to refuse another: plan again without it.
        without = warm.without_kappa(round_)
        shed = Shed(least_shed(without), shed_prices(without), decided=True)
        flow = _solve(without, shed, problem.max_step, warm, deadline)
    if flow is None:
        return split(round_, np.broadcast_to(round_.capacity, round_.usable.shape), ("every solver failed",))
    return flow


def _solve(round_: Round, shed: Shed, step: float | None, warm: Warm, deadline: float) -> Flow | None:
    component = warm.component(round_.layout)
    flow = component.solve(round_, shed, step, deadline)
    if flow is None:
        warm.forget(round_.layout)
    return flow


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "global": global_,
        "nearest": nearest,
        "round_robin": round_robin,
        "capacity_weighted": capacity_weighted,
    }
)
"""Every policy by its name in the policy file."""
