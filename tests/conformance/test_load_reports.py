"""LRS: the slow cross-check."""

import asyncio
from datetime import timedelta

import grpc
import pytest
import pytest_asyncio
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.endpoint import v3 as endpoint
from envoy_data_plane.envoy.service.load_stats import v3 as load_stats
from grpc import aio

from tests.conformance.dialogue import FRONTEND, PATIENCE_S, World
from tests.conformance.resources import snapshot
from xds_server import lrs
from xds_server.resource_types import CDS

METHOD = f"/{lrs.SERVICE}/StreamLoadStats"


@pytest_asyncio.fixture
async def reports():
    """(queue of reports, channel)."""
    world, found = World(), asyncio.Queue()
    lrs.register(world.server, world._grpc, found.put_nowait, interval_s=30)
    await world.start()
    world.server.publish(FRONTEND, snapshot(CDS, {"a": "1"}))
    async with aio.insecure_channel(world.address) as channel:
        yield found, channel
    await world.stop()


def stats(cluster, *places, dropped=0):
    counted = [
        endpoint.UpstreamLocalityStats(
            total_issued_requests=issued, total_successful_requests=good, total_error_requests=bad
        )
        for issued, good, bad in places
    ]
    return endpoint.ClusterStats(
        cluster_name=cluster,
        upstream_locality_stats=counted,
        total_dropped_requests=dropped,
        load_report_interval=timedelta(seconds=30),
    )


async def test_i07_a_report_is_summed_by_cluster_and_a_new_stream_works_like_the_first(reports):
    found, channel = reports
    for _ in range(2):
        call = channel.stream_stream(METHOD)()
        node = core.Node(id="envoy-1", cluster=FRONTEND)
        await call.write(bytes(load_stats.LoadStatsRequest(node=node)))
        answer = load_stats.LoadStatsResponse.parse(await call.read())
        assert answer.send_all_clusters
        assert answer.load_reporting_interval == timedelta(seconds=30)
        told = [stats("interactive/us", (10, 7, 3), (5, 5, 0)), stats("shed/m/interactive", dropped=4)]
        await call.write(bytes(load_stats.LoadStatsRequest(cluster_stats=told)))
        async with asyncio.timeout(PATIENCE_S):
            report = await found.get()
        assert (report.node, report.frontend, report.interval_s) == ("envoy-1", FRONTEND, 30)
        assert report.clusters == {
            "interactive/us": lrs.ClusterLoad(issued=15, succeeded=12, failed=3, dropped=0),
            "shed/m/interactive": lrs.ClusterLoad(issued=0, succeeded=0, failed=0, dropped=4),
        }
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK


async def test_strangers_report_nothing(reports):
    found, channel = reports
    call = channel.stream_stream(METHOD)()
    node = core.Node(id="envoy-1", cluster="unheard-of")
    await call.write(bytes(load_stats.LoadStatsRequest(node=node, cluster_stats=[stats("x", (1, 1, 0))])))
    assert await call.code() is grpc.StatusCode.NOT_FOUND
    assert found.empty()


async def test_a_short_interval_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        lrs.register(World().server, aio.server(), lambda report: None, interval_s=0)
