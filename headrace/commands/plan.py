"""`headrace plan`: plan offline from a policy and a state file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click
from rich.console import Console

from headrace.policy import PolicyError, load
from headrace.problem import build_problem
from headrace.state_file import FleetState, StateError
from headrace.tables import plan_tables
from optimizer import POLICIES, Plan, ProblemError, plan


@click.command()
@click.option("--policy", "policy_path", required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--state", "state_path", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--set", "changes", multiple=True, metavar="PATH=VALUE", help="What if: change a value of the state."
)
@click.option("--demand-scale", type=float, default=1.0, help="What if: all demand times this.")
@click.option("--policy-name", type=click.Choice(sorted(POLICIES)), help="Plan with this policy instead.")
@click.option(
    "--diff",
    "diff_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Compare with a plan saved by --json.",
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def command(
    policy_path: Path,
    state_path: Path,
    changes: tuple[str, ...],
    demand_scale: float,
    policy_name: str | None,
    diff_path: Path | None,
    as_json: bool,
) -> None:
    """Plan offline: shares, prices, gap and movement for a policy and a state of the fleet."""
    try:
        policy = load(policy_path)
        state = FleetState.read(state_path).changed(changes).scaled(demand_scale)
        problem = build_problem(
            policy,
            demand=state.demand_rps,
            network_ms=state.network_ms,
            engines=state.engines,
            previous_shares=state.previous_shares,
        )
        result = plan(problem, policy_name or policy.planning.policy)
    except (PolicyError, StateError, ProblemError) as error:
        click.echo(str(error), err=True)
        raise SystemExit(2) from None
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
        return
    before = _saved_shares(diff_path) if diff_path else None
    for table in plan_tables(result, before):
        Console().print(table)


def _saved_shares(path: Path) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    try:
        shares = json.loads(path.read_text())["shares"]
    except (ValueError, KeyError, TypeError) as error:
        raise click.ClickException(f"{path}: not a plan saved by `headrace plan --json` ({error})") from None
    if not isinstance(shares, dict):
        raise click.ClickException(f"{path}: `shares` is not a map")
    return shares


__all__ = ["Plan", "command"]
