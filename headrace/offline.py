"""What the offline commands share: a policy and a state file become a problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from headrace.policy import PolicyError, load
from headrace.problem import PlanningRules
from headrace.state_file import FleetState, StateError
from optimizer import POLICIES, Correction, Problem, ProblemError

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Offline:
    """A planning problem and where it came from."""

    rules: PlanningRules
    problem: Problem
    policy_name: str
    corrections: Mapping[str, Correction]
    """engine -> what was learned of it, by the state; only where it changes a profile."""


def offline_options(function: F) -> F:
    """The options that name a policy, a state and what-if changes."""
    for option in (
        click.option("--policy-name", type=click.Choice(sorted(POLICIES)), help="Plan with this policy."),
        click.option("--demand-scale", type=float, default=1.0, help="What if: all demand times this."),
        click.option(
            "--set", "changes", multiple=True, metavar="PATH=VALUE", help="What if: change the state."
        ),
        click.option(
            "--state",
            "state_path",
            required=True,
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Demand, distances, engines and last shares.",
        ),
        click.option(
            "--policy",
            "policy_path",
            required=True,
            type=click.Path(exists=True, path_type=Path),
            help="Policy file or folder.",
        ),
    ):
        function = option(function)
    return function


def read(
    policy_path: Path,
    state_path: Path,
    changes: tuple[str, ...],
    demand_scale: float,
    policy_name: str | None,
) -> Offline:
    """Load, change and combine; on bad input print the reason and exit with 2."""
    try:
        policy = load(policy_path)
        state = FleetState.read(state_path).changed(changes).scaled(demand_scale)
        rules = PlanningRules.of(policy)
        problem = rules.problem(
            demand=state.demand_rps,
            network_ms=state.network_ms,
            engines=state.engines,
            previous_shares=state.previous_shares,
        )
    except (PolicyError, StateError, ProblemError) as error:
        click.echo(str(error), err=True)
        raise SystemExit(2) from None
    corrections = {
        name: engine.correction for name, engine in state.engines.items() if not engine.correction.neutral
    }
    return Offline(rules, problem, policy_name or policy.planning.policy, corrections)
