"""A vLLM metrics page in small: the lines that are read, and some that are not."""

from __future__ import annotations


def page(
    *,
    running=3,
    waiting=2,
    kv=0.25,
    prompt=8000,
    output=4000,
    done=60,
    failed=0,
    rejected=0,
    ttft=((0.02, 10), (0.04, 50), (0.08, 60)),
    started=1_795_975_003.75,
    kv_name="vllm:kv_cache_usage_perc",
    awake=1,
) -> str:
    labels = 'engine="0",model_name="meta-llama/Llama-3.3-70B-Instruct"'
    total = ttft[-1][1]
    buckets = [
        f'vllm:time_to_first_token_seconds_bucket{{{labels},le="{bound}"}} {count}' for bound, count in ttft
    ]
    return "\n".join(
        [
            "# HELP vllm:num_requests_running Number of requests in model execution batches.",
            "# TYPE vllm:num_requests_running gauge",
            f"vllm:num_requests_running{{{labels}}} {running}",
            f"vllm:num_requests_waiting{{{labels}}} {waiting}",
            f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} 99',
            f"{kv_name}{{{labels}}} {kv}",
            f"vllm:prompt_tokens_total{{{labels}}} {prompt}",
            f"vllm:prompt_tokens_created{{{labels}}} 1.7959750386031299e+09",
            f"vllm:generation_tokens_total{{{labels}}} {output}",
            f'vllm:request_success_total{{{labels},finished_reason="stop"}} {done}',
            f'vllm:request_success_total{{{labels},finished_reason="error"}} {failed}',
            f'vllm:admission_rejections_total{{{labels},reason="max_num_queued_reqs"}} {rejected}',
            f"vllm:prefix_cache_queries_total{{{labels}}} {prompt}",
            f"vllm:prefix_cache_hits_total{{{labels}}} {prompt / 4}",
            f'vllm:engine_sleep_state{{{labels},sleep_state="awake"}} {awake}',
            f'vllm:engine_sleep_state{{{labels},sleep_state="discard_all"}} 0',
            *buckets,
            f'vllm:time_to_first_token_seconds_bucket{{{labels},le="+Inf"}} {total}',
            f"vllm:time_to_first_token_seconds_count{{{labels}}} {total}",
            f"vllm:time_to_first_token_seconds_sum{{{labels}}} {total * 0.03}",
            f"process_start_time_seconds {started}",
            "",
        ]
    )
