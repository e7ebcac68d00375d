"""Demand from the metrics service of a real Envoy, with a static bootstrap."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
import pytest
from aiohttp import ClientSession, InvalidURL, web

from signals.demand import Demand, EnvoyNames
from signals.metrics_codec import Flush, MetricsDecoder
from signals.metrics_service import METHOD, MetricsService

KEY, SPELLING = (
    "meta-llama/Llama-3.3-70B-Instruct/interactive",
    "meta-llama/Llama-3_3-70B-Instruct/interactive",
)
ENVOY = Path(sys.executable).with_name("envoy")
NAMES = EnvoyNames(
    keys={SPELLING: KEY},
    composites={f"{SPELLING}/live": (KEY, "live"), f"{SPELLING}/dead": (KEY, "dead")},
    members={"interactive/live": "live", "interactive/dead": "dead"},
)
COUNTERS = "|".join(
    f"upstream_{name}"
    for name in ("cx_connect_ms", "cx_connect_fail", "rq_total", "rq_completed", "rq_retry")
)
TYPE = "type.googleapis.com/envoy"


def cluster(name: str, port: int, **extra) -> dict:
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": address}}]}]
    load = {"cluster_name": name, "endpoints": endpoints}
    return {"name": name, "type": "STATIC", "connect_timeout": "1s", "load_assignment": load, **extra}


def composite(engine: str, fallback: str) -> dict:
    members = [{"name": f"interactive/{name}"} for name in (engine, engine, fallback)]
    return {
        "name": f"{SPELLING}/{engine}",
        "connect_timeout": "1s",
        "lb_policy": "CLUSTER_PROVIDED",
        "cluster_type": {
            "name": "envoy.clusters.composite",
            "typed_config": {
                "@type": f"{TYPE}.extensions.clusters.composite.v3.ClusterConfig",
                "clusters": members,
            },
        },
    }


def rate_limit(prefix: str) -> dict:
    filters = f"{TYPE}.extensions.filters.http.local_ratelimit.v3.LocalRateLimit"
    bucket = {"max_tokens": 4_000_000_000, "tokens_per_fill": 4_000_000_000, "fill_interval": "3600s"}
    everything, nothing = {"default_value": {"numerator": 100}}, {"default_value": {"numerator": 0}}
    return {
        "@type": filters,
        "stat_prefix": prefix,
        "token_bucket": bucket,
        "filter_enabled": everything,
        "filter_enforced": nothing,
    }


def bootstrap(control_plane: int, engine: int, dead: int, *, labels: bool) -> dict:
    http2 = {
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{TYPE}.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        }
    }
    retry = {"retry_on": "connect-failure,reset", "num_retries": 2}
    routes = [
        {
            "match": {"prefix": f"/{engine_name}"},
            "route": {"cluster": f"{SPELLING}/{engine_name}", "retry_policy": retry},
            "typed_per_filter_config": {
                "envoy.filters.http.local_ratelimit": rate_limit(f"demand.{SPELLING}")
            },
        }
        for engine_name in ("live", "dead")
    ]
    manager = {
        "@type": f"{TYPE}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "http",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
        "http_filters": [
            {
                "name": "envoy.filters.http.local_ratelimit",
                "typed_config": {
                    "@type": f"{TYPE}.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
                    "stat_prefix": "unused",
                },
            },
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{TYPE}.extensions.filters.http.router.v3.Router"},
            },
        ],
    }
    ephemeral = {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
    matcher = [
        {"suffix": ".http_local_rate_limit.enabled"},
        {"safe_regex": {"regex": rf"cluster\.[^.]+\.({COUNTERS})"}},
    ]
    sink = {
        "@type": f"{TYPE}.config.metrics.v3.MetricsServiceConfig",
        "transport_api_version": "V3",
        "emit_tags_as_labels": labels,
        "histogram_emit_mode": "HISTOGRAM",
        "grpc_service": {"envoy_grpc": {"cluster_name": "control_plane"}},
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    listener = {"name": "listener", "address": ephemeral, "filter_chains": [{"filters": filters}]}
    return {
        "node": {"id": "envoy-1", "cluster": "us-east"},
        "stats_flush_interval": "0.2s",
        "stats_config": {"stats_matcher": {"inclusion_list": {"patterns": matcher}}},
        "stats_sinks": [{"name": "envoy.stat_sinks.metrics_service", "typed_config": sink}],
        "admin": {"address": ephemeral},
        "static_resources": {
            "listeners": [listener],
            "clusters": [
                cluster("control_plane", control_plane, **http2),
                cluster("interactive/live", engine),
                cluster("interactive/dead", dead),
                composite("live", "live"),
                composite("dead", "live"),
            ],
        },
    }


class Hearing(Demand):
    """Keeps when the latest flush was read, by Envoy's clock."""

    read_at: float | None = None

    def observe(self, frontend: str, node_id: str, flush: Flush, now: float) -> None:
        self.read_at = flush.read_at
        super().observe(frontend, node_id, flush, now)


@dataclass
class ControlPlane:
    """A metrics service on a port that it keeps over restarts."""

    demand: Demand
    port: int = 0
    flushed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _server: grpc.aio.Server | None = None

    async def start(self) -> None:
        service = MetricsService(self.demand, frontends=lambda: ["us-east"], on_flush=self._on_flush)
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((service,))
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)

    def _on_flush(self, frontend: str, node_id: str) -> None:
        async def notify() -> None:
            async with self.flushed:
                self.flushed.notify_all()

        self._task = asyncio.ensure_future(notify())

    async def until_counted(self, total: float) -> None:
        loop = asyncio.get_running_loop()

        def counted() -> bool:
            # Monotonic time of the service is the loop's on Linux.
            found = self.demand.view(loop.time()).demand.get(("us-east", KEY))
            return found is not None and found.total >= total

        async with asyncio.timeout(20), self.flushed:
            await self.flushed.wait_for(counted)


@contextlib.asynccontextmanager
async def engine_server():
    app = web.Application()

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="ok")

    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


@contextlib.asynccontextmanager
async def envoy(config: dict, folder: Path):
    (folder / "envoy.json").write_text(json.dumps(config))
    process = await asyncio.create_subprocess_exec(
        *(str(ENVOY), "-c", str(folder / "envoy.json"), "--use-dynamic-base-id", "--concurrency", "1"),
        *("-l", "error", "--admin-address-path", str(folder / "admin")),
    )
    try:
        yield await listener_port(folder / "admin")
    finally:
        process.terminate()
        await process.wait()


async def listener_port(admin_file: Path) -> int:
    """The port that Envoy's one listener has bound; Envoy has no event for that, so it is asked again."""
    for _ in range(1000):
        with contextlib.suppress(OSError, IndexError, KeyError, InvalidURL):  # the file may be empty yet
            admin = await asyncio.to_thread(admin_file.read_text)
            async with (
                ClientSession() as session,
                session.get(f"http://{admin}/listeners?format=json") as response,
            ):
                return (await response.json())["listener_statuses"][0]["local_address"]["socket_address"][
                    "port_value"
                ]
        await asyncio.sleep(0.02)
    raise AssertionError("Envoy did not start")


@pytest.fixture
def refusing_port():
    """A port that is taken and refuses connections."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.mark.parametrize("labels", [True, False])
async def test_requests_are_counted_once_whatever_becomes_of_them(labels, tmp_path, refusing_port):
    demand = Hearing(NAMES, window_s=1.0)
    control_plane = ControlPlane(demand)
    await control_plane.start()
    async with (
        engine_server() as engine,
        envoy(bootstrap(control_plane.port, engine, refusing_port, labels=labels), tmp_path) as port,
        ClientSession(f"http://127.0.0.1:{port}") as client,
    ):

        async def ask(path: str, times: int) -> None:
            for _ in range(times):
                async with client.get(path) as response:
                    assert response.status == 200

        await ask("/live", 30)
        await ask("/dead", 20)
        await control_plane.until_counted(50)

        # The control plane is away: absolute counters lose nothing.
        await control_plane.stop()
        await ask("/live", 25)
        await control_plane.start()
        await control_plane.until_counted(75)
        assert demand.read_at == pytest.approx(time.time(), abs=20.0)

        view = demand.view(asyncio.get_running_loop().time())
        asked = view.demand["us-east", KEY]
        assert asked.total == 75
        assert asked.rps > 0
        dead = view.answers["us-east", KEY, "dead"]
        assert (dead.completed_total, dead.retry_total) == (20, 40)
        assert view.answers["us-east", KEY, "live"].completed_total == 55
        assert view.engines["us-east", "live"].sent_total == 75
        assert view.engines["us-east", "dead"].connect_failures_total == 40
        assert view.engines["us-east", "live"].rtt_ms is not None
        assert set(view.age_s) == {"us-east"}
    await control_plane.stop()


@pytest.mark.parametrize(
    ("code", "data"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, b"\xff\xff"),
        (grpc.StatusCode.INVALID_ARGUMENT, b""),
        (grpc.StatusCode.PERMISSION_DENIED, b"\x0a\x0c\x0a\x0a\x0a\x01a\x12\x05other"),
    ],
)
async def test_a_stream_that_is_not_of_an_envoy_of_the_policy_is_refused(code, data):
    control_plane = ControlPlane(Demand(NAMES))
    await control_plane.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{control_plane.port}") as channel:
        call = channel.stream_unary(METHOD)(iter([data]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is code
    assert control_plane.demand.view(0.0).age_s == {}
    await control_plane.stop()


def test_the_decoder_reads_node_counters_gauges_and_histograms():
    flush = MetricsDecoder().decode(b"\x0a\x0c\x0a\x0a\x0a\x01a\x12\x05front")
    assert (flush.node, flush.points) == (("front", "a"), ())
