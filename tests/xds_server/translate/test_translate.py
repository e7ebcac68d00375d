"""The translator as a pure function, and what it encodes again when something changes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.route.v3 import RouteConfiguration
from envoy_data_plane.envoy.extensions.clusters.composite.v3 import ClusterConfig

from tests.xds_server.translate.tables import LARGE, SMALL, table, with_frontend
from xds_server.resource_types import CDS, EDS, LDS, RDS, RTDS
from xds_server.routing import TOTAL_WEIGHT, Endpoint, Engine, Listener, Model, RoutingTable, TrafficClass
from xds_server.snapshot import Snapshot
from xds_server.translate import Translator, names, translate


def resources(snapshot: Snapshot) -> dict[tuple[str, str], object]:
    return {
        (type_.rpartition(".")[2], name): resource
        for type_, by_name in snapshot.types.items()
        for name, resource in by_name.items()
    }


def changed(before: Snapshot, after: Snapshot) -> set[tuple[str, str]]:
    """Return (type, name) of the resources that are not the very objects of before."""
    old, new = resources(before), resources(after)
    return {key for key in old.keys() | new.keys() if old.get(key) is not new.get(key)}


def bodies(snapshot: Snapshot) -> dict[str, dict[str, bytes]]:
    return {t: {name: each.body for name, each in by.items()} for t, by in snapshot.types.items()}


def routes(snapshot: Snapshot) -> RouteConfiguration:
    return RouteConfiguration.parse(snapshot.of_type(RDS.url)[names.ROUTES].body)


def weighted(snapshot: Snapshot) -> Iterator[object]:
    for host in routes(snapshot).virtual_hosts:
        for route in host.routes:
            if route.route and route.route.weighted_clusters:
                yield route


def test_a_snapshot_of_every_front_end_can_be_served() -> None:
    for frontend in table().frontends:
        assert translate(table(), frontend).check([names.RUNTIME_LAYER]) == []


def test_the_order_of_keys_and_sets_does_not_matter() -> None:
    whole = table()
    frontend = whole.frontends["us-east"]
    turned = replace(
        whole,
        models=whole.models[::-1],
        classes=whole.classes[::-1],
        listeners=whole.listeners[::-1],
        engines=dict(reversed(whole.engines.items())),
        frontends={
            "us-east": replace(
                frontend,
                splits=tuple(
                    replace(
                        split,
                        fallback=dict(reversed(split.fallback.items())),
                        retry_limit=dict(reversed(split.retry_limit.items())),
                    )
                    for split in frontend.splits[::-1]
                ),
                endpoints={k: v[::-1] for k, v in reversed(frontend.endpoints.items())},
            )
        },
    )
    assert bodies(translate(turned, "us-east")) == bodies(translate(whole, "us-east"))


def test_the_weights_of_every_route_sum_to_the_constant_of_the_product() -> None:
    assert TOTAL_WEIGHT == 1 << 20
    assert math.gcd(TOTAL_WEIGHT, Engine("any").maglev_table_size) == 1
    found = list(weighted(translate(table(), "us-east")))
    assert len(found) == 8
    for route in found:
        assert sum(each.weight for each in route.route.weighted_clusters.clusters) == TOTAL_WEIGHT
        assert route.route.weighted_clusters.use_hash_policy is True


def test_entries_keep_their_order_since_it_is_the_partition() -> None:
    found = [
        [(each.name, each.weight) for each in route.route.weighted_clusters.clusters]
        for route in weighted(translate(table(), "us-east"))
    ]
    home, away = (names.composite(LARGE, "interactive", engine) for engine in ("home", "away"))
    half = TOTAL_WEIGHT // 2
    shed = names.shed(LARGE, "interactive")
    assert [(home, half), (away, half // 2), (home, half // 4), (shed, half // 4)] in found


def test_there_is_one_retry_less_than_a_composite_is_long() -> None:
    snapshot = translate(table(), "us-east")
    (retries,) = {route.route.retry_policy.num_retries for route in weighted(snapshot)}
    composites = [Cluster.parse(each.body).cluster_type for each in snapshot.of_type(CDS.url).values()]
    lengths = {len(ClusterConfig.parse(each.typed_config.value).clusters) for each in composites if each}
    assert lengths == {retries + 1}


def test_streams_pause_only_so_long_and_whole_answers_may_take_their_time() -> None:
    model = replace(table().models[0], stream_idle_s=0.25, longest_generation_s=100.5)
    snapshot = translate(table(models=(model, table().models[1])), "us-east")
    host = next(each for each in routes(snapshot).virtual_hosts if each.name == names.spelled(LARGE))
    limits = [
        (
            any(each.name == names.STREAM_HEADER for each in route.match.headers),
            route.route.idle_timeout.total_seconds(),
        )
        for route in host.routes
        if route.route
    ]
    assert set(limits) == {(True, 0.25), (False, 100.5)}


def test_every_member_has_an_assignment_even_an_empty_one() -> None:
    snapshot = translate(table(), "us-east")
    members = {"interactive/home", "interactive/away", "batch/home", "batch/away"}
    assert members <= snapshot.of_type(EDS.url).keys()
    assert b"10.0.0" not in snapshot.of_type(EDS.url)["batch/away"].body


def test_engines_without_a_share_have_their_clusters_when_they_may_get_one() -> None:
    clusters = translate(table(), "us-east").of_type(CDS.url)
    assert names.composite(LARGE, "batch", "home") in clusters
    assert "batch/home" in clusters


class TestWhatIsEncodedAgain:
    def test_nothing_when_nothing_changed(self) -> None:
        translator = Translator()
        before = translator.translate(table(), "us-east")
        assert changed(before, translator.translate(table(), "us-east")) == set()

    def test_the_routes_when_a_share_changed(self) -> None:
        translator = Translator()
        before = translator.translate(table(), "us-east")
        splits = table().frontends["us-east"].splits
        moved = replace(splits[1], entries=(("home", 1), ("away", TOTAL_WEIGHT - 1)))
        after = translator.translate(
            with_frontend(table(), "us-east", splits=(splits[0], moved, *splits[2:])), "us-east"
        )
        assert changed(before, after) == {("RouteConfiguration", "requests")}
        assert after.of_type(RDS.url)["requests"] != before.of_type(RDS.url)["requests"]

    def test_an_engines_assignments_when_a_replica_changed(self) -> None:
        translator = Translator()
        before = translator.translate(table(), "us-east")
        endpoints = {**table().frontends["us-east"].endpoints, "home": ()}
        after = translator.translate(with_frontend(table(), "us-east", endpoints=endpoints), "us-east")
        members = ["interactive/home", "batch/home"]
        assert changed(before, after) == {("ClusterLoadAssignment", name) for name in members}

    def test_the_runtime_layer_when_a_limit_changed(self) -> None:
        translator = Translator()
        before = translator.translate(table(), "us-east")
        splits = table().frontends["us-east"].splits
        limited = replace(splits[0], retry_limit={"home": 13}, request_limit={})
        after = translator.translate(
            with_frontend(table(), "us-east", splits=(limited, *splits[1:])), "us-east"
        )
        assert changed(before, after) == {("Runtime", "headrace")}

    def test_a_composite_when_a_fallback_changed(self) -> None:
        translator = Translator()
        before = translator.translate(table(), "us-east")
        splits = table().frontends["us-east"].splits
        alone = replace(splits[0], fallback={"away": "home"})
        after = translator.translate(
            with_frontend(table(), "us-east", splits=(alone, *splits[1:])), "us-east"
        )
        assert changed(before, after) == {("Cluster", names.composite(LARGE, "interactive", "home"))}

    def test_no_listener_when_a_model_is_new(self) -> None:
        translator = Translator()
        before = translator.translate(table(), "us-east")
        more = (*table().models, Model("qwen/Qwen3-4B.v2", ("qwen/Qwen3-4B.v2",)))
        after = translator.translate(table(models=more), "us-east")
        assert {kind for kind, _ in changed(before, after)} == {"RouteConfiguration"}

    def test_nothing_for_another_front_end_that_says_the_same(self) -> None:
        translator = Translator()
        one = translator.translate(table(), "us-east")
        other = translator.translate(table(), "eu-west")
        shared = resources(one).keys() & resources(other).keys()
        assert {key for key in shared if resources(one)[key] is not resources(other)[key]} == {
            ("RouteConfiguration", "requests")
        }

    def test_a_table_that_contradicts_itself_leaves_all_as_it_was(self) -> None:
        translator = Translator()
        before = translator.translate(table(), "us-east")
        with pytest.raises(ValueError, match="unknown engines"):
            translator.translate(table(engines={}), "us-east")
        assert changed(before, translator.translate(table(), "us-east")) == set()


def with_model(**changes: object) -> RoutingTable:
    return table(models=(replace(table().models[0], **changes), table().models[1]))


def with_third(name: str) -> RoutingTable:
    return table(models=(*table().models, Model(name, ("third/model.1",))))


def with_split(**changes: object) -> RoutingTable:
    splits = table().frontends["us-east"].splits
    return with_frontend(table(), "us-east", splits=(replace(splits[0], **changes), *splits[1:]))


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (with_split(entries=(("home", TOTAL_WEIGHT - 1),)), "widths sum to 1048575, expected 1048576"),
        (with_split(entries=(("gone", TOTAL_WEIGHT),)), "unknown engines"),
        (with_split(fallback={"home": "gone"}), "unknown engines"),
        (with_split(model="gone/model.1"), "unknown models"),
        (with_third("meta-llama/Llama-3_1-8B-Instruct"), "are both spelled"),
        (with_third("shed"), "taken by refused requests"),
        (with_model(session_keys=("cookie:session",)), "expected header:<name> or body:<field>"),
        (with_model(session_keys=("body:a)b",)), "expected header:<name> or body:<field>"),
        (with_model(session_keys=("header:X-Headrace-Key",)), "are internal"),
        (with_model(session_keys=("body:user", "body:User")), "too alike"),
        (with_model(served_as=(SMALL.upper(),)), "are both served as"),
        (with_model(served_as=("-",)), "cannot be a model's name"),
        (with_model(served_as=("chat*",)), "only adapters may end"),
        (with_model(adapters=("*",)), "cannot be a model's name"),
        (with_model(adapters=("a*b",)), "cannot be a model's name"),
        (table(classes=(TrafficClass("interactive"),)), "unknown traffic classes"),
        (table(listeners=(Listener("public", 1, "gone"),)), "unknown traffic classes"),
        (
            table(classes=(TrafficClass("interactive"), TrafficClass("batch", "x-headrace-class"))),
            "are internal",
        ),
        (table(engines={**table().engines, "home": Engine("home", lb_policy="random")}), "is not one of"),
    ],
)
def test_a_table_that_envoy_could_not_serve_is_refused_by_name(broken: RoutingTable, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        translate(broken, "us-east")


def test_an_unknown_front_end_is_refused() -> None:
    with pytest.raises(ValueError, match="'mars' is not in the table; known are eu-west, us-east"):
        translate(table(), "mars")


def test_of_two_replicas_at_one_address_one_is_kept() -> None:
    twice = (Endpoint("b", "10.0.0.1", 8000), Endpoint("a", "10.0.0.1", 8000))
    endpoints = {**table().frontends["us-east"].endpoints, "home": twice}
    once = {**endpoints, "home": twice[1:]}
    found = [
        translate(with_frontend(table(), "us-east", endpoints=each), "us-east").of_type(EDS.url)
        for each in (endpoints, once)
    ]
    assert found[0]["interactive/home"] == found[1]["interactive/home"]


def test_names_of_one_model_may_differ_by_case() -> None:
    model = replace(table().models[0], served_as=("Acme/Chat.1", "acme/chat.1"), adapters=("LoRA-*",))
    snapshot = translate(table(models=(model, table().models[1])), "us-east")
    host = next(each for each in routes(snapshot).virtual_hosts if each.name == names.spelled(LARGE))
    assert host.domains == ["acme/chat.1", "lora-*"]


def test_the_limits_are_named_for_the_cluster_that_reads_them() -> None:
    body = translate(table(), "us-east").of_type(RTDS.url)[names.RUNTIME_LAYER].body
    composite = names.composite(LARGE, "interactive", "home")
    assert f"circuit_breakers.{composite}.default.retry_budget.min_retry_concurrency".encode() in body
    assert b"circuit_breakers.interactive/home.default.max_requests" in body


class TestNames:
    def test_names_inside_envoy_have_no_dots_and_one_slash_a_part(self) -> None:
        assert names.composite(LARGE, "batch", "us-1") == "meta-llama_Llama-3_3-70B-Instruct/batch/us-1"
        assert names.shed("a.b", "batch") == "shed/a_b/batch"

    def test_a_counter_is_read_back_to_its_key(self) -> None:
        table = names.ModelNames.of([LARGE, SMALL])
        stat = names.demand_prefix(SMALL, "batch") + names.DEMAND_SUFFIX
        assert table.demand_key(stat) == (SMALL, "batch")
        assert table.composite_key(names.composite(LARGE, "batch", "home")) == (LARGE, "batch", "home")

    @pytest.mark.parametrize(
        "stat", ["demand.gone/batch.http_local_rate_limit.enabled", "cluster.x.upstream_rq_total", ""]
    )
    def test_other_counters_are_no_demand(self, stat: str) -> None:
        assert names.ModelNames.of([LARGE]).demand_key(stat) is None

    def test_other_clusters_are_no_composite(self) -> None:
        table = names.ModelNames.of([LARGE])
        for cluster in ("interactive/home", names.shed(LARGE, "batch"), "xds", "a/b/c"):
            assert table.composite_key(cluster) is None


def test_listeners_are_the_tables() -> None:
    assert translate(table(), "us-east").of_type(LDS.url).keys() == {"public", "internal"}
