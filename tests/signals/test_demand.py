"""Demand on the pure core: absolute counters to rates and totals."""

from __future__ import annotations

import pytest

from signals.demand import Demand, DemandState, EnvoyNames, Outcomes
from signals.metrics_codec import Flush, Point

KEY = "meta-llama/Llama-3.3-70B-Instruct/interactive"
SPELLING = "meta-llama/Llama-3_3-70B-Instruct/interactive"
SHED = f"shed/{SPELLING}"
COMPOSITE = f"{SPELLING}/us-h100"
NAMES = EnvoyNames(
    keys={SPELLING: KEY},
    composites={COMPOSITE: (KEY, "us-h100")},
    members={"interactive/us-h100": "us-h100", "batch/us-h100": "us-h100"},
    sheds={SHED: KEY},
)


def flush(demand: float | None = None, *points: Point) -> Flush:
    counter = (
        [Point(f"demand.{SPELLING}.http_local_rate_limit.enabled", "", demand)] if demand is not None else []
    )
    return Flush(None, (*counter, *points))


def steady(demand: Demand, rps: float, *, node="a", start=0.0, until=100.0, offset=0.0) -> None:
    """Flushes every 5 s of an Envoy that counts `rps`."""
    now = start
    while now <= until:
        demand.observe("us", node, flush(offset + rps * (now - start)), now)
        now += 5.0


@pytest.fixture
def demand() -> Demand:
    return Demand(NAMES, window_s=30.0)


def point(demand: Demand, now: float):
    return demand.view(now).demand[("us", KEY)]


def test_a_steady_counter_is_its_rate_from_the_second_flush_on(demand):
    demand.observe("us", "a", flush(1000), 0.0)
    assert demand.view(0.0).demand == {}
    demand.observe("us", "a", flush(1050), 5.0)
    assert point(demand, 5.0).rps == pytest.approx(10.0)
    assert point(demand, 5.0).total == 1050


def test_envoys_of_one_frontend_add_up(demand):
    steady(demand, 10.0, node="a")
    steady(demand, 20.0, node="b")
    assert point(demand, 100.0).rps == pytest.approx(30.0)


def test_the_first_use_of_a_counter_counts_from_zero(demand):
    demand.observe("us", "a", flush(), 0.0)
    demand.observe("us", "a", flush(50), 5.0)
    assert point(demand, 5.0).rps == pytest.approx(10.0)


def test_totals_are_exact_over_an_outage_of_the_control_plane(demand):
    steady(demand, 100.0, until=50.0)
    demand.observe("us", "a", flush(100.0 * 56), 56.0)
    assert point(demand, 56.0).total == 5600
    assert point(demand, 56.0).rps == pytest.approx(100.0)


def test_a_decrease_is_a_restart(demand):
    steady(demand, 10.0, until=50.0)
    demand.observe("us", "a", flush(40), 55.0)
    assert point(demand, 55.0).total == 540
    demand.observe("us", "a", flush(), 60.0)
    demand.observe("us", "a", flush(50), 65.0)
    assert point(demand, 65.0).total == 590


def test_a_step_is_followed_with_the_stated_time_constant(demand):
    steady(demand, 0.0, until=200.0)
    steady(demand, 100.0, start=200.0, until=215.0)
    assert point(demand, 215.0).rps == pytest.approx(100 * (1 - 2.718281828**-1), rel=0.02)


def test_two_late_flushes_at_once_make_no_spike(demand):
    steady(demand, 10.0, until=100.0)
    demand.observe("us", "a", flush(1050), 110.0)
    demand.observe("us", "a", flush(1100), 110.0)
    assert point(demand, 110.0).rps == pytest.approx(10.0, rel=0.4)


def test_demand_is_held_and_then_decays_when_a_frontend_falls_silent(demand):
    steady(demand, 10.0, until=100.0)
    assert point(demand, 101.0).state is DemandState.LIVE
    held = point(demand, 200.0)
    assert (held.state, held.age_s) == (DemandState.HELD, 100.0)
    assert held.rps == pytest.approx(10.0)
    decaying = point(demand, 100.0 + 120.0 + 120.0)
    assert decaying.state is DemandState.DECAYING
    assert decaying.rps == pytest.approx(5.0)


def test_an_envoy_that_stops_beside_live_ones_fades_with_the_smoothing(demand):
    steady(demand, 10.0, node="a", until=100.0)
    steady(demand, 10.0, node="b", until=250.0)
    assert point(demand, 250.0).rps == pytest.approx(10.0, rel=0.01)


def test_a_key_never_seen_is_absent_and_one_without_traffic_is_zero(demand):
    assert ("us", KEY) not in demand.view(0.0).demand
    steady(demand, 0.0, offset=100.0)
    assert point(demand, 100.0).rps == 0.0


def test_saved_demand_stands_until_the_frontend_has_told_more(demand):
    demand.restore({("us", KEY): 30.0}, 0.0)
    assert point(demand, 0.0).rps == 30.0
    assert point(demand, 0.0).state is DemandState.HELD
    steady(demand, 10.0, start=1.0, until=11.0)
    assert point(demand, 11.0).rps == 30.0, "the first Envoy heard is not the whole front-end"
    steady(demand, 10.0, node="b", start=2.0, until=17.0)
    assert point(demand, 17.0).rps == pytest.approx(20.0)


def test_names_may_change_while_counters_go_on(demand):
    demand.names = EnvoyNames()
    steady(demand, 10.0)
    assert demand.view(100.0).demand == {}
    demand.names = NAMES
    assert point(demand, 100.0).rps == pytest.approx(10.0)


def test_answers_retries_and_engine_traffic_come_from_the_clusters(demand):
    for step in range(10):
        demand.observe(
            "us",
            "a",
            flush(
                step * 50.0,
                Point("cluster.upstream_rq_completed", COMPOSITE, step * 50.0),
                Point("cluster.upstream_rq_retry", COMPOSITE, step * 5.0),
                Point("cluster.upstream_rq_total", "interactive/us-h100", step * 40.0),
                Point("cluster.upstream_rq_total", "batch/us-h100", step * 10.0),
                Point("cluster.upstream_rq_active", "interactive/us-h100", 7.0),
                Point("cluster.upstream_cx_connect_fail", "interactive/us-h100", float(step)),
                Point("cluster.upstream_cx_connect_ms", "interactive/us-h100", 160.0, 2),
                Point("cluster.upstream_rq_total", "not-ours", 1e9),
            ),
            step * 5.0,
        )
    view = demand.view(45.0)
    answers = view.answers["us", KEY, "us-h100"]
    assert (answers.completed_total, answers.retry_total) == (450.0, 45.0)
    assert answers.retry_rps == pytest.approx(1.0)
    engine = view.engines["us", "us-h100"]
    assert (engine.sent_total, engine.connect_failures_total, engine.active) == (450.0, 9.0, 7.0)
    assert engine.rtt_ms == pytest.approx(80.0)
    assert view.demand["us", KEY].rps == pytest.approx(10.0)


def test_distance_is_unknown_until_a_connection_was_opened(demand):
    demand.observe("us", "a", flush(0, Point("cluster.upstream_rq_total", "batch/us-h100", 1.0)), 0.0)
    assert demand.view(0.0).engines["us", "us-h100"].rtt_ms is None


def ended(answered: float, failed: float = 0.0, shed: float = 0.0) -> Flush:
    """A flush of an Envoy that has counted so many outcomes."""
    half = answered / 2
    return flush(
        answered + failed + shed,
        Point("cluster.upstream_rq_completed", COMPOSITE, answered + failed),
        Point("cluster.upstream_rq_2xx", COMPOSITE, half),
        Point("cluster.upstream_rq_4xx", COMPOSITE, answered - half),
        Point("cluster.upstream_rq_5xx", COMPOSITE, failed),
        Point("cluster.upstream_rq_completed", SHED, shed),
        Point("cluster.upstream_rq_5xx", SHED, shed),
    )


def test_outcomes_count_from_when_an_envoy_was_first_heard(demand):
    demand.observe("us", "a", ended(1000.0, failed=10.0, shed=5.0), 0.0)
    assert demand.view(0.0).outcomes["us", KEY] == Outcomes(0.0, 0.0, 0.0)
    demand.observe("us", "a", ended(1100.0, failed=12.0, shed=9.0), 5.0)
    assert demand.view(5.0).outcomes["us", KEY] == Outcomes(ok=100.0, error=2.0, shed=4.0)


def test_outcomes_never_fall_when_an_envoy_is_forgotten_or_comes_back(demand):
    seen = []

    def look(now: float) -> None:
        seen.append(demand.view(now).outcomes["us", KEY].ok)

    for now in range(0, 101, 5):
        demand.observe("us", "a", ended(50.0 * now), now)
        demand.observe("us", "b", ended(10.0 * now), now)
        look(now)
    for now in range(105, 4000, 60):  # "a" is silent until it is forgotten
        demand.observe("us", "b", ended(10.0 * now), now)
        look(now)
    for now in range(4000, 4100, 5):
        demand.observe("us", "a", ended(50.0 * now), now)
        look(now)
    look(10_000)  # both forgotten
    demand.observe("us", "c", ended(7.0), 10_005.0)
    look(10_005)
    assert seen == sorted(seen)
    # What "a" counted while nobody listened for over an hour is not in it, and nothing is in it twice.
    assert seen[-1] == 50.0 * 100 + 10.0 * 3945 + 50.0 * 95


def test_an_average_that_begins_anew_is_what_was_said_and_then_what_comes(demand):
    steady(demand, 10.0, until=50.0)
    demand.begin_anew("us", KEY, 40.0, 50.0)
    assert point(demand, 50.0).rps == pytest.approx(40.0)
    demand.observe("us", "a", flush(500 + 5 * 60.0), 55.0)
    assert 55.0 < point(demand, 55.0).rps < 60.0
    assert point(demand, 55.0).total == 800


def test_envoys_keep_their_parts_of_an_average_that_begins_anew(demand):
    steady(demand, 10.0, node="a")
    steady(demand, 30.0, node="b")
    demand.begin_anew("us", KEY, 80.0, 100.0)
    assert point(demand, 100.0).rps == pytest.approx(80.0)
    demand.observe("us", "b", flush(30.0 * 100 + 5 * 60.0), 105.0)
    demand.observe("us", "a", flush(10.0 * 100 + 5 * 20.0), 105.0)
    assert point(demand, 105.0).rps == pytest.approx(80.0)


def test_what_no_envoy_has_told_of_does_not_begin_anew(demand):
    demand.begin_anew("us", KEY, 40.0, 0.0)
    assert demand.view(0.0).demand == {}


def test_an_envoy_that_is_gone_takes_no_part_of_an_average_that_begins_anew(demand):
    steady(demand, 50.0, node="old", until=100.0)
    steady(demand, 100.0, node="new", start=100.0, until=400.0)
    assert demand.latest("us", KEY, 400.0) == pytest.approx((100.0, 100.0))
    demand.begin_anew("us", KEY, 120.0, 400.0)
    assert point(demand, 400.0).rps == pytest.approx(120.0)


def test_what_came_lately_remembers_nothing_of_what_was_before(demand):
    steady(demand, 10.0, node="a", until=100.0)
    steady(demand, 30.0, node="b", until=100.0)
    for now in (105.0, 110.0):
        demand.observe("us", "a", flush(1000 + 20.0 * (now - 100)), now)
        demand.observe("us", "b", flush(3000 + 60.0 * (now - 100)), now)
    assert demand.latest("us", KEY, 110.0) == pytest.approx((80.0, 80.0))


def test_what_came_lately_lies_between_the_last_interval_and_the_last_two(demand):
    steady(demand, 10.0, until=50.0)
    demand.observe("us", "a", flush(550), 55.0)
    demand.observe("us", "a", flush(700), 60.0)
    assert demand.latest("us", KEY, 60.0) == pytest.approx((20.0, 30.0))


def test_a_flush_counts_for_when_it_was_read_not_for_when_it_arrived():
    demand = Demand(NAMES, window_s=4.0)
    for read_at in range(0, 60, 5):
        late_s = 4.3 if read_at == 50 else 0.0
        points = flush(10.0 * read_at).points
        demand.observe("us", "a", Flush(None, points, read_at + 1e9), read_at + late_s)
        if read_at > 5:
            assert point(demand, read_at + late_s).rps == pytest.approx(10.0, rel=1e-2)


def test_nothing_came_lately_of_what_no_envoy_has_told_of(demand):
    assert demand.latest("us", KEY, 0.0) == (0.0, 0.0)
