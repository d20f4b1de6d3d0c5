"""Engine metrics are read by name, whatever the engine's version calls them."""

import pytest

from node_agent.policy.metrics import Readings, parse, restarted

VLLM_V1 = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta/llama {v3}"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="meta/llama {v3}"} 7.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 100.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="meta/llama {v3}"} 0.25
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{engine="0",model_name="meta/llama {v3}"} 1.2e+06
vllm:prefix_cache_queries_created{engine="0",model_name="meta/llama {v3}"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0",model_name="meta/llama {v3}"} 400.0
vllm:num_preemptions_total{engine="0",model_name="meta/llama {v3}"} 2.0
vllm:prompt_tokens_total{engine="0",model_name="meta/llama {v3}"} 12345.0
vllm:generation_tokens_total{engine="0",model_name="meta/llama {v3}"} 678.0
vllm:request_prompt_tokens_bucket{engine="0",le="1.0"} 9.0
process_start_time_seconds 1.76e+09
"""

VLLM_OLD = """\
vllm:num_requests_running{model_name="m"} 1.0
vllm:num_requests_waiting{model_name="m"} 0.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
vllm:gpu_prefix_cache_queries{model_name="m"} 10
vllm:gpu_prefix_cache_hits{model_name="m"} 4
vllm:prompt_tokens{model_name="m"} 11 1712345678000
"""

VLLM_TWO_RANKS = """\
vllm:num_requests_running{engine="0"} 3.0
vllm:num_requests_running{engine="1"} 4.0
vllm:kv_cache_usage_perc{engine="0"} 0.2
vllm:kv_cache_usage_perc{engine="1"} 0.4
"""

SGLANG = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",tp_rank="0"} 12.0
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 5.0
sglang:token_usage{model_name="m",tp_rank="0"} 0.75
sglang:prompt_tokens_total{model_name="m"} 8128.0
sglang:generation_tokens_total{model_name="m"} 7557.0
"""


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        pytest.param(
            VLLM_V1,
            Readings(
                waiting=7,
                running=3,
                kv_usage=0.25,
                prefix_queries_tokens=1_200_000,
                prefix_hits_tokens=400,
                prompt_tokens=12_345,
                generation_tokens=678,
                preemptions=2,
                process_start_s=1.76e9,
            ),
            id="vllm with _total, braces in a label, names that begin alike",
        ),
        pytest.param(
            VLLM_OLD,
            Readings(
                waiting=0,
                running=1,
                kv_usage=0.5,
                prefix_queries_tokens=10,
                prefix_hits_tokens=4,
                prompt_tokens=11,
            ),
            id="older vllm without _total, a timestamp after the value",
        ),
        pytest.param(
            SGLANG,
            Readings(waiting=5, running=12, kv_usage=0.75, prompt_tokens=8128, generation_tokens=7557),
            id="sglang",
        ),
        pytest.param("", Readings(), id="an empty page says nothing"),
        pytest.param("vllm:num_requests_running 2", Readings(running=2), id="no labels, no final newline"),
        pytest.param(
            "vllm:num_requests_running nonsense\nvllm:num_requests_waiting NaN\nvllm:prompt_tokens_total\n",
            Readings(),
            id="values that are no numbers are unknown, not zero",
        ),
    ],
)
def test_a_page_gives_what_it_names_and_none_for_the_rest(page: str, expected: Readings) -> None:
    assert parse(page) == expected


def test_ranks_are_added_up_but_shares_are_averaged() -> None:
    readings = parse(VLLM_TWO_RANKS)
    assert readings.running == 7
    assert readings.kv_usage == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        pytest.param(Readings(), Readings(prompt_tokens=5), False, id="first reading"),
        pytest.param(Readings(prompt_tokens=5), Readings(prompt_tokens=5), False, id="idle"),
        pytest.param(Readings(prompt_tokens=5), Readings(prompt_tokens=4), True, id="counter went back"),
        pytest.param(Readings(prompt_tokens=5), Readings(), False, id="metric missing once"),
        pytest.param(
            Readings(process_start_s=1.0, prompt_tokens=5),
            Readings(process_start_s=2.0, prompt_tokens=9),
            True,
            id="another start time, although the counter already passed the old one",
        ),
    ],
)
def test_a_restart_shows_in_the_start_time_or_in_a_counter(
    before: Readings, now: Readings, expected: bool
) -> None:
    assert restarted(before, now) is expected
