"""`headrace wave`: a wave of draining that the control plane does not believe."""

from __future__ import annotations

import click

from headrace.admin.client import admin_option, post


@click.group("wave")
def command() -> None:
    """Accept that most of the fleet leaves at once (`replica_held` in the log)."""


@command.command("accept")
@admin_option
def accept(admin_url: str) -> None:
    """The wave is meant: let the replicas go that are held."""
    post(admin_url, "/api/wave/accept", {})
    click.echo("accepted")
