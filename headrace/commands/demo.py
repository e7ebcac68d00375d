"""`headrace demo`: the whole fleet on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import click
from rich.console import Console

from headrace.child import ChildFailedError
from headrace.demo.run import DemoConfig, run_demo
from headrace.demo.view import summary
from headrace.envoy_process import EnvoyMissingError

_INTERRUPTED = 130


@click.command("demo")
@click.option("--duration", "duration_s", default=40.0, show_default=True, help="measured seconds")
@click.option(
    "--warmup", "warmup_s", default=20.0, show_default=True, help="seconds of load before measuring"
)
@click.option("--policy-name", "planning_policy", help="plan with a baseline: nearest, round_robin, …")
@click.option("--rate-divisor", type=click.FloatRange(1), help="divide all rates [default: 1; 5 on one core]")
@click.option("--seed", default=1, show_default=True, help="of the load")
@click.option("--early-headers/--no-early-headers", default=True, help="of the engines' streams, as vLLM")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="write the result there")
def command(json_file: Path | None, rate_divisor: float | None, **options: Any) -> None:
    """The whole fleet on this machine: control plane, three Envoys, engines, load.

    Region eu-west has 20 requests/s more than its engine can take, ap-south has 40 to spare.
    """
    divisor = rate_divisor or (1.0 if (os.cpu_count() or 1) > 1 else 5.0)
    config = DemoConfig(rate_divisor=divisor, **options)
    console = Console(width=None if sys.stdout.isatty() else 140)
    failure: BaseExceptionGroup | None = None
    try:
        found = asyncio.run(_until_interrupted(config, console))
    except* (ChildFailedError, EnvoyMissingError, OSError, aiohttp.ClientError) as group:
        found, failure = None, group
    if failure is not None:
        raise SystemExit(f"headrace demo: {_told(failure)}")
    if found is None:
        console.print("Interrupted: everything is stopped.")
        sys.exit(_INTERRUPTED)
    console.print(summary(found))
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")


def _told(group: BaseExceptionGroup) -> str:
    """What went wrong, with what the parts had to say."""
    texts = []
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            texts.append(_told(error))
        else:
            texts.append("\n".join([str(error), *getattr(error, "__notes__", [])]))
    return "\n".join(texts)


async def _until_interrupted(config: DemoConfig, console: Console) -> dict[str, Any] | None:
    """The result, or None after SIGINT or SIGTERM; either way every child has ended."""
    work = asyncio.ensure_future(run_demo(config, console))
    stopping = False

    def stop() -> None:
        nonlocal stopping
        if not stopping:  # a second Ctrl-C must not break off the clean-up
            stopping = True
            work.cancel()

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(signum, stop)
    try:
        return await work
    except asyncio.CancelledError:
        return None
