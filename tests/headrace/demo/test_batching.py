"""The batch follows the profile's closed form. A simulated clock throughout."""

import random

import pytest

from headrace.demo.fake_engine.batching import Batch, Sequence
from headrace.demo.fake_engine.profile import EngineProfile

PROFILE = EngineProfile(t0_ms=15, lambda_max_rps=28, capacity_rps=25, ttft_base_ms=120, output_tokens=8)


def sequence(profile: EngineProfile = PROFILE, output_tokens: int = 8) -> Sequence:
    return Sequence(profile.input_tokens, output_tokens, profile.prefill_s(profile.input_tokens))


def drain(batch: Batch, until: float) -> None:
    while batch.poll(until) is not None:
        pass


def simulate(
    profile: EngineProfile, rps: float, requests: int = 20_000, **batch_options: int
) -> tuple[Batch, list[Sequence]]:
    """Poisson arrivals at `rps`; returns the batch and all requests in order of arrival."""
    batch, rng, now, sent = Batch(profile, **batch_options), random.Random(4), 0.0, []
    for _ in range(requests):
        now += rng.expovariate(rps)
        drain(batch, now)
        sent.append(sequence(profile, profile.output_tokens))
        batch.submit(sent[-1], now)
    return batch, sent


def steady(sent: list[Sequence]) -> list[Sequence]:
    return [one for one in sent[len(sent) // 20 :] if one.finished]


def mean_tbot(sent: list[Sequence]) -> float:
    spans = [(one.last_token_at - one.first_token_at) / (one.output_tokens - 1) for one in sent]
    return sum(spans) / len(spans)


def mean_ttft(sent: list[Sequence]) -> float:
    return sum(one.first_token_at - one.arrived_at for one in sent) / len(sent)


@pytest.mark.parametrize("utilization", [0.1, 0.3, 0.5, 0.7, 0.85])
def test_time_between_tokens_under_poisson_load_is_the_profiles_curve(utilization):
    rps = utilization * PROFILE.lambda_max_rps
    _, sent = simulate(PROFILE, rps)
    assert mean_tbot(steady(sent)) == pytest.approx(PROFILE.tbot_s(rps), rel=0.03)


@pytest.mark.parametrize("utilization", [0.1, 0.5, 0.85])
def test_time_to_first_token_below_the_knee_is_the_base(utilization):
    _, sent = simulate(PROFILE, utilization * PROFILE.lambda_max_rps)
    assert mean_ttft(steady(sent)) == pytest.approx(0.120, rel=0.03)


def test_time_to_first_token_above_the_knee_grows_by_the_slope():
    profile = EngineProfile(
        t0_ms=15, lambda_max_rps=28, capacity_rps=25, ttft_base_ms=120, ttft_knee_rps=2, ttft_slope_ms=8
    )
    _, sent = simulate(profile, 14.0)
    assert mean_ttft(steady(sent)) == pytest.approx(profile.ttft_s(14.0), rel=0.05)


def test_long_and_short_answers_mixed_keep_the_curve():
    """Insensitivity: only the mean length counts."""
    batch, rng, now, sent = Batch(PROFILE), random.Random(4), 0.0, []
    for _ in range(20_000):
        now += rng.expovariate(18.0)
        drain(batch, now)
        sent.append(sequence(output_tokens=rng.choice([3, 13])))
        batch.submit(sent[-1], now)
    gaps = sum(one.last_token_at - one.first_token_at for one in steady(sent))
    tokens = sum(one.output_tokens - 1 for one in steady(sent))
    assert gaps / tokens == pytest.approx(PROFILE.tbot_s(18.0), rel=0.05)


def test_a_lone_request_gets_its_tokens_at_base_and_then_every_t0():
    batch, one, times = Batch(PROFILE), sequence(), []
    batch.submit(one, 100.0)
    while (step := batch.poll(200.0)) is not None:
        times.append(step.at)
    assert times == pytest.approx([100.120 + 0.015 * index for index in range(8)])
    assert one.finished
    assert batch.running == 0


def test_the_batch_carries_its_capacity_without_a_queue_to_speak_of():
    _, sent = simulate(PROFILE, PROFILE.capacity_rps)
    waits = [one.admitted_at - one.arrived_at for one in steady(sent)]
    assert sum(waits) / len(waits) < 0.05 * mean_ttft(steady(sent))


def test_in_overload_the_queue_grows_by_what_arrives_beyond_the_batchs_throughput():
    rps, requests = 40.0, 8_000
    batch, sent = simulate(PROFILE, rps, requests)
    slots, decode_steps = batch.max_num_seqs, PROFILE.output_tokens - 1
    full_step_s = PROFILE.t0_ms / 1000 + PROFILE.step_growth_s * (slots - 1)
    highest_rps = slots / full_step_s / decode_steps
    seconds = sent[-1].arrived_at - sent[0].arrived_at
    assert batch.waiting / seconds == pytest.approx(rps - highest_rps, rel=0.05)
    assert batch.running == slots


def test_requests_are_served_in_the_order_of_arrival():
    _, sent = simulate(PROFILE, 40.0, 500, max_num_seqs=4)
    admitted = [one.admitted_at for one in sent if one.produced]
    assert admitted == sorted(admitted)


def test_all_running_sequences_get_a_token_at_every_step():
    batch = Batch(PROFILE)
    several = [sequence() for _ in range(5)]
    for one in several:
        batch.submit(one, 0.0)
    drain(batch, 0.120)
    for _ in range(7):
        step = batch.poll(10.0)
        assert step is not None
        assert set(step.decoded) == set(several)


def test_an_abort_gives_its_slot_to_the_next_in_the_queue_at_once():
    batch = Batch(PROFILE, max_num_seqs=1)
    first, second = sequence(), sequence()
    batch.submit(first, 0.0)
    batch.submit(second, 0.0)
    batch.abort(first, 0.05)
    assert (batch.running, batch.waiting, second.admitted_at) == (1, 0, 0.05)


def test_an_abort_of_the_last_running_sequence_stops_the_clock():
    batch, one = Batch(PROFILE), sequence()
    batch.submit(one, 0.0)
    drain(batch, 0.130)
    batch.abort(one, 0.131)
    assert batch.next_event_at() == float("inf")


def test_a_frozen_batch_gives_nothing_and_goes_on_where_it_stopped():
    batch, one = Batch(PROFILE), sequence()
    batch.submit(one, 0.0)
    drain(batch, 0.125)
    batch.freeze(0.125)
    assert batch.poll(1e9) is None
    batch.thaw(60.125)
    drain(batch, 1e9)
    assert one.last_token_at == pytest.approx(60.0 + 0.120 + 7 * 0.015)


def test_a_request_that_arrives_while_frozen_starts_when_the_batch_thaws():
    batch, one = Batch(PROFILE), sequence()
    batch.freeze(0.0)
    batch.submit(one, 1.0)
    batch.thaw(5.0)
    drain(batch, 10.0)
    assert one.first_token_at == pytest.approx(5.120)


def test_a_slow_engine_takes_the_factor_longer_for_everything():
    batch, one = Batch(PROFILE), sequence()
    batch.slow_factor = 3.0
    batch.submit(one, 0.0)
    drain(batch, 10.0)
    assert one.first_token_at == pytest.approx(3 * 0.120)
    assert one.last_token_at == pytest.approx(3 * (0.120 + 7 * 0.015))
