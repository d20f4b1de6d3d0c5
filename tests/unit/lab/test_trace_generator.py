"""The generated trace fits the figures measured on Mooncake's conversation trace."""

import pytest

from lab.traces.generator import generate
from lab.traces.model import blocks_in
from lab.traces.summary import reusable_share, summarise


@pytest.fixture(scope="module")
def trace():
    return generate(12_000, seed=0)


@pytest.fixture(scope="module")
def summary(trace):
    return summarise(trace)


@pytest.mark.parametrize(("percent", "tokens"), [(10, 964), (50, 6_909), (90, 27_367), (99, 85_399)])
def test_input_lengths_fit_within_five_percent(summary, percent, tokens):
    assert summary.input_tokens.percentiles[percent] == pytest.approx(tokens, rel=0.05)


def test_the_mean_input_fits_within_three_percent(summary):
    assert summary.input_tokens.mean == pytest.approx(12_035, rel=0.03)


@pytest.mark.parametrize(("percent", "tokens"), [(50, 350), (90, 597), (99, 1_115)])
def test_output_lengths_fit_within_five_percent(summary, percent, tokens):
    assert summary.output_tokens.percentiles[percent] == pytest.approx(tokens, rel=0.05)


def test_the_reusable_share_fits_within_two_points(summary):
    assert summary.reusable_share == pytest.approx(0.374, abs=0.02)


def test_the_rate_fits_within_three_percent(summary):
    assert summary.rate_per_s == pytest.approx(3.4, rel=0.03)


def test_it_is_a_well_formed_trace(trace):
    arrivals = [request.arrival_s for request in trace.requests]
    assert arrivals[0] == 0.0
    assert arrivals == sorted(arrivals)
    assert all(len(request.block_ids) == blocks_in(request.input_tokens) for request in trace.requests)
    assert all(request.output_tokens >= 1 for request in trace.requests)


def test_sessions_take_more_than_two_turns(trace):
    turns: dict[tuple[int, ...], int] = {}
    longest = 0
    for request in trace.requests:
        full = request.block_ids[: request.input_tokens // request.trace_block_tokens]
        parents = [turns[full[:size]] for size in range(2, len(full) + 1) if full[:size] in turns]
        turns[full] = 1 + max(parents, default=0)
        longest = max(longest, turns[full])
    assert longest >= 5


def test_equal_seeds_give_equal_traces_and_others_do_not():
    assert generate(50, seed=3) == generate(50, seed=3)
    assert generate(50, seed=3).requests != generate(50, seed=4).requests


def test_reuse_counts_only_blocks_in_an_unbroken_prefix():
    trace = generate(2, seed=0)
    first, _ = trace.requests
    repeated = trace.head(1).requests * 2
    again = type(trace)(source="t", format="t", requests=repeated)
    assert reusable_share(again) == 0.5
    broken = type(first)(
        arrival_s=1.0,
        input_tokens=first.input_tokens,
        output_tokens=1,
        block_ids=(-1, *first.block_ids[1:]),
    )
    assert reusable_share(type(trace)(source="t", format="t", requests=(first, broken))) == 0.0
