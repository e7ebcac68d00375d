"""The Envoy of the wheel as client, in every variant of the protocol, through a small control plane."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest_asyncio
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.route import v3 as route

from headrace.envoy_process import EnvoyProcess
from tests.conformance import resources
from tests.conformance.dialogue import FRONTEND, World
from tests.conformance.resources import assignment, composite_cluster, http_listener, layer, routes
from xds_server.events import Acked, Nacked, Sent
from xds_server.resource_types import CDS, RDS
from xds_server.resources import Resource
from xds_server.snapshot import Snapshot

VARIANTS = [("sotw", "ads"), ("delta", "ads"), ("sotw", "single"), ("delta", "single")]
ADS = {"ads": {}, "resource_api_version": "V3"}


@dataclass(frozen=True)
class Bootstrap:
    """A bootstrap with nothing in it but how to reach the control plane."""

    xds_ports: tuple[int, ...]
    protocol: str
    mode: str

    def source(self) -> dict:
        if self.mode == "ads":
            return ADS
        return {"api_config_source": self._api("GRPC" if self.protocol == "sotw" else "DELTA_GRPC"),
                "resource_api_version": "V3"}  # fmt: skip

    def write(self, folder: Path) -> Path:
        path = folder / "bootstrap.yaml"
        path.write_text(json.dumps(self._document()))
        return path

    def _document(self) -> dict:
        dynamic = {"cds_config": self.source(), "lds_config": self.source()}
        if self.mode == "ads":
            dynamic["ads_config"] = self._api("GRPC" if self.protocol == "sotw" else "DELTA_GRPC")
        return {
            "node": {"id": "envoy-1", "cluster": FRONTEND},
            "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
            "dynamic_resources": dynamic,
            "static_resources": {"clusters": [self._xds_cluster()]},
            "layered_runtime": {
                "layers": [
                    {"name": "headrace", "rtds_layer": {"name": "headrace", "rtds_config": self.source()}}
                ]
            },
        }

    def _api(self, api_type: str) -> dict:
        back_off = {"retry_back_off": {"base_interval": "0.05s", "max_interval": "0.2s"}}
        grpc = {"envoy_grpc": {"cluster_name": "xds", "retry_policy": back_off}}
        return {
            "api_type": api_type,
            "transport_api_version": "V3",
            "set_node_on_first_message_only": True,
            "grpc_services": [grpc],
        }

    def _xds_cluster(self) -> dict:
        addresses = [{"socket_address": {"address": "127.0.0.1", "port_value": p}} for p in self.xds_ports]
        http2 = {"explicit_http_config": {"http2_protocol_options": {}}}
        kind = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
        return {
            "name": "xds",
            "type": "STATIC",
            "typed_extension_protocol_options": {kind: {"@type": f"type.googleapis.com/{kind}", **http2}},
            "load_assignment": {
                "cluster_name": "xds",
                "endpoints": [{"lb_endpoints": [{"endpoint": {"address": each}} for each in addresses]}],
            },
        }


class Backend:
    """Answers every request with its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader, writer) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(self.name)}\r\n\r\n"
                writer.write(head.encode() + self.name.encode())
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@pytest_asyncio.fixture
async def backends():
    found = Backend("one"), Backend("two")
    for backend in found:
        await backend.start()
    yield found
    for backend in found:
        await backend.stop()


class Site:
    """One Envoy, its control plane, and requests through it."""

    def __init__(self, world: World, envoy: EnvoyProcess, bootstrap: Bootstrap) -> None:
        self.world, self.envoy, self.bootstrap = world, envoy, bootstrap
        self.port = 0

    async def settled(self) -> None:
        """Wait until Envoy has confirmed everything."""
        sequence = self.world.server.confirmed
        current = self.world.server.sequence(FRONTEND)
        await self.world.until(lambda: sequence(FRONTEND) == current)

    async def serves(self, *found: Resource) -> None:
        self.world.server.publish(FRONTEND, Snapshot.of([*found, layer("headrace")]))
        await self.settled()

    async def get(self, path: str = "/") -> tuple[int, str]:
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{self.port}{path}") as answer:
            return answer.status, await answer.text()


def fleet(**engines: int) -> list[Resource]:
    """A listener, a route to the first engine, and a composite and a member for each."""
    names = list(engines)
    found = [http_listener("l", "r"), routes("r", f"to/{names[0]}", content=names[0])]
    for name, port in engines.items():
        found += [composite_cluster(f"to/{name}", name), resources.eds_cluster(name), assignment(name, port)]
    return found


@pytest_asyncio.fixture(params=VARIANTS, ids=["-".join(variant) for variant in VARIANTS])
async def site(request, world, backends, monkeypatch):
    bootstrap = Bootstrap((port_of(world),), *request.param)
    monkeypatch.setattr(resources, "ADS", core.ConfigSource.from_dict(bootstrap.source()))
    world.server.publish(FRONTEND, Snapshot.of([*fleet(a=backends[0].port), layer("headrace")]))
    async with EnvoyProcess(bootstrap) as envoy:
        site = Site(world, envoy, bootstrap)
        site.port = (await envoy.ready())["l"]
        await site.settled()
        yield site


async def test_starts_and_serves_and_follows_endpoints(site, backends):
    assert await site.get() == (200, "one")
    assert {event.type for event in site.world.of(Acked)} == {"cds", "eds", "lds", "rds", "rtds"}
    await site.serves(*fleet(a=backends[1].port))
    assert await site.get() == (200, "two")


async def test_moves_to_a_new_engine_without_losing_a_request_and_drops_the_old_one(site, backends):
    one, two = backends
    statuses = []

    async def load() -> None:
        async with aiohttp.ClientSession() as http:
            while True:
                async with http.get(f"http://127.0.0.1:{site.port}/") as answer:
                    statuses.append((answer.status, await answer.text() if answer.status != 200 else ""))

    task = asyncio.create_task(load())
    for _ in range(3):
        await site.serves(*fleet(b=two.port))
        assert await site.get() == (200, "two")
        await site.serves(*fleet(a=one.port))
        assert await site.get() == (200, "one")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert set(statuses) == {(200, "")}
    assert not site.world.of(Nacked)
    clusters = await site.envoy.get("/clusters?format=json")
    names = {each["name"] for each in json.loads(clusters)["cluster_statuses"]}
    assert names == {"xds", "a", "to/a"}


async def test_a_changed_member_cluster_is_not_left_warming(site, backends):
    found = fleet(a=backends[0].port)
    changed = [resources.eds_cluster("a", content="changed") if r.type_url == CDS.url and r.name == "a" else r
               for r in found]  # fmt: skip
    await site.serves(*changed)
    async with asyncio.timeout(10):  # Envoy itself would give up waiting after 15 s
        while await warming(site.envoy):  # noqa: ASYNC110 - Envoy has no event for it
            await asyncio.sleep(0.02)
    assert await site.get() == (200, "one")


async def test_a_refusal_keeps_the_last_good_routes_and_ends_with_good_ones(site, backends):
    world = site.world
    good = fleet(a=backends[0].port)
    bad_match = route.RouteMatch(safe_regex=resources_regex("("))
    bad = route.Route(match=bad_match, route=route.RouteAction(cluster="to/a"))
    host = route.VirtualHost(name="bad", domains=["*"], routes=[bad])
    refused = Resource.of(route.RouteConfiguration(name="r", virtual_hosts=[host]))
    other = [r for r in good if r.type_url != RDS.url]
    world.server.publish(FRONTEND, Snapshot.of([*other, refused, layer("headrace", "moved")]))
    await world.until(lambda: world.of(Nacked))
    await world.until(lambda: world.server.all_acked(FRONTEND, layer("headrace", "moved")))
    assert await site.get() == (200, "one")
    [event] = world.of(Nacked)
    assert (event.type, event.client.id) == (RDS.name, "envoy-1")
    assert "(" in event.message
    await site.serves(*fleet(a=backends[1].port))
    assert await site.get() == (200, "two")
    assert len(world.of(Nacked)) == 1
    assert world.of(Acked)[-1].recovered or any(event.recovered for event in world.of(Acked))


async def test_a_restarted_control_plane_disturbs_nothing(site, backends):
    world = site.world
    before = await site.envoy.counters(
        "(cluster_manager.cluster_modified|listener_manager.listener_(modified|added))"
    )
    snapshot = world.server.snapshot(FRONTEND)
    streams = len(world.server.connections())
    await world.lose()
    assert await site.get() == (200, "one")
    await world.start()
    world.server.publish(FRONTEND, snapshot)
    await world.until(lambda: len(world.server.connections()) == streams)
    await site.settled()
    assert await site.get() == (200, "one")
    after = await site.envoy.counters(
        "(cluster_manager.cluster_modified|listener_manager.listener_(modified|added))"
    )
    assert after == before


async def test_i08_another_replica_of_the_control_plane_takes_over_and_disturbs_nothing(backends):
    """Versions are content hashes, so the other replica has nothing to send but the empty answers to the
    wildcards."""
    worlds = World(), World()
    snapshot = Snapshot.of([*fleet(a=backends[0].port), layer("headrace")])
    for world in worlds:
        await world.start()
        world.server.publish(FRONTEND, snapshot)
    async with EnvoyProcess(Bootstrap(tuple(map(port_of, worlds)), "delta", "ads")) as envoy:
        await envoy.ready()
        [first] = [world for world in worlds if world.server.connections()]
        [second] = [world for world in worlds if world is not first]
        await first.until(lambda: first.server.confirmed(FRONTEND) == first.server.sequence(FRONTEND))
        await first.stop()
        await second.until(lambda: len(second.of(Acked)) == 2)
        assert {(event.type, event.resources) for event in second.of(Sent)} == {("cds", 0), ("lds", 0)}
        changed = Snapshot.of([*fleet(a=backends[1].port), layer("headrace")])
        sequence = second.server.publish(FRONTEND, changed)
        await second.until(lambda: second.server.confirmed(FRONTEND) == sequence)
    await second.stop()


def port_of(world: World) -> int:
    return int(world.address.rpartition(":")[2])


async def warming(envoy: EnvoyProcess) -> int:
    [(_, value)] = (await envoy.counters("cluster_manager.warming_clusters")).items()
    return value


def resources_regex(pattern: str):
    from envoy_data_plane.envoy.type.matcher.v3 import RegexMatcher

    return RegexMatcher(regex=pattern)
