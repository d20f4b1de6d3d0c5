"""Engine metrics are read by name, whatever the engine's version calls them."""

import pytest

from node_agent.policy.metrics import Readings, parse, restarted

VLLM_032 = """\
# HELP python_info Python platform information
# TYPE python_info gauge
python_info{implementation="CPython",major="3",minor="12"} 1.0
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.76e+09
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta/llama {v3}"} 3.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="meta/llama {v3}"} 7.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="meta/llama {v3}",reason="capacity"} 5.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="meta/llama {v3}",reason="deferred"} 2.0
# TYPE vllm:engine_sleep_state gauge
vllm:engine_sleep_state{engine="0",model_name="meta/llama {v3}",sleep_state="awake"} 1.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="meta/llama {v3}"} 0.25
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="meta/llama {v3}"} 1.2e+06
# TYPE vllm:prefix_cache_queries_created gauge
vllm:prefix_cache_queries_created{engine="0",model_name="meta/llama {v3}"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0",model_name="meta/llama {v3}"} 400.0
vllm:external_prefix_cache_queries_total{engine="0",model_name="meta/llama {v3}"} 900.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="meta/llama {v3}"} 90.0
vllm:num_preemptions_total{engine="0",model_name="meta/llama {v3}"} 2.0
vllm:prompt_tokens_total{engine="0",model_name="meta/llama {v3}"} 12345.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="meta/llama {v3}",source="local_compute"} 11945.0
vllm:prompt_tokens_cached_total{engine="0",model_name="meta/llama {v3}"} 400.0
vllm:generation_tokens_total{engine="0",model_name="meta/llama {v3}"} 678.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="meta/llama {v3}"} 20.0
vllm:request_prompt_tokens_bucket{engine="0",le="1.0",model_name="meta/llama {v3}"} 9.0
vllm:request_prompt_tokens_sum{engine="0",model_name="meta/llama {v3}"} 12345.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="28160"} 1.0
"""

VLLM_BETWEEN = """\
# The old name is still there beside the new one.
vllm:num_requests_running{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:gpu_prefix_cache_queries_total{engine="0",model_name="m"} 100.0
vllm:gpu_prefix_cache_queries_created{engine="0",model_name="m"} 1.75e+09
vllm:gpu_prefix_cache_hits_total{engine="0",model_name="m"} 40.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 110.0
vllm:generation_tokens_total{engine="0",model_name="m"} 55.0
"""

VLLM_OLD = """\
vllm:num_requests_running{model_name="m"} 1.0
vllm:num_requests_swapped{model_name="m"} 0.0
vllm:num_requests_waiting{model_name="m"} 0.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
vllm:cpu_cache_usage_perc{model_name="m"} 0.0
vllm:gpu_prefix_cache_queries{model_name="m"} 10
vllm:gpu_prefix_cache_hits{model_name="m"} 4
vllm:prompt_tokens{model_name="m"} 11 1712345678000
"""

VLLM_TWO_RANKS = """\
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.2
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.4
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 16.0
vllm:prefix_cache_hits_total{engine="1",model_name="m"} 48.0
"""

SGLANG_OLD = """\
# HELP sglang:prompt_tokens_total Number of prefill tokens processed.
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="m"} 8128.0
sglang:generation_tokens_total{model_name="m"} 7557.0
# TYPE sglang:token_usage gauge
sglang:token_usage{model_name="m"} 0.28
# TYPE sglang:cache_hit_rate gauge
sglang:cache_hit_rate{model_name="m"} 0.0075
sglang:time_to_first_token_seconds_sum{model_name="m"} 2351.8
sglang:num_running_reqs{model_name="m"} 162.0
sglang:num_used_tokens{model_name="m"} 123859.0
sglang:gen_throughput{model_name="m"} 86.5
sglang:num_queue_reqs{model_name="m"} 2826.0
"""

SGLANG_RANK = 'engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0"'
SGLANG_NEW = f"""\
sglang:num_running_reqs{{{SGLANG_RANK},priority="",tp_rank="0"}} 12.0
sglang:num_running_reqs{{{SGLANG_RANK},priority="1",tp_rank="0"}} 10.0
sglang:num_running_reqs{{{SGLANG_RANK},priority="2",tp_rank="0"}} 2.0
sglang:num_queue_reqs{{{SGLANG_RANK},priority="",tp_rank="0"}} 5.0
sglang:num_queue_reqs{{{SGLANG_RANK},priority="1",tp_rank="0"}} 5.0
sglang:num_grammar_queue_reqs{{{SGLANG_RANK},priority="",tp_rank="0"}} 9.0
sglang:token_usage{{{SGLANG_RANK},priority="",tp_rank="0"}} 0.75
sglang:full_token_usage{{{SGLANG_RANK},priority="",tp_rank="0"}} 0.75
sglang:fwd_occupancy{{{SGLANG_RANK},priority="",tp_rank="0"}} NaN
sglang:num_retracted_reqs{{{SGLANG_RANK},priority="",tp_rank="0"}} 1.0
sglang:num_retracted_requests_total{{{SGLANG_RANK},priority="",tp_rank="0"}} 3.0
sglang:prompt_tokens_total{{model_name="m"}} 8128.0
sglang:generation_tokens_total{{is_streaming="false",model_name="m"}} 7000.0
sglang:generation_tokens_total{{is_streaming="true",model_name="m"}} 557.0
sglang:cached_tokens_total{{cache_source="device",model_name="m"}} 1000.0
sglang:cached_tokens_total{{cache_source="host",model_name="m"}} 200.0
"""

SGLANG_TWO_RANKS_OF_TWO_WORKERS = """\
sglang:num_running_reqs{dp_rank="0",model_name="m",tp_rank="0"} 3.0
sglang:num_running_reqs{dp_rank="0",model_name="m",tp_rank="1"} 3.0
sglang:num_running_reqs{dp_rank="1",model_name="m",tp_rank="2"} 4.0
sglang:num_running_reqs{dp_rank="1",model_name="m",tp_rank="3"} 4.0
sglang:token_usage{dp_rank="0",model_name="m",tp_rank="0"} 0.2
sglang:token_usage{dp_rank="0",model_name="m",tp_rank="1"} 0.2
sglang:token_usage{dp_rank="1",model_name="m",tp_rank="2"} 0.4
sglang:token_usage{dp_rank="1",model_name="m",tp_rank="3"} 0.4
"""


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        pytest.param(
            VLLM_032,
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
            id="vllm 0.32: braces in a label, names that begin alike, a breakdown by reason",
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
            id="older vllm: no _total, no engine label, a timestamp after the value",
        ),
        pytest.param(
            VLLM_BETWEEN,
            Readings(
                waiting=4,
                running=1,
                kv_usage=0.5,
                prefix_queries_tokens=100,
                prefix_hits_tokens=40,
                prompt_tokens=110,
                generation_tokens=55,
            ),
            id="vllm between: old and new names side by side",
        ),
        pytest.param(
            SGLANG_OLD,
            Readings(waiting=2826, running=162, kv_usage=0.28, prompt_tokens=8128, generation_tokens=7557),
            id="older sglang: one label",
        ),
        pytest.param(
            SGLANG_NEW,
            Readings(
                waiting=5,
                running=12,
                kv_usage=0.75,
                prefix_hits_tokens=1200,
                prompt_tokens=8128,
                generation_tokens=7557,
                preemptions=3,
            ),
            id="newer sglang: a breakdown by priority, cached tokens by source",
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


@pytest.mark.parametrize("page", [VLLM_TWO_RANKS, SGLANG_TWO_RANKS_OF_TWO_WORKERS])
def test_ranks_are_added_up_shares_averaged_and_workers_counted_once(page: str) -> None:
    readings = parse(page)
    assert readings.running == 7
    assert readings.kv_usage == pytest.approx(0.3)


def test_workers_that_disagree_count_as_the_busiest() -> None:
    assert parse('sglang:num_queue_reqs{tp_rank="0"} 2\nsglang:num_queue_reqs{tp_rank="1"} 3\n').waiting == 3


def test_models_and_adapters_of_one_engine_are_added_up() -> None:
    page = 'vllm:prompt_tokens_total{model_name="base"} 5\nvllm:prompt_tokens_total{model_name="poet"} 7\n'
    assert parse(page).prompt_tokens == 12


def test_a_breakdown_without_its_total_is_added_up() -> None:
    page = 'vllm:num_requests_waiting{reason="capacity"} 3\nvllm:num_requests_waiting{reason="deferred"} 1\n'
    assert parse(page).waiting == 4
    assert parse(page + "vllm:num_requests_waiting 4\n").waiting == 4


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "nonsense", ""])
def test_one_rank_that_is_no_number_leaves_the_figure_unknown(value: str) -> None:
    page = f'vllm:num_requests_running{{engine="0"}} 3\nvllm:num_requests_running{{engine="1"}} {value}\n'
    assert parse(page).running is None
    assert parse("".join(reversed(page.splitlines(keepends=True)))).running is None


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
