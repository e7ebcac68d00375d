"""`headrace penalty`: an operator's hand on replicas and engines."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table

from headrace.admin.client import admin_option, get, post

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Duration(click.ParamType[float]):
    """Seconds, written as `90s`, `15m`, `2h` or `1d`."""

    name = "DURATION"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the text."""
        text = str(value)
        if text[-1:] not in _UNITS or not text[:-1].isdigit():
            self.fail(f"{text!r}: expected for instance 90s, 15m, 2h or 1d", param, ctx)
        return float(text[:-1]) * _UNITS[text[-1]]


def _split(unit: str) -> dict[str, str]:
    engine, slash, replica = unit.partition("/")
    return {"engine": engine, "replica": replica} if slash else {"engine": engine}


@click.group("penalty")
def command() -> None:
    """See, hold and release penalties of engines and replicas (ENGINE or ENGINE/REPLICA)."""


@command.command("list")
@admin_option
@click.option("--json", "as_json", is_flag=True, help="machine-readable")
def list_(admin_url: str, as_json: bool) -> None:
    """List every engine and replica whose penalty is not 1."""
    engines = get(admin_url, "/api/status")["engines"]
    rows = [(name, item["penalty"], item["penalty_reason"]) for name, item in engines.items()]
    rows += [
        (f"{name}/{replica['replica']}", replica["penalty"], replica["penalty_reason"])
        for name, item in engines.items()
        for replica in item["replicas"]
    ]
    found = [row for row in rows if row[1] != 1.0]
    if as_json:
        click.echo(json.dumps([{"unit": u, "penalty": p, "reason": r} for u, p, r in found], indent=2))
        return
    table = Table("unit", "penalty", "why")
    for unit, penalty, reason in found:
        table.add_row(unit, f"{penalty:.2f}", reason)
    Console().print(table)


@command.command("hold")
@admin_option
@click.argument("unit")
@click.option(
    "--to", "penalty", type=click.FloatRange(0, 1), required=True, help="1 = as if healthy"
)
@click.option("--reason", required=True, help="shown to everybody who looks")
@click.option(
    "--for", "for_s", type=Duration(), required=True, help="how long: 90s, 15m, 2h, 1d"
)
def hold(admin_url: str, unit: str, penalty: float, reason: str, for_s: float) -> None:
    """Set the penalty of UNIT by hand, for a while."""
    post(admin_url, "/api/penalty", {**_split(unit), "penalty": penalty, "reason": reason, "for_s": for_s})
    click.echo(f"{unit} is held at {penalty:g}")


@command.command("release")
@admin_option
@click.argument("unit")
def release(admin_url: str, unit: str) -> None:
    """Take the hand, and any penalty, off UNIT."""
    post(admin_url, "/api/penalty/release", dict(_split(unit)))
    click.echo(f"{unit} is released")
