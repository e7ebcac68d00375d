"""`headrace plan`: plan offline from a policy and a state file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from headrace.offline import offline_options, read
from headrace.tables import plan_tables
from optimizer import Shares, plan


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
    """
    given = read(**where)
    result = plan(given.problem, given.policy_name)
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
        return
    console = Console()
    for table in plan_tables(result, _saved_shares(diff_path) if diff_path else None):
        console.print(table)


def _saved_shares(path: Path) -> Shares:
    try:
        shares = json.loads(path.read_text())["shares"]
    except (ValueError, KeyError, TypeError) as error:
        raise click.ClickException(f"{path}: not a plan saved by `headrace plan --json` ({error})") from None
    if not isinstance(shares, dict):
        raise click.ClickException(f"{path}: `shares` is not a map")
    return shares
