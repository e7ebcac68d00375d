"""`headrace plan`: plan offline from a policy and a state file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from headrace.offline import offline_options, read
from headrace.saved_plan import SavedPlan, SavedPlanError
from headrace.tables import plan_tables
from optimizer import plan


@click.command()
@offline_options
@click.option(
    "--diff",
    "diff_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Compare with a plan saved by --json.",
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def command(diff_path: Path | None, as_json: bool, **where: Any) -> None:
    """Plan offline: shares, prices, gap and movement for a policy and a state of the fleet.

    What-if: `--set engines.eu.ready_replicas=0`, `--demand-scale 1.5`, `--policy-name nearest`.
    `--diff` shows a saved plan's shares, loads and prices beside the new; with `--json`, `diff` has new minus
    saved.
    """
    given = read(**where)
    saved = _saved(diff_path) if diff_path else None
    result = plan(given.problem, given.policy_name)
    if as_json:
        shown = result.to_json()
        if saved:
            shown["diff"] = saved.difference(result)
        click.echo(json.dumps(shown, indent=2))
        return
    console = Console()
    for table in plan_tables(result, given.problem, saved):
        console.print(table)


def _saved(path: Path) -> SavedPlan:
    try:
        return SavedPlan.read(path)
    except SavedPlanError as error:
        click.echo(str(error), err=True)
        raise SystemExit(2) from None
