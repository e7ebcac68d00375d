"""Asking a running control plane, for the command line."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import click

DEFAULT_URL = "http://127.0.0.1:7403"
_TIMEOUT_S = 10.0

admin_option = click.option(
    "--admin", "admin_url", default=DEFAULT_URL, show_default=True, help="admin API of the control plane"
)


def get(url: str, path: str) -> Any:
    """Return the JSON at `path`. Raises ClickException when there is no answer."""
    return _send(urllib.request.Request(url.rstrip("/") + path))


def post(url: str, path: str, body: dict[str, Any]) -> Any:
    """Send JSON and return the answer. Raises ClickException with the control plane's reason."""
    data, headers = json.dumps(body).encode(), {"content-type": "application/json"}
    return _send(urllib.request.Request(url.rstrip("/") + path, data=data, headers=headers))


def _send(request: urllib.request.Request) -> Any:
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise click.ClickException(_reason(error)) from None
    except (OSError, ValueError) as error:
        raise click.ClickException(f"no control plane at {request.full_url}: {error}") from None


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return f"{error.url}: {error.code} {error.reason}"
