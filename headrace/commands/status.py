"""`headrace status`: a running control plane at a glance."""

from __future__ import annotations

import json
import time

import click
from rich.console import Console
from rich.live import Live

from headrace.admin.client import admin_option, get
from headrace.admin.overview import overview


@click.command("status")
@admin_option
@click.option("--watch", is_flag=True, help="follow it, until Ctrl-C")
@click.option("--json", "as_json", is_flag=True, help="machine-readable")
def command(admin_url: str, watch: bool, as_json: bool) -> None:
    """What a running control plane serves, knows and waits for."""
    status = get(admin_url, "/api/status")
    if as_json:
        click.echo(json.dumps(status, indent=2))
    elif watch:
        with Live(overview(status), auto_refresh=False) as live:
            while True:
                time.sleep(1)
                live.update(overview(get(admin_url, "/api/status")), refresh=True)
    else:
        Console().print(overview(status))
