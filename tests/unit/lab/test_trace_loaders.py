"""Trace files: what is read, what is assumed, and how bad input is told."""

import json
import math
import re
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab.errors import TraceError
from lab.traces.arrivals import bucket_width_s, spread
from lab.traces.load import load_trace, open_trace
from lab.traces.model import blocks_in
from lab.traces.prefixes import chained, chained_by_prefix

AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURSTGPT_HEADER = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def mooncake_line(
    timestamp: float = 0,
    input_length: object = 1000,
    output_length: int = 10,
    hash_ids: tuple[int, ...] = (0, 1),
) -> str:
    row = {
        "timestamp": timestamp,
        "input_length": input_length,
        "output_length": output_length,
        "hash_ids": list(hash_ids),
    }
    return json.dumps(row) + "\n"


@pytest.fixture
def write(tmp_path: Path):
    def write_file(content: str | bytes) -> Path:
        path = tmp_path / "trace"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


class TestMooncake:
    def test_a_row_becomes_a_request_in_seconds_and_tokens(self, write):
        trace = load_trace(write(mooncake_line(1000) + mooncake_line(2500, 513, 7, (0, 9))))
        assert trace.format == "mooncake"
        first, second = trace.requests
        assert (first.arrival_s, second.arrival_s) == (0.0, 1.5)
        assert (second.input_tokens, second.output_tokens, second.block_ids) == (513, 7, (0, 9))

    def test_blank_lines_and_a_byte_order_mark_are_harmless(self, write):
        trace = load_trace(write("\ufeff" + mooncake_line() + "\n\n" + mooncake_line(5)))
        assert len(trace.requests) == 2

    def test_disordered_rows_are_sorted_and_that_is_stated(self, write):
        trace = load_trace(write(mooncake_line(2000, output_length=2) + mooncake_line(1000, output_length=1)))
        assert [request.output_tokens for request in trace.requests] == [1, 2]
        assert any("not in order" in assumption for assumption in trace.assumptions)

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            ('{"timestamp": 1, "input_length": 10, "output', "truncated"),
            (mooncake_line(input_length=0, hash_ids=()), "zero input"),
            (mooncake_line(output_length=0), "zero output"),
            (mooncake_line(timestamp=-1), "negative time"),
            (mooncake_line(input_length="1000"), "text for a number"),
            (mooncake_line(hash_ids=(0,)), "1000 tokens are two blocks"),
            ('{"timestamp": 1}\n', "fields missing"),
            ("[1, 2]\n", "not an object"),
        ],
    )
    def test_a_bad_row_is_told_with_file_and_line(self, write, line, problem):
        path = write(mooncake_line() + "\n" + line)
        with pytest.raises(TraceError, match=r"trace:3: ") as caught:
            load_trace(path)
        assert caught.value.line == 3


class TestAzure:
    def test_a_row_becomes_a_request_with_a_prompt_of_its_own(self, write):
        rows = "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:47.1805900,600,5\n"
        trace = load_trace(write(AZURE_HEADER + rows))
        assert trace.format == "azure"
        first, second = trace.requests
        assert (first.input_tokens, first.output_tokens) == (374, 44)
        assert second.arrival_s == pytest.approx(0.5)
        assert (len(first.block_ids), len(second.block_ids)) == (1, 2)
        assert not set(first.block_ids) & set(second.block_ids)
        assert any("no prefixes" in assumption for assumption in trace.assumptions)

    def test_disordered_rows_are_sorted_and_that_is_stated(self, write):
        trace = load_trace(write(AZURE_HEADER + "2023-11-16 18:00:02,10,2\n2023-11-16 18:00:01,10,1\n"))
        assert [request.output_tokens for request in trace.requests] == [1, 2]
        assert any("not in order" in assumption for assumption in trace.assumptions)

    @pytest.mark.parametrize(
        "row",
        [
            "noon,10,10",
            "2023-11-16 18:00:00,0,10",
            "2023-11-16 18:00:00,10,-3",
            "2023-11-16 18:00:00,10",
            "x",
        ],
    )
    def test_a_bad_row_is_told_with_file_and_line(self, write, row):
        with pytest.raises(TraceError, match=r"trace:3: "):
            load_trace(write(f"{AZURE_HEADER}2023-11-16 18:00:00,10,10\n{row}\n"))

    def test_a_missing_column_is_named(self, write):
        with pytest.raises(TraceError, match=r"trace:1: .*GeneratedTokens"):
            load_trace(write("TIMESTAMP,ContextTokens\n2023-11-16 18:00:00,1\n"))

    def test_a_header_alone_is_not_a_trace(self, write):
        with pytest.raises(TraceError, match="no request"):
            load_trace(write(AZURE_HEADER))


class TestBurstGPT:
    def test_a_row_becomes_a_request_with_a_prompt_and_a_task(self, write):
        trace = load_trace(
            write(BURSTGPT_HEADER + "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,230,1317,API log\n")
        )
        assert trace.format == "burstgpt"
        first, second = trace.requests
        assert (first.input_tokens, first.output_tokens, first.task) == (472, 18, "conversation")
        assert (second.input_tokens, second.output_tokens, second.task) == (1087, 230, "api")
        assert not set(first.block_ids) & set(second.block_ids)
        assert any("no prefixes" in assumption for assumption in trace.assumptions)
        assert any("one model serves all" in assumption for assumption in trace.assumptions)

    def test_whole_seconds_are_spread_by_the_callers_seed_and_that_is_stated(self, write):
        path = write(BURSTGPT_HEADER + "5,ChatGPT,472,18,490,API log\n" * 20 + "6,ChatGPT,1,1,2,API log\n")
        arrivals = [request.arrival_s for request in load_trace(path, seed=1).requests]
        assert len(set(arrivals)) == 21
        assert arrivals == sorted(arrivals)
        assert arrivals[-1] < 2
        assert arrivals == [request.arrival_s for request in load_trace(path, seed=1).requests]
        assert arrivals != [request.arrival_s for request in load_trace(path, seed=2).requests]
        assert any("buckets of 1 s" in assumption for assumption in load_trace(path).assumptions)

    def test_requests_that_failed_when_recorded_are_left_out_and_counted(self, write):
        rows = "1,GPT-4,10,0,10,API log\n2,GPT-4,10,5,15,API log\n3,GPT-4,0,0,0,API log\n"
        trace = load_trace(write(BURSTGPT_HEADER + rows))
        assert [request.output_tokens for request in trace.requests] == [5]
        assert any("2 requests that failed" in text and "line 2" in text for text in trace.assumptions)

    def test_columns_may_stand_in_another_order(self, write):
        header = "Log Type,Response tokens,Request tokens,Model,Timestamp,Total tokens\n"
        (request,) = load_trace(write(header + "API log,18,472,GPT-4,5,490\n")).requests
        assert (request.input_tokens, request.output_tokens) == (472, 18)

    @pytest.mark.parametrize(
        "row",
        [
            "noon,GPT-4,10,10,20,API log",
            "nan,GPT-4,10,10,20,API log",
            "inf,GPT-4,10,10,20,API log",
            "-1,GPT-4,10,10,20,API log",
            "1_0,GPT-4,10,10,20,API log",
            "1,GPT-4,0,10,10,API log",
            "1,GPT-4,-3,10,7,API log",
            "1,GPT-4,1.5,10,12,API log",
            "1,GPT-4,10,10,20,",
            "1,GPT-4,10,10,20",
            "1,GPT-4,10,10,20,API log,more",
            "1,GPT-4,99999999999,10,20,API log",
            '1,"GPT-4,10,10,20,API log',
        ],
    )
    def test_a_bad_row_is_told_with_file_and_line(self, write, row):
        with pytest.raises(TraceError, match=r"trace:3: "):
            load_trace(write(f"{BURSTGPT_HEADER}1,GPT-4,10,10,20,API log\n{row}"))

    def test_a_file_of_failures_alone_is_not_a_trace(self, write):
        with pytest.raises(TraceError, match="1 failed"):
            load_trace(write(BURSTGPT_HEADER + "1,GPT-4,10,0,10,API log\n"))


def qwen_line(chat_id: int = 0, **changes: object) -> str:
    row: dict[str, object] = {
        "chat_id": chat_id,
        "parent_chat_id": -1,
        "timestamp": 0.0,
        "input_length": 40,
        "output_length": 10,
        "type": "text",
        "turn": 1,
        "hash_ids": [7, 8, 9],
    }
    return json.dumps(row | changes) + "\n"


class TestQwen:
    def test_a_row_becomes_a_request_in_blocks_of_16_tokens(self, write):
        trace = load_trace(write(qwen_line(type="search") + qwen_line(1, timestamp=61.114)))
        assert trace.format == "qwen"
        first, second = trace.requests
        assert (first.input_tokens, first.output_tokens, first.task) == (40, 10, "search")
        assert first.trace_block_tokens == 16
        assert second.arrival_s == pytest.approx(61.114)
        assert first.block_ids == second.block_ids
        assert len(first.block_ids) == 3

    def test_turns_of_a_conversation_have_one_session(self, write):
        rows = [
            qwen_line(5),
            qwen_line(6, timestamp=1),
            qwen_line(7, timestamp=2, parent_chat_id=5, turn=2),
            qwen_line(8, timestamp=3, parent_chat_id=7, turn=3),
            qwen_line(9, timestamp=4, parent_chat_id=77, turn=2),
        ]
        sessions = [request.session for request in load_trace(write("".join(rows))).requests]
        assert sessions == [5, 6, 5, 5, 77]

    def test_chats_that_are_their_own_ancestors_do_no_harm(self, write):
        rows = [
            qwen_line(1, parent_chat_id=2),
            qwen_line(2, parent_chat_id=1),
            qwen_line(3, parent_chat_id=3),
        ]
        assert len(load_trace(write("".join(rows))).requests) == 3

    def test_ids_that_recur_after_another_prefix_are_told_apart(self, write):
        rows = [qwen_line(0), qwen_line(1, hash_ids=[1, 8, 9]), qwen_line(2, hash_ids=[7, 8, 10])]
        trace = load_trace(write("".join(rows)))
        first, second, third = (request.block_ids for request in trace.requests)
        assert not set(first) & set(second)
        assert first[:2] == third[:2]
        assert first[2] != third[2]
        assert any("told apart" in assumption for assumption in trace.assumptions)

    def test_a_last_partial_block_without_an_id_is_private(self, write):
        trace = load_trace(write(qwen_line(0, hash_ids=[7, 8]) + qwen_line(1, hash_ids=[7, 8])))
        first, second = (request.block_ids for request in trace.requests)
        assert len(first) == len(second) == 3
        assert first[:2] == second[:2]
        assert first[2] != second[2]
        assert any("partial block" in assumption for assumption in trace.assumptions)

    @pytest.mark.parametrize(
        "line",
        [
            qwen_line(timestamp=-1),
            qwen_line(timestamp=float("nan")),
            qwen_line(timestamp="noon"),
            qwen_line(input_length=0, hash_ids=[]),
            qwen_line(output_length=0),
            qwen_line(hash_ids=[1]),
            qwen_line(hash_ids=[1, 2, 3, 4]),
            qwen_line(hash_ids=[1, 2, -3]),
            qwen_line(hash_ids=[1, 2, 2**70]),
            qwen_line(chat_id=2**70),
            qwen_line(type=5),
            '{"chat_id": 1}\n',
            '{"chat_id": ' + "[" * 100_000,
        ],
    )
    def test_a_bad_row_is_told_with_file_and_line(self, write, line):
        with pytest.raises(TraceError, match=r"trace:2: "):
            load_trace(write(qwen_line() + line))


@given(
    prompts=st.lists(
        st.lists(st.integers(0, 3), min_size=1, max_size=6),
        min_size=1,
        max_size=8,
    )
)
def test_chained_ids_agree_exactly_where_prefixes_do(prompts):
    ids = np.array([block_id for prompt in prompts for block_id in prompt])
    bounds = np.concatenate(([0], np.cumsum([len(prompt) for prompt in prompts])))
    new = chained_by_prefix(ids, bounds)
    names: dict[tuple[int, ...], int] = {}
    for prompt, start in zip(prompts, bounds.tolist(), strict=False):
        for size in range(1, len(prompt) + 1):
            assert names.setdefault(tuple(prompt[:size]), int(new[start + size - 1])) == new[start + size - 1]
    assert len(set(names.values())) == len(names)
    assert chained(new, bounds)


FILES = {
    "mooncake": [mooncake_line(t, 513 + t, 1 + t) for t in range(4)],
    "qwen": [qwen_line(t, timestamp=t / 2, parent_chat_id=t - 1) for t in range(4)],
    "azure": [AZURE_HEADER, *(f"2023-11-16 18:15:4{t}.68,37{t},44\n" for t in range(4))],
    "burstgpt": [BURSTGPT_HEADER, *(f"{5 + t},ChatGPT,47{t},18,490,Conversation log\n" for t in range(4))],
}
ODD_VALUES = [
    "NaN",
    "Infinity",
    "1e999",
    "-1",
    "0",
    "null",
    '"x"',
    "[]",
    "{}",
    "1" * 5000,
    "1e-320",
    "",
    "\x00",
    "٣",
]


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A file of one of the formats in which one line has been damaged."""
    lines = list(FILES[draw(st.sampled_from(sorted(FILES)))])
    place = draw(st.integers(0, len(lines) - 1))
    line = lines[place]
    match draw(st.sampled_from(["value", "cut", "insert", "delete", "swap", "drop"])):
        case "value":
            values = [match.span() for match in re.finditer(r'-?\d+(\.\d+)?|"[^"]*"|[^,\n]+', line)]
            start, end = draw(st.sampled_from(values))
            line = line[:start] + draw(st.sampled_from(ODD_VALUES)) + line[end:]
        case "cut":
            line = line[: draw(st.integers(0, len(line)))]
        case "insert":
            at = draw(st.integers(0, len(line)))
            line = line[:at] + draw(st.text(max_size=5)) + line[at:]
        case "delete":
            start = draw(st.integers(0, len(line)))
            line = line[:start] + line[start + draw(st.integers(1, 20)) :]
        case "swap":
            fields = line.split(",")
            line = ",".join(draw(st.permutations(fields)))
        case _:
            line = ""
    lines[place] = line
    return "".join(lines)


@settings(deadline=2_000, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=mutated())
def test_a_damaged_file_is_either_a_sound_trace_or_a_clear_error(tmp_path, content):
    path = tmp_path / "trace"
    path.write_bytes(content.encode(errors="surrogatepass"))
    problem, requests = "", []
    try:
        requests = list(load_trace(path).requests)
    except TraceError as error:
        problem = str(error)
    if problem:
        assert problem.startswith(f"{path}:")
        return
    arrivals = [request.arrival_s for request in requests]
    assert arrivals[0] == 0
    assert arrivals == sorted(arrivals)
    assert all(math.isfinite(arrival) for arrival in arrivals)
    for request in requests:
        assert request.input_tokens >= 1
        assert request.output_tokens >= 1
        assert len(request.block_ids) == blocks_in(request.input_tokens, request.trace_block_tokens)


class TestAnyFile:
    @pytest.mark.parametrize("tokens", [10_000_001, 10**30])
    def test_a_prompt_longer_than_any_context_is_refused(self, write, tokens):
        with pytest.raises(TraceError, match=r"trace:2: "):
            load_trace(write(f"{AZURE_HEADER}2023-11-16 18:00:00,{tokens},1\n"))
        with pytest.raises(TraceError, match=r"trace:1: "):
            load_trace(write(mooncake_line(input_length=tokens)))

    def test_twelve_thousand_rows_load_well_within_a_second_of_cpu(self, write):
        path = write("".join(mooncake_line(t, 12_000, 300, tuple(range(24))) for t in range(12_000)))
        started_s = time.process_time()
        load_trace(path)
        assert time.process_time() - started_s < 1.0

    def test_a_negative_seed_is_refused(self, write):
        with pytest.raises(TraceError, match="seed"):
            open_trace(str(write(mooncake_line())), seed=-1)

    @pytest.mark.parametrize("content", ["", "\n \n"])
    def test_an_empty_file_is_refused(self, write, content):
        with pytest.raises(TraceError, match="empty"):
            load_trace(write(content))

    @pytest.mark.parametrize("content", ["hello\n", b"\x00\xff\xfe\x80binary"])
    def test_an_unknown_format_is_refused(self, write, content):
        with pytest.raises(TraceError):
            load_trace(write(content))

    def test_a_file_that_is_not_there_is_named(self, tmp_path):
        with pytest.raises(TraceError, match=r"nowhere\.jsonl"):
            load_trace(tmp_path / "nowhere.jsonl")

    def test_only_the_first_requests_are_taken_when_asked(self, write):
        path = write("".join(mooncake_line(t) for t in range(5)))
        assert len(open_trace(str(path), requests=2).requests) == 2
        assert len(open_trace(str(path), requests=99).requests) == 5


class TestBuckets:
    def test_coarse_timestamps_are_recognised_though_they_drift(self):
        times = [t for t in (0.0, 3.0, 5.999, 9.0, 12.001, 18.0) for _ in range(4)]
        assert bucket_width_s(times) == pytest.approx(3.0, abs=0.01)

    def test_fine_timestamps_are_left_alone(self):
        assert bucket_width_s([0.0, 0.4, 1.7, 1.7, 2.0, 3.5]) is None

    def test_one_request_a_second_is_a_rate_not_a_bucket(self):
        assert bucket_width_s([float(t) for t in range(100)]) is None

    def test_requests_spread_over_their_bucket_stay_in_it_in_order_and_repeatable(self):
        times = [0.0] * 500 + [3.0] * 500
        moved = spread(times, 3.0, seed=1)
        assert moved == sorted(moved)
        assert all(was <= now < was + 3.0 for was, now in zip(times, moved, strict=True))
        assert max(moved[:500]) > 2.9
        assert moved == spread(times, 3.0, seed=1)
        assert moved != spread(times, 3.0, seed=2)

    def test_a_bucketed_file_is_spread_and_that_is_stated(self, write):
        lines = "".join(mooncake_line(3000 * bucket) for bucket in range(10) for _ in range(5))
        trace = load_trace(write(lines))
        assert len({request.arrival_s for request in trace.requests}) == 50
        assert any("buckets of 3 s" in assumption for assumption in trace.assumptions)
