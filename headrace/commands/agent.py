"""`headrace agent`: reports load for a real engine that it runs beside."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

_KINDS = ("vllm", "sglang")


@click.command("agent")
@click.option("--kind", type=click.Choice(_KINDS), required=True, help="what the engine is")
@click.option("--engine", required=True, help="engine name, as in the policy")
@click.option("--target", required=True, metavar="URL", help="base URL of the engine")
@click.option(
    "--report", "reports", multiple=True, metavar="HOST:PORT", help="control plane; may be repeated"
)
@click.option("--fleet", required=True, envvar="HEADRACE_FLEET")
@click.option("--region", required=True, envvar="HEADRACE_REGION")
@click.option("--cluster", default="", envvar="HEADRACE_CLUSTER")
@click.option(
    "--replica-id", default=socket.gethostname, help="unique within the engine [default: host name]"
)
@click.option("--address", metavar="IP:PORT", help="what Envoys dial [default: the target's]")
@click.option("--capability", "capabilities", multiple=True, help="as in the policy; repeatable")
@click.option("--interval", "interval_s", default=1.0, show_default=True, help="seconds between scrapes")
@click.option(
    "--window", "window_s", default=10.0, show_default=True, help="seconds that rates are taken over"
)
@click.option("--probe", is_flag=True, help="one generated token must come back before READY")
@click.option("--drain-s", default=25.0, show_default=True, help="on SIGTERM: longest wait for the drain")
@click.option(
    "--finish-s", default=900.0, show_default=True, help="and then: longest wait for running answers"
)
@click.option("--ca", type=click.Path(exists=True, path_type=Path), help="verifies the control plane: TLS")
@click.option("--cert", type=click.Path(exists=True, path_type=Path), help="client certificate (mTLS)")
@click.option("--key", type=click.Path(exists=True, path_type=Path), help="its key")
@click.option("--token-file", type=click.Path(exists=True, path_type=Path), help="bearer token for reports")
@click.option("--once", is_flag=True, help="print one sample as JSON and end; reports nothing")
def command(reports: tuple[str, ...], once: bool, drain_s: float, finish_s: float, **options: Any) -> None:
    """Report load for a real engine.

    On SIGTERM the replica is reported DRAINING, and the agent ends once no Envoy sends to it any more and the
    engine has nothing left to answer: as a preStop hook it lets running answers end whole. A second signal
    ends it at once.
    """
    _log_json()
    if not once and not reports:
        raise click.UsageError("--report HOST:PORT is required (or --once)")
    config = _config(reports, **options)
    with contextlib.suppress(KeyboardInterrupt):
        code = asyncio.run(_once(config) if once else _run(config, drain_s, finish_s))
        if code:
            raise SystemExit(code)


def _config(
    reports: tuple[str, ...],
    *,
    kind: str,
    target: str,
    address: str | None,
    probe: bool,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    token_file: Path | None,
    interval_s: float,
    window_s: float,
    **identity: Any,
) -> Any:
    from signals.adapters.kinds import KINDS
    from signals.agent import AgentConfig
    from signals.tls import TlsFiles, channel_credentials

    tls = ca is not None or cert is not None
    token = token_file.read_text().strip() if token_file else ""
    if token and not tls:
        raise click.UsageError("--token-file needs --ca: a token is never sent in the clear")
    return AgentConfig(
        kind=KINDS[kind],
        target=target.rstrip("/"),
        reports=reports,
        hello=_hello(address or _address_of(target), **identity),
        interval_s=interval_s,
        window_s=window_s,
        probe=probe,
        credentials=channel_credentials(TlsFiles(cert, key, ca)) if tls else None,
        metadata=(("authorization", f"Bearer {token}"),) if token else (),
    )


def _hello(address: str, *, capabilities: tuple[str, ...], **identity: Any) -> Any:
    from headrace import __version__
    from signals.messages import Hello

    host, _, port = address.rpartition(":")
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        raise click.UsageError(f"--address must be IP:PORT, not {address!r}: Envoys dial it") from None
    return Hello(
        agent_version=__version__,
        address=host.strip("[]"),
        port=int(port),
        capabilities=list(capabilities),
        **identity,
    )


def _address_of(target: str) -> str:
    url = urlsplit(target)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise click.UsageError(f"--target must be a URL such as http://10.16.0.7:8000, not {target!r}")
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    return f"{host}:{url.port or (443 if url.scheme == 'https' else 80)}"


def _log_json() -> None:
    """The packages' own log, as the control plane's: JSON lines on stderr."""
    import structlog

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(sort_keys=True),
            ],
        )
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler])


async def _run(config: Any, drain_s: float, finish_s: float) -> int:
    """Report until SIGTERM or SIGINT, then drain and let the engine finish, unless there is a second one."""
    from signals.agent import Agent

    agent, told, again = Agent(config), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: (again if told.is_set() else told).set())
    reporting = asyncio.create_task(agent.run())
    try:
        await _first(reporting, told.wait())
        if not reporting.done():
            await _first(_leave(agent, drain_s, finish_s), again.wait())
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)
    return 0


async def _first(*these: Awaitable[Any]) -> None:
    """Wait until one of these is done; those begun here do not outlive it."""
    tasks = [asyncio.ensure_future(each) for each in these]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    begun = [task for task in tasks if task not in these]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)


async def _leave(agent: Any, drain_s: float, finish_s: float) -> None:
    log = logging.getLogger("headrace.agent")
    try:
        async with asyncio.timeout(drain_s):
            await agent.drain("agent was told to stop")
    except TimeoutError:
        log.warning("drain_unacknowledged", extra={"waited_s": drain_s})
    try:
        async with asyncio.timeout(finish_s):
            await agent.finished()
    except TimeoutError:
        log.warning("answers_unfinished", extra={"waited_s": finish_s, "running": agent.sample.running})


async def _once(config: Any) -> int:
    """Print what would be reported after two scrapes; 1 when the engine is not READY."""
    from signals.agent import Agent

    sample = await Agent(config).look_once()
    sys.stdout.write(json.dumps(sample.to_dict(), indent=2) + os.linesep)
    return 0 if sample.state.name == "READY" else 1
