import pytest
import pytest_asyncio

from tests.conformance.dialogue import FRONTEND, World
from tests.conformance.resources import snapshot
from xds_server.resource_types import TYPES


@pytest_asyncio.fixture
async def world():
    world = World()
    await world.start()
    yield world
    await world.stop()


@pytest.fixture(params=["sotw", "delta"])
def protocol(request):
    return request.param


@pytest.fixture(params=["ads", "single"])
def mode(request):
    return request.param


@pytest.fixture(params=TYPES, ids=lambda type_: type_.name)
def type_(request):
    return request.param


@pytest.fixture
def publish(world, type_):
    """Publish name=content of the type under test, for the front-end of the tests."""

    def publish(**contents: str) -> int:
        return world.server.publish(FRONTEND, snapshot(type_, contents))

    return publish


@pytest.fixture
def client(world, protocol, mode, type_):
    return world.client(protocol, mode, type_)
