"""Listening: every port of the control plane, opened in order and closed in the reverse order."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Literal

import grpc
import grpc.aio
from aiohttp import web

from headrace.admin.app import admin_app, metrics_app
from headrace.control_plane import rules
from headrace.control_plane.config import Address
from signals.metrics_service import MetricsService
from signals.tls import server_credentials
from xds_server import csds, lrs
from xds_server.services import SERVER_OPTIONS, XdsServices

if TYPE_CHECKING:
    from headrace.control_plane.control_plane import ControlPlane

_XDS_GRACE_S = 0.5


@contextlib.asynccontextmanager
async def listening(plane: ControlPlane) -> AsyncIterator[Mapping[str, int]]:
    """Open metrics, admin, reports and xDS; yields name -> bound port.

    Raises OSError when an address cannot be bound, ValueError when a port would be open to anybody.
    """
    async with contextlib.AsyncExitStack() as stack:
        ports = {
            "metrics": await _web(stack, metrics_app(plane), plane.config.metrics),
            "admin": await _web(stack, admin_app(plane), plane.config.admin),
            "reports": await _reports(stack, plane),
            "xds": await _xds(stack, plane),
        }
        if plane.config.csds:
            ports["csds"] = await _csds(stack, plane, plane.config.csds)
        yield ports


async def _web(stack: contextlib.AsyncExitStack, app: web.Application, address: Address) -> int:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, address.host, address.port).start()
    return int(runner.addresses[0][1])


async def _reports(stack: contextlib.AsyncExitStack, plane: ControlPlane) -> int:
    address = plane.config.reports
    port = await plane.reports.start(address.host, address.port, _credentials(plane, "reports"))
    stack.push_async_callback(plane.reports.stop)
    return port


async def _csds(stack: contextlib.AsyncExitStack, plane: ControlPlane, address: Address) -> int:
    server = grpc.aio.server()
    csds.register(plane.xds, server)
    port = int(server.add_insecure_port(str(address)))
    await server.start()
    stack.push_async_callback(server.stop, _XDS_GRACE_S)
    return port


async def _xds(stack: contextlib.AsyncExitStack, plane: ControlPlane) -> int:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    services = XdsServices(plane.xds)
    services.register(server)
    server.add_generic_rpc_handlers((_metrics_service(plane),))
    lrs.register(plane.xds, server, plane.traffic.take_load_report, plane.config.load_report_interval_s)
    credentials, address = _credentials(plane, "xds"), str(plane.config.xds)
    try:
        port = (
            server.add_insecure_port(address)
            if credentials is None
            else server.add_secure_port(address, credentials)
        )
    except RuntimeError as error:
        raise OSError(f"cannot listen for Envoys on {address}: {error}") from error
    await server.start()
    stack.push_async_callback(server.stop, _XDS_GRACE_S)
    stack.callback(services.stop)
    return int(port)


def _metrics_service(plane: ControlPlane) -> MetricsService:
    return MetricsService(
        plane.traffic,
        frontends=lambda: plane.policy.frontends,
        identity=lambda frontend: rules.certificate_names(plane.policy, plane.config, frontend),
        clock=plane.clock,
    )


def _credentials(plane: ControlPlane, port: Literal["reports", "xds"]) -> grpc.ServerCredentials | None:
    """TLS of a port, None in development."""
    if plane.config.insecure_dev:
        return None
    rules.check_security(plane.policy, plane.config)
    files = rules.tls_files(plane.policy, port)
    assert files is not None, "checked above"
    return server_credentials(files)
