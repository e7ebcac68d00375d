"""`headrace check`: is this policy valid, and what does it mean in full?"""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from headrace.policy.effective import Value, effective
from headrace.policy.load import load
from headrace.policy.policy import Policy
from headrace.policy.problems import PolicyError, Problem


@click.command("check")
@click.argument("path", type=click.Path())
@click.option(
    "--effective", "show_effective", is_flag=True, help="Print every value in force with its source."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")
def command(path: str, show_effective: bool, as_json: bool) -> None:
    """Validate a policy file or folder: exit 0, or 2 with the reasons."""
    try:
        policy = load(path)
    except PolicyError as error:
        _refuse(error, as_json)
    values = effective(policy) if show_effective else []
    if as_json:
        click.echo(json.dumps(_as_dict(policy, values, show_effective), indent=2))
        return
    for warning in policy.warnings:
        click.echo(f"warning: {warning}", err=True)
    for value in values:
        click.echo(f"{value.path}: {json.dumps(value.value)}  # {value.source}")
    if not show_effective:
        click.echo(_summary(policy, path))


def _refuse(error: PolicyError, as_json: bool) -> None:
    if as_json:
        click.echo(
            json.dumps({"valid": False, "problems": [_problem(item) for item in error.problems]}, indent=2)
        )
    else:
        for problem in error.problems:
            click.echo(str(problem), err=True)
        count = len(error.problems)
        click.echo(f"{count} problem{'s' if count > 1 else ''}: the policy is refused", err=True)
    sys.exit(2)


def _summary(policy: Policy, path: str) -> str:
    counts = (
        (len(policy.frontends), "front-end", "front-ends"),
        (len(policy.engines), "engine", "engines"),
        (len(policy.models), "model", "models"),
        (len(policy.classes), "class", "classes"),
    )
    listed = ", ".join(f"{count} {one if count == 1 else many}" for count, one, many in counts)
    return f"{path}: valid. Fleet {policy.fleet}: {listed}. Hash {policy.content_hash[:12]}"


def _as_dict(policy: Policy, values: list[Value], show_effective: bool) -> dict[str, Any]:
    result: dict[str, Any] = {
        "valid": True,
        "fleet": policy.fleet,
        "revision": policy.revision,
        "hash": policy.content_hash,
        "warnings": [_problem(item) for item in policy.warnings],
    }
    if show_effective:
        result["effective"] = {item.path: {"value": item.value, "source": item.source} for item in values}
    return result


def _problem(item: Problem) -> dict[str, Any]:
    return {
        "file": item.place.file,
        "line": item.place.line,
        "path": item.path,
        "wrong": item.wrong,
        "expected": item.expected,
    }
