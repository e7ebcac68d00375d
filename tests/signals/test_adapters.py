"""Engines' Prometheus pages to samples."""

from __future__ import annotations

import math

import pytest

from signals.adapters.kinds import SGLANG, VLLM, EngineKind
from signals.adapters.scrape import Between, Scrape, parse, quantile
from signals.messages import Sample

from .vllm_page import page


def scrape(text: str, at: float = 0.0, kind: EngineKind = VLLM) -> Scrape:
    return parse(text, kind.wanted(), at)


def read(before: str, after: str, seconds: float = 10.0, kind: EngineKind = VLLM) -> Sample:
    return kind.read(Between(scrape(before, 0.0, kind), scrape(after, seconds, kind)))


def test_gauges_rates_and_distributions_of_vllm():
    later = page(
        running=5, waiting=0, prompt=9000, output=4500, done=80, failed=10, rejected=20,
        ttft=((0.02, 10), (0.04, 60), (0.08, 80)),
    )  # fmt: skip
    sample = read(page(), later)
    assert (sample.running, sample.waiting, sample.kv_usage_ratio) == (5.0, 0.0, 0.25)
    assert (sample.prompt_tokens_per_s, sample.output_tokens_per_s) == (100.0, 50.0)
    assert sample.requests_per_s == pytest.approx(3.0), "30 ended, 5 are inside as before"
    assert {error.kind: error.per_s for error in sample.errors} == {"internal": 1.0, "overload": 2.0}
    assert sample.ttft_ms.count == 20
    assert sample.ttft_ms.mean == pytest.approx(30.0)
    assert sample.ttft_ms.p50 == pytest.approx(40.0)
    assert sample.ttft_ms.p99 == pytest.approx(79.2)
    assert sample.prefix_hit_ratio == pytest.approx(0.25)
    assert sample.measured_for_ms == 10_000


def test_nothing_observed_is_absent_and_not_zero():
    sample = read(page(), page())
    assert sample.ttft_ms is None
    assert sample.tbot_ms is None
    assert sample.output_tokens_per_s == 0.0


def test_a_renamed_metric_is_read_under_its_old_name_and_missed_under_an_unknown_one():
    assert read(page(), page(kv_name="vllm:gpu_cache_usage_perc")).kv_usage_ratio == 0.25
    unknown = page(kv_name="vllm:cache_fullness")
    assert read(unknown, unknown).kv_usage_ratio is None
    assert VLLM.missing(scrape(unknown)) == ("kv_usage",)
    assert VLLM.missing(scrape(page())) == ()


def test_a_counter_that_went_back_gives_no_rate():
    assert read(page(), page(output=10)).output_tokens_per_s is None


def test_nan_is_absent():
    text = page().replace("} 0.25", "} NaN")
    assert read(text, text).kv_usage_ratio is None


def test_data_parallel_ranks_add_up():
    two = page() + page().replace('engine="0"', 'engine="1"')
    sample = read(two, two)
    assert (sample.running, sample.kv_usage_ratio) == (6.0, 0.25)


def test_a_sleeping_engine_does_not_serve():
    assert VLLM.serves(scrape(page()))
    assert not VLLM.serves(scrape(page(awake=0)))


def test_what_is_not_a_page_is_an_error():
    with pytest.raises(ValueError):
        scrape("vllm:num_requests_running{ 3 oops")


def test_sglang_names():
    text = "\n".join(
        [
            'sglang:num_running_reqs{model_name="a/b.c"} 4.0',
            'sglang:num_queue_reqs{model_name="a/b.c"} 1.0',
            'sglang:token_usage{model_name="a/b.c"} 0.5',
            'sglang:cache_hit_rate{model_name="a/b.c"} 0.75',
            "",
        ]
    )
    sample = read(text, text, kind=SGLANG)
    assert (sample.running, sample.waiting, sample.kv_usage_ratio) == (4.0, 1.0, 0.5)
    assert sample.prefix_hit_ratio == 0.75
    assert SGLANG.missing(scrape(text, kind=SGLANG)) == ()


@pytest.mark.parametrize(
    ("buckets", "fraction", "expected"),
    [
        ([], 0.5, None),
        ([(1.0, 0.0), (math.inf, 0.0)], 0.5, None),
        ([(1.0, 10.0), (math.inf, 10.0)], 0.5, 0.5),
        ([(1.0, 0.0), (2.0, 10.0), (math.inf, 10.0)], 0.5, 1.5),
        ([(1.0, 1.0), (math.inf, 10.0)], 0.99, 1.0),
    ],
)
def test_quantiles_of_buckets(buckets, fraction, expected):
    assert quantile(buckets, fraction) == expected
