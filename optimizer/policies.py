"""Ways to plan, by name, behind one function: rows of one component in, a flow out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from optimizer import baselines
from optimizer.bound import Shed
from optimizer.component import Flow
from optimizer.layout import Round
from optimizer.problem import Problem
from optimizer.shedding import least_shed, shed_prices
from optimizer.warm import Warm

Array = npt.NDArray[np.float64]
Policy = Callable[[Round, Problem, Warm, float], Flow]
"""(component, whole problem, state kept between rounds, deadline on the warm state's clock) -> flow."""


def global_(round_: Round, problem: Problem, warm: Warm, deadline: float) -> Flow:
    """The optimum of the linear program; when every solver fails, shares by capacity."""
    nothing = np.where(round_.usable.any(axis=1), 0.0, round_.demand)
    flow = _solve(round_, Shed(nothing, shed_prices(round_)), warm, deadline)
    if flow is not None and np.any(flow.shed > nothing + 1e-7 * round_.demand):
        # A moved request's extra work must not be the reason to refuse another: plan again without it.
        without = warm.without_kappa(round_)
        try:
            floor = least_shed(without)
        except ArithmeticError as error:
            return dataclasses.replace(flow, notes=(*flow.notes, f"refused by price only: {error}"))
        shed = Shed(floor, shed_prices(without), decided=True)
        flow = _solve(without, shed, warm, deadline)
    if flow is None:
        weight = np.broadcast_to(round_.capacity, round_.usable.shape)
        return baselines.split(round_, weight, ("every solver failed",))
    return flow


def _solve(round_: Round, shed: Shed, warm: Warm, deadline: float) -> Flow | None:
    component = warm.component(round_.layout)
    flow = component.solve(round_, shed, deadline)
    if flow is None:
        warm.forget(round_.layout)
    return flow


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "global": global_,
        "nearest": baselines.nearest,
        "round_robin": baselines.round_robin,
        "local": baselines.local,
        "capacity_weighted": baselines.capacity_weighted,
        "waterfall": baselines.waterfall,
        "feedback": baselines.feedback,
        "dgd": baselines.dgd,
    }
)
"""Every policy by its name in the policy file."""
