"""`headrace load`: an open-loop chat load against front-ends."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import click

from headrace.demo.conversations import RequestShape
from headrace.demo.load import LoadGenerator


@click.command("load")
@click.option("--target", "targets", required=True, multiple=True, metavar="FRONTEND=URL")
@click.option(
    "--rate", "rates", required=True, multiple=True, metavar="FRONTEND=RPS", help="requests/s there"
)
@click.option("--model", required=True, help="name in the `model` field")
@click.option("--duration", type=float, help="seconds [default: until stopped]")
@click.option("--turn-tokens", default=100, show_default=True, help="prompt tokens that a turn adds")
@click.option("--output-tokens", default=8, show_default=True)
@click.option("--turns", default=3, show_default=True, help="mean turns of a conversation")
@click.option("--stream-share", default=0.75, show_default=True, help="fraction of requests that stream")
@click.option("--timeout", "timeout_s", default=60.0, show_default=True, help="seconds a request may take")
@click.option("--seed", default=1, show_default=True)
@click.option("--print-every", default=10.0, show_default=True, help="seconds, without --duration")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="write the summary there too")
def command(
    targets: tuple[str, ...],
    rates: tuple[str, ...],
    duration: float | None,
    timeout_s: float,
    seed: int,
    print_every: float,
    json_file: Path | None,
    **shape: Any,
) -> None:
    """Open-loop chat load. Prints one JSON line a front-end, at the end or every so often."""
    urls = dict(_pair(text, "--target") for text in targets)
    try:
        rps = {frontend: float(value) for frontend, value in (_pair(text, "--rate") for text in rates)}
    except ValueError as error:
        raise click.UsageError(f"--rate: {error}") from None
    if unknown := sorted(set(rps) - set(urls)):
        raise click.UsageError(f"--rate names {unknown[0]!r}, which has no --target")
    generator = LoadGenerator(urls, rps, RequestShape(**shape), random.Random(seed), timeout_s=timeout_s)
    asyncio.run(_run(generator, duration, print_every))
    if json_file is not None:
        json_file.write_text(json.dumps(generator.summary(), indent=2))


async def _run(generator: LoadGenerator, duration_s: float | None, print_every_s: float) -> None:
    if duration_s is not None:
        await generator.run(duration_s)
        _print(generator)
        return
    async with asyncio.TaskGroup() as group:
        group.create_task(generator.run())
        while True:
            await asyncio.sleep(print_every_s)
            _print(generator)
            generator.records.clear()


def _print(generator: LoadGenerator) -> None:
    for frontend, figures in generator.summary().items():
        click.echo(json.dumps({"frontend": frontend, **figures}))


def _pair(text: str, option: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name or not value:
        raise click.UsageError(f"{option} {text!r}: expected front-end=value")
    return name, value
