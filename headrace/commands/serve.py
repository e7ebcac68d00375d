"""`headrace serve`: the control plane."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path

import click
from prometheus_client import disable_created_metrics

from headrace.child import write_ports
from headrace.control_plane.config import Address, ServeConfig
from headrace.control_plane.control_plane import ControlPlane
from headrace.control_plane.opening import Opening, opening
from headrace.log import Forward, make_logger
from headrace.policy import PolicyError
from optimizer import POLICIES


class _AddressType(click.ParamType[Address]):
    name = "HOST:PORT"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        if isinstance(value, Address):
            return value
        try:
            return Address.parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command("serve")
@click.option("--policy", required=True, type=click.Path(path_type=Path), help="policy file or folder")
@click.option("--state-dir", type=click.Path(path_type=Path), help="where the state is kept over restarts")
@click.option("--insecure-dev", is_flag=True, help="plaintext, no identities: everything must be on loopback")
@click.option("--xds", type=_AddressType(), default="127.0.0.1:18000", show_default=True)
@click.option("--reports", type=_AddressType(), default="127.0.0.1:7401", show_default=True)
@click.option("--metrics", type=_AddressType(), default="127.0.0.1:7402", show_default=True)
@click.option("--admin", type=_AddressType(), default="127.0.0.1:7403", show_default=True)
@click.option("--csds", type=_AddressType(), help="serve CSDS there, on loopback")
@click.option("--expose-admin", is_flag=True, help="let --admin, which has no login, be more than loopback")
@click.option("--startup-wait", "startup_wait_s", default=35.0, show_default=True, help="seconds for engines")
@click.option("--accept-policy", is_flag=True, help="do not hold an edit that was made while it was down")
@click.option(
    "--policy-name",
    "planning_policy",
    type=click.Choice(sorted(POLICIES)),
    help="planning policy instead of the file's (comparison)",
)
@click.option("--ports-file", type=click.Path(path_type=Path), help="write the bound ports there as JSON")
def command(policy: Path, ports_file: Path | None, **options: object) -> None:
    """The control plane."""
    config = ServeConfig(policy=policy, **options)  # type: ignore[arg-type]  # click has converted them
    try:
        config.check()
        found = opening(config)
    except (PolicyError, ValueError) as error:
        raise SystemExit(f"headrace serve: {error}") from None
    sys.exit(asyncio.run(_serve(config, found, ports_file)))


async def _serve(config: ServeConfig, found: Opening, ports_file: Path | None) -> int:
    log = make_logger(fleet=found.policy.fleet, revision=found.policy.revision, snapshot=0)
    stop = asyncio.Event()
    disable_created_metrics()  # type: ignore[no-untyped-call]  # the library does not annotate it
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    if config.insecure_dev:
        log.warning("insecure_dev", meaning="no TLS, no identities: for development on one machine only")
    try:
        plane = ControlPlane(config, found.policy, log, found=found.found)
        logging.basicConfig(handlers=[Forward(lambda: plane.log)], force=True)
        async with plane.serving() as ports:
            if ports_file is not None:
                write_ports(ports_file, ports)
            await plane.run(stop)
    except (OSError, ValueError) as error:
        log.error("control_plane_failed", reason=str(error))
        return 1
    return 0
