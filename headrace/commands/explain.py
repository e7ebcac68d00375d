"""`headrace explain`: why a share is what it is."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import click

from headrace.offline import Offline, offline_options, read
from optimizer import Plan, Reason, Warm, engine_price_range, explain, plan, replica_value


@click.command()
@offline_options
@click.option("--engine", "engine_names", multiple=True, help="Only these engines in the list of prices.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@click.argument("frontend", required=False)
@click.argument("key", required=False)
def command(
    frontend: str | None, key: str | None, engine_names: tuple[str, ...], as_json: bool, **where: Any
) -> None:
    """Say why each share of FRONTEND and KEY (model/class) is what it is; without them, of all.

    One line for every engine of the model, those that get nothing or may not serve it included. Every line
    can be checked by hand from the numbers in it. Then, per engine, its price and what one more replica would
    save.
    """
    given = read(**where)
    _check(given, frontend, key, engine_names)
    result = plan(given.problem, given.policy_name)
    reasons = explain(given.problem, result, frontend, key, given.rules.reasons)
    engines = [
        _engine(given, result, name)
        for name in engine_names or sorted({r.destination for r in reasons if r.share > 0})
        if name in given.problem.engines
    ]
    if as_json:
        shown = {
            "shares": [dataclasses.asdict(r) for r in reasons],
            "engines": engines,
            "conflicts": _conflicts(reasons),
        }
        click.echo(json.dumps(shown, indent=2))
        return
    for line in [*(r.text for r in reasons), *map(_engine_text, engines)]:
        click.echo(line)


def _check(given: Offline, frontend: str | None, key: str | None, engines: tuple[str, ...]) -> None:
    for name, names, what in (
        (frontend, given.problem.demand_rps, "front-end with demand"),
        (key, given.problem.keys, "model/class"),
        *((name, given.problem.engines, "engine") for name in engines),
    ):
        if name is not None and name not in names:
            raise click.UsageError(f"{name!r} is no {what}; expected one of {', '.join(sorted(names))}")


def _engine(given: Offline, result: Plan, name: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"engine": name, **dataclasses.asdict(result.engines[name])}
    if name in given.corrections:
        entry["correction"] = given.corrections[name].text
    if given.policy_name == "global":
        low, high = engine_price_range(given.problem, name)
        entry["price_low_ms"], entry["price_high_ms"] = low, high
        entry["one_more_replica_saves_ms"] = replica_value(given.problem, result, name, Warm()).saves_ms
    return entry


def _engine_text(entry: dict[str, Any]) -> str:
    text = (
        f"{entry['engine']}: {entry['load_rps']:.2f} of {entry['capacity_rps']:.2f} work/s,"
        f" TTFT {entry['ttft_ms']:.1f} ms, TBOT {entry['tbot_ms']:.1f} ms, price {entry['price_ms']:.1f} ms"
    )
    if "correction" in entry:
        text += f", profile corrected by reports: {entry['correction']}"
    if "price_low_ms" not in entry:
        return text
    if entry["price_high_ms"] - entry["price_low_ms"] > 1.0:
        text += f" (anything from {entry['price_low_ms']:.1f} to {entry['price_high_ms']:.1f} would do)"
    return f"{text}; one more replica saves about {entry['one_more_replica_saves_ms']:.2f} ms per request"


def _conflicts(reasons: Sequence[Reason]) -> list[str]:
    """The lines of the rows that nothing can serve: every engine of the model, with what is against it."""
    rows = {(r.frontend, r.key) for r in reasons if r.relation == "unserved"}
    return [r.text for r in reasons if (r.frontend, r.key) in rows and r.relation != "unserved"]
