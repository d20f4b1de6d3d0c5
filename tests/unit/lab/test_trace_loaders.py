"""Trace files: what is read, what is assumed, and how bad input is told."""

import json
from pathlib import Path

import pytest

from lab.errors import TraceError
from lab.traces.arrivals import bucket_width_s, spread
from lab.traces.load import load_trace, open_trace

AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


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


class TestAnyFile:
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
