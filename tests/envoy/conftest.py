"""One control plane and two Envoys of one front-end for all tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest_asyncio

from tests.envoy.harness import ControlPlane, Front, Pool
from tests.envoy.replica import Replica


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def control_plane() -> AsyncIterator[ControlPlane]:
    async with ControlPlane() as control_plane:
        control_plane.push(Pool({"none": []}).table())
        await control_plane.start_envoy("envoy-1")
        await control_plane.start_envoy("envoy-2", concurrency=2)
        yield control_plane


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(30)) as http:
        yield http


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def front(control_plane: ControlPlane, http: aiohttp.ClientSession) -> Front:
    """A client of the first Envoy."""
    return Front(control_plane.envoys[0], http)


@pytest_asyncio.fixture(loop_scope="session")
async def replica(control_plane: ControlPlane) -> AsyncIterator[Replica]:
    """The one replica of the one engine, `home`, which serves the large model."""
    async with Replica("home-0") as replica:
        await control_plane.publish(Pool({"home": [replica]}).table())
        yield replica
