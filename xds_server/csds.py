"""The client status discovery service (CSDS): what each Envoy was sent, confirmed and refused, and why.

Contents of resources are never included: names, versions and reasons are. Register it only on a port that
operators reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import grpc
from envoy_data_plane.envoy.admin.v3 import ClientResourceStatus, UpdateFailureState
from envoy_data_plane.envoy.config.core.v3 import Node
from envoy_data_plane.envoy.service.status.v3 import (
    ClientConfig,
    ClientConfigGenericXdsConfig,
    ClientStatusRequest,
    ClientStatusResponse,
    ConfigStatus,
)
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher
from grpc import aio

from xds_server.resource_types import TYPES
from xds_server.server import XdsServer
from xds_server.services import Context
from xds_server.status import ClientStatus, ResourceStatus, State, TypeStatus

SERVICE = "envoy.service.status.v3.ClientStatusDiscoveryService"

_URLS = {type_.name: type_.url for type_ in TYPES}
_STATES = {
    State.ACKED: (ConfigStatus.SYNCED, ClientResourceStatus.ACKED),
    State.SENT: (ConfigStatus.STALE, ClientResourceStatus.REQUESTED),
    State.NACKED: (ConfigStatus.ERROR, ClientResourceStatus.NACKED),
    State.ABSENT: (ConfigStatus.SYNCED, ClientResourceStatus.DOES_NOT_EXIST),
    State.REQUESTED: (ConfigStatus.NOT_SENT, ClientResourceStatus.REQUESTED),
}


def register(server: XdsServer, grpc_server: aio.Server) -> None:
    """Add the service to a grpc server, before it starts."""

    def answer(body: bytes) -> bytes:
        return bytes(status_response(server.status(), ClientStatusRequest.parse(body)))

    async def fetch(body: bytes, context: Context) -> bytes:
        return await _or_abort(context, answer, body)

    async def stream(_: object, context: Context) -> None:
        while (body := await context.read()) is not aio.EOF:
            await context.write(await _or_abort(context, answer, body))

    handlers = {
        "FetchClientStatus": grpc.unary_unary_rpc_method_handler(fetch),
        "StreamClientStatus": grpc.stream_stream_rpc_method_handler(stream),
    }
    grpc_server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def status_response(statuses: Iterable[ClientStatus], request: ClientStatusRequest) -> ClientStatusResponse:
    """The clients that the request's node matchers select (all without any).

    Raises ValueError for a matcher other than the exact text or prefix of a node id.
    """
    wanted = [_matcher(matcher.node_id) for matcher in request.node_matchers]
    chosen = (s for s in statuses if not wanted or any(matches(s.client.id) for matches in wanted))
    return ClientStatusResponse(config=[_client_config(status) for status in chosen])


async def _or_abort(context: Context, answer: Callable[[bytes], bytes], body: bytes) -> bytes:
    try:
        return answer(body)
    except ValueError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))


def _matcher(node_id: StringMatcher | None) -> Callable[[str], bool]:
    if node_id and node_id.exact is not None:
        exact = node_id.exact
        return lambda id_: id_ == exact
    if node_id and node_id.prefix is not None:
        prefix = node_id.prefix
        return lambda id_: id_.startswith(prefix)
    raise ValueError("node_matchers: only node_id with exact or prefix is supported")


def _client_config(status: ClientStatus) -> ClientConfig:
    client = status.client
    return ClientConfig(
        node=Node(id=client.id, cluster=client.frontend),
        client_scope=f"stream {client.stream}, {client.protocol}, {client.peer}",
        generic_xds_configs=[
            _resource_config(type_, resource) for type_ in status.types for resource in type_.resources
        ],
    )


def _resource_config(type_: TypeStatus, resource: ResourceStatus) -> ClientConfigGenericXdsConfig:
    config_status, client_status = _STATES[resource.state]
    failure = None
    if resource.state is State.NACKED and type_.error:
        failure = UpdateFailureState(details=type_.error.message, version_info=resource.version)
    return ClientConfigGenericXdsConfig(
        type_url=_URLS[type_.type],
        name=resource.name,
        version_info=resource.version,
        config_status=config_status,
        client_status=client_status,
        error_state=failure,
    )
