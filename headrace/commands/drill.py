"""`headrace drill`: hurt a real fleet on this machine and see what its users see."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from headrace.child import ChildFailedError
from headrace.drill.catalogue import DRILLS, chosen
from headrace.drill.drill import Drill
from headrace.drill.judge import Verdict, judge
from headrace.drill.stage import StageConfig, run_drill
from headrace.drill.table import details, listing, results
from headrace.envoy_process import EnvoyMissingError

_MISSED = 1
_INTERRUPTED = 130


@click.command("drill")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--list", "only_list", is_flag=True, help="say what there is, run nothing")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="write the results there, after every drill"
)
@click.option(
    "--rate-divisor", type=click.FloatRange(1), default=2.0, show_default=True, help="divide all rates"
)
@click.option("--seed", default=1, show_default=True, help="of the load")
def command(
    names: tuple[str, ...], only_list: bool, json_file: Path | None, rate_divisor: float, seed: int
) -> None:
    """Hurt a real fleet on this machine and see what its users see (all drills unless some are named).

    Exit code 0 when every target is met, 1 when one is missed.
    """
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    try:
        drills = chosen(names)
    except KeyError as error:
        raise click.UsageError(error.args[0]) from None
    if only_list:
        console.print(listing(DRILLS.values()))
        return
    config = StageConfig(rate_divisor=rate_divisor, seed=seed)
    verdicts: list[Verdict] = []

    def take(verdict: Verdict) -> None:
        verdicts.append(verdict)
        console.print(details(verdict), markup=False)
        if json_file is not None:
            json_file.write_text(json.dumps(_document(verdicts, config), indent=2) + "\n")

    try:
        finished = asyncio.run(_until_interrupted(drills, config, console, take))
    except (ChildFailedError, EnvoyMissingError, OSError) as error:
        raise SystemExit(f"headrace drill: {error}") from None
    console.print(results(verdicts))
    if not finished:
        console.print("Interrupted: everything is stopped.")
        sys.exit(_INTERRUPTED)
    sys.exit(0 if all(verdict.passed for verdict in verdicts) else _MISSED)


async def _until_interrupted(
    drills: list[Drill], config: StageConfig, console: Console, take: Callable[[Verdict], None]
) -> bool:
    """Whether all drills were run; every child has ended either way."""
    work = asyncio.ensure_future(_run_all(drills, config, console, take))
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        return False
    return True


async def _run_all(
    drills: list[Drill], config: StageConfig, console: Console, take: Callable[[Verdict], None]
) -> None:
    console.print(f"All rates and capacities of the demo are divided by {config.rate_divisor:g}.")
    for drill in drills:
        console.print(f"[bold]{drill.name}[/]: {drill.what}")
        take(judge(drill, await run_drill(drill, config)))


def _document(verdicts: list[Verdict], config: StageConfig) -> dict[str, Any]:
    return {
        "rate_divisor": config.rate_divisor,
        "seed": config.seed,
        "passed": all(verdict.passed for verdict in verdicts),
        "drills": [verdict.to_json() for verdict in verdicts],
    }
