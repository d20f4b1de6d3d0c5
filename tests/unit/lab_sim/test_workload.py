"""Trace blocks as engine blocks, and a trace as submissions."""

import pytest

from lab.sim.workload import TraceWorkload, prompt_blocks
from lab.traces.load import open_trace
from lab.traces.model import Trace, TraceRequest


def request(input_tokens: int, ids: tuple[int, ...], block_tokens: int = 512) -> TraceRequest:
    return TraceRequest(
        arrival_s=0.0,
        input_tokens=input_tokens,
        output_tokens=1,
        block_ids=ids,
        trace_block_tokens=block_tokens,
    )


def test_a_trace_block_becomes_all_the_engine_blocks_within_it_and_only_full_ones_count() -> None:
    assert prompt_blocks(request(1_000, (7, 9)), 256) == (14, 15, 18)


def test_prompts_share_engine_blocks_exactly_as_far_as_they_share_trace_blocks() -> None:
    one, other = (prompt_blocks(request(1_536, ids), 16) for ids in ((1, 2, 3), (1, 2, 4)))
    assert one[:64] == other[:64]
    assert not set(one[64:]) & set(other[64:])


def test_an_engine_block_of_several_trace_blocks_is_known_by_the_last_of_them() -> None:
    assert prompt_blocks(request(80, (1, 2, 3, 4, 5), 16), 32) == (2, 4)


def test_block_sizes_that_do_not_divide_each_other_are_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="choose a block size"):
        prompt_blocks(request(1_000, (7, 9)), 48)


def test_speed_makes_arrivals_come_closer_and_changes_nothing_else() -> None:
    trace = open_trace("generated", 20)
    slow, fast = list(TraceWorkload(trace, 1.0, 600.0)), list(TraceWorkload(trace, 2.0, 600.0))
    assert [one.arrival_s for one in fast] == pytest.approx([one.arrival_s / 2 for one in slow])
    assert [one.request for one in fast] == [one.request for one in slow]


def test_a_request_with_a_deadline_is_waited_for_until_then() -> None:
    due = TraceRequest(arrival_s=0, input_tokens=5, output_tokens=1, block_ids=(1,), deadline_s=1_200.0)
    trace = Trace(source="t", format="t", requests=(due, request(5, (1,))))
    assert [one.timeout_s for one in TraceWorkload(trace, 1.0, 600.0)] == [1_200.0, 600.0]
