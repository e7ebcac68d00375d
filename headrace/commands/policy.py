"""`headrace policy`: see and accept an edit of the policy that is held."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from headrace.admin.client import admin_option, get, post


@click.group("policy")
def command() -> None:
    """See and accept an edit of the policy that a guard holds."""


@command.command("show")
@admin_option
@click.option("--json", "as_json", is_flag=True, help="machine-readable")
def show(admin_url: str, as_json: bool) -> None:
    """Show what is in force, what is held or refused, and what it would change."""
    status = get(admin_url, "/api/status")
    found = {name: status[name] for name in ("policy_hash", "revision", "policy_error", "policy_pending")}
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    click.echo(f"in force: {found['policy_hash'][:12]} (revision {found['revision'] or '–'})")
    if found["policy_error"]:
        click.echo(f"refused:\n{found['policy_error']}")
    if found["policy_pending"]:
        _show_pending(found["policy_pending"])


def _show_pending(pending: dict[str, Any]) -> None:
    click.echo(f"held: {pending['hash'][:12]} (revision {pending['revision'] or '–'})")
    for reason in pending["reasons"]:
        click.echo(f"  {reason}")
    table = Table("path", "in force", "held")
    for change in pending["changes"]:
        table.add_row(change["path"], change["old"], change["new"])
    Console().print(table)
    click.echo(f"headrace policy accept {pending['hash'][:12]}")


@command.command("accept")
@admin_option
@click.argument("content_hash", metavar="HASH")
def accept(admin_url: str, content_hash: str) -> None:
    """Put the held edit with this HASH (see `headrace policy show`) in force."""
    answer = post(admin_url, "/api/policy/accept", {"hash": content_hash})
    click.echo(f"in force: {answer['policy_hash'][:12]}")
