from prometheus_client.parser import text_string_to_metric_families

from tests.headrace.demo.conftest import MODEL, chat

VLLM_NAMES = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_requests_waiting_by_reason",
    "vllm:kv_cache_usage_perc",
    "vllm:engine_sleep_state",
    "vllm:cache_config_info",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:num_preemptions",
    "vllm:request_success",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
}


async def scrape(client):
    async with client.get("/metrics") as response:
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        text = await response.text()
    families = list(text_string_to_metric_families(text))
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for f in families
        for sample in f.samples
    }
    return families, samples


async def test_names_and_labels_are_vllms(start):
    _, client = await start()
    families, samples = await scrape(client)
    ours = {family.name for family in families if family.name.startswith("vllm:")}
    assert {name for name in ours if not name.endswith("_created")} == VLLM_NAMES
    assert ("vllm:num_requests_running", (("engine", "0"), ("model_name", MODEL))) in samples


async def test_counters_follow_the_requests(start):
    _, client = await start()
    for _ in range(3):
        async with client.post(chat(max_tokens=4)) as response:
            assert response.status == 200
    _, samples = await scrape(client)
    labels = (("engine", "0"), ("model_name", MODEL))
    assert samples["vllm:generation_tokens_total", labels] == 12
    assert samples["vllm:time_to_first_token_seconds_count", labels] == 3
    assert samples["vllm:inter_token_latency_seconds_count", labels] == 9
    assert samples["vllm:request_success_total", (labels[0], ("finished_reason", "length"), labels[1])] == 3


async def test_head_is_answered(start):
    _, client = await start()
    async with client.session.head(client.url + "/metrics") as response:
        assert response.status == 200
