"""Generated traces fit the figures measured on the traces they stand in for, at any length."""

import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.errors import TraceError
from lab.traces.columns import RequestColumns
from lab.traces.generator import generate
from lab.traces.kinds import KINDS
from lab.traces.load import open_trace
from lab.traces.model import Trace, blocks_in
from lab.traces.summary import reusable_share, summarise


@pytest.fixture(scope="module")
def chat():
    return generate(40_000, seed=0)


@pytest.fixture(scope="module")
def chat_summary(chat):
    return summarise(chat)


@pytest.fixture(scope="module")
def agent():
    return generate(40_000, seed=0, mix={"agent": 1})


def columns(trace: Trace) -> RequestColumns:
    assert isinstance(trace.requests, RequestColumns)
    return trace.requests


def answer_correlation(trace: Trace) -> float:
    """Between the logarithms of successive answers of a session."""
    last: dict[int | None, int] = {}
    pairs: list[tuple[int, int]] = []
    for request in trace.requests:
        if request.session in last:
            pairs.append((last[request.session], request.output_tokens))
        last[request.session] = request.output_tokens
    return float(np.corrcoef(np.log(np.array(pairs)).T)[0, 1])


class TestChat:
    @pytest.mark.parametrize(("percent", "tokens"), [(10, 964), (50, 6_909), (90, 27_367), (99, 85_399)])
    def test_input_lengths_fit_within_five_percent(self, chat_summary, percent, tokens):
        assert chat_summary.input_tokens.percentiles[percent] == pytest.approx(tokens, rel=0.05)

    def test_the_mean_input_fits_within_three_percent(self, chat_summary):
        assert chat_summary.input_tokens.mean == pytest.approx(12_035, rel=0.03)

    @pytest.mark.parametrize(("percent", "tokens"), [(50, 350), (90, 597), (99, 1_115)])
    def test_output_lengths_fit_within_five_percent(self, chat_summary, percent, tokens):
        assert chat_summary.output_tokens.percentiles[percent] == pytest.approx(tokens, rel=0.05)

    @pytest.mark.parametrize("requests", [3_000, 12_000, 40_000])
    def test_the_reusable_share_fits_within_three_points_whatever_the_length(self, requests):
        assert summarise(generate(requests, seed=1)).reusable_share == pytest.approx(0.374, abs=0.03)

    def test_the_rate_fits_within_one_percent(self, chat_summary):
        assert chat_summary.rate_per_s == pytest.approx(3.4, rel=0.01)

    def test_successive_answers_correlate_as_measured(self, chat):
        assert answer_correlation(chat) == pytest.approx(0.65, abs=0.05)

    def test_all_prompts_share_one_system_prompt(self, chat):
        assert {request.block_ids[0] for request in chat.requests} == {0}

    def test_some_sessions_take_many_turns(self, chat_summary):
        assert chat_summary.longest_session_requests >= 10


class TestAgent:
    def test_mean_lengths_fit_within_five_percent(self, agent):
        summary = summarise(agent)
        assert summary.input_tokens.mean == pytest.approx(15_325, rel=0.05)
        assert summary.output_tokens.mean == pytest.approx(149, rel=0.05)

    @pytest.mark.parametrize("requests", [4_000, 12_000, 40_000])
    def test_the_reusable_share_fits_within_three_points_whatever_the_length(self, requests):
        trace = generate(requests, seed=1, mix={"agent": 1})
        assert summarise(trace).reusable_share == pytest.approx(0.651, abs=0.03)

    def test_long_inputs_get_short_answers_as_measured(self, agent):
        rows = columns(agent)
        correlation = np.corrcoef(np.log(rows.input_tokens), np.log(rows.output_tokens))[0, 1]
        assert correlation == pytest.approx(-0.49, abs=0.04)

    def test_successive_answers_correlate_as_measured(self, agent):
        assert answer_correlation(agent) == pytest.approx(0.77, abs=0.04)


class TestEveryKind:
    @pytest.mark.parametrize("kind", KINDS)
    def test_it_is_a_well_formed_trace(self, kind):
        requests = list(generate(2_000, seed=2, mix={kind: 1}).requests)
        arrivals = [request.arrival_s for request in requests]
        assert arrivals[0] == 0.0
        assert arrivals == sorted(arrivals)
        assert {request.task for request in requests} == {kind}
        for request in requests:
            assert request.input_tokens >= 1
            assert request.output_tokens >= 1
            assert len(request.block_ids) == blocks_in(request.input_tokens)
            assert len(set(request.block_ids)) == len(request.block_ids)

    @pytest.mark.parametrize("kind", KINDS)
    def test_an_id_stands_for_the_whole_prefix_before_it(self, kind):
        """Otherwise two prompts could share a block in one cache and not in another."""
        before: dict[int, int] = {}
        for request in generate(2_000, seed=3, mix={kind: 1}).requests:
            for previous, block_id in zip((-1, *request.block_ids), request.block_ids, strict=False):
                assert before.setdefault(block_id, previous) == previous

    @pytest.mark.parametrize("kind", ["chat", "agent", "long_context"])
    def test_each_prompt_of_a_session_continues_the_one_before(self, kind):
        last: dict[int | None, tuple[int, ...]] = {}
        for request in generate(2_000, seed=4, mix={kind: 1}).requests:
            full = request.block_ids[: request.input_tokens // request.trace_block_tokens]
            so_far = last.get(request.session, ())
            assert full[: len(so_far)] == so_far
            last[request.session] = full

    def test_requests_of_a_batch_job_share_their_template_and_one_deadline(self):
        trace = generate(2_000, seed=5, mix={"batch": 1}, tenants=3)
        jobs: dict[int | None, list] = {}
        for request in trace.requests:
            jobs.setdefault(request.session, []).append(request)
        for job in jobs.values():
            assert len({request.block_ids[:2] for request in job}) == 1
            assert len({request.tenant for request in job}) == 1
        rows = columns(trace)
        assert rows.deadlines_s is not None
        assert rows.deadlines_s.min() > 0
        assert not np.isnan(rows.deadlines_s).any()

    def test_the_first_tenant_has_the_most_sessions(self):
        tenants = summarise(generate(5_000, tenants=4)).tenants
        assert next(iter(tenants)) == "tenant-1"
        assert len(tenants) == 4


class TestMixes:
    def test_weights_are_shares_of_requests_and_kinds_share_no_block(self):
        requests = list(generate(4_000, mix={"chat": 2, "agent": 1, "batch": 1}).requests)
        chat = [request for request in requests if request.task == "chat"]
        rest = [request for request in requests if request.task != "chat"]
        assert len(chat) == pytest.approx(2_000, abs=2)
        blocks = [{block for request in part for block in request.block_ids} for part in (chat, rest)]
        assert not blocks[0] & blocks[1]
        sessions = [{request.session for request in part} for part in (chat, rest)]
        assert not sessions[0] & sessions[1]

    def test_the_rate_is_as_asked(self):
        assert summarise(generate(2_000, mix={"agent": 1}, rate_per_s=50)).rate_per_s == pytest.approx(
            50, rel=0.02
        )

    @settings(max_examples=40, deadline=None)
    @given(
        requests=st.integers(1, 300),
        seed=st.integers(0, 2**32),
        mix=st.dictionaries(st.sampled_from(list(KINDS)), st.floats(0.01, 100), min_size=1),
        rate=st.floats(1e-4, 1e5),
        tenants=st.integers(1, 50),
    )
    def test_it_has_exactly_the_requests_asked_for_and_equal_seeds_give_equal_traces(
        self, requests, seed, mix, rate, tenants
    ):
        trace = generate(requests, seed, mix, rate_per_s=rate, tenants=tenants)
        assert len(list(trace.requests)) == len(trace.requests) == requests
        assert trace == generate(requests, seed, mix, rate_per_s=rate, tenants=tenants)
        assert trace.head(7).requests == list(trace.requests)[:7]
        assert trace.requests[-1] == list(trace.requests)[-1]

    def test_another_seed_gives_another_trace(self):
        assert generate(50, seed=3).requests != generate(50, seed=4).requests

    def test_a_million_requests_are_seconds_and_a_few_hundred_megabytes(self):
        tracemalloc.start()
        started_s = time.process_time()
        trace = generate(1_000_000, mix={"chat": 1, "agent": 1, "batch": 1}, rate_per_s=425)
        for _ in trace.requests[:50_000]:
            pass
        elapsed_s = time.process_time() - started_s
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak_bytes < 1 << 30
        assert elapsed_s < 30


class TestNames:
    def test_a_name_tells_kind_requests_and_seed(self):
        named = open_trace("generated:agent?requests=100&seed=3")
        assert named == generate(100, 3, {"agent": 1})

    def test_what_the_name_leaves_open_comes_from_the_caller(self):
        assert open_trace("generated:agent", 50, seed=7) == generate(50, 7, {"agent": 1})
        assert open_trace("generated", 50, seed=7) == generate(50, 7)

    def test_the_caller_may_take_fewer_requests_than_the_name_makes(self):
        assert open_trace("generated?requests=100", 10).requests == generate(100).requests[:10]

    def test_a_mix_rate_and_tenants_can_be_named(self):
        named = open_trace("generated:chat=3,batch=1?requests=200&rate=5.5&tenants=2")
        assert named == generate(200, 0, {"chat": 3, "batch": 1}, rate_per_s=5.5, tenants=2)

    @pytest.mark.parametrize(
        "name",
        [
            "generated:poetry",
            "generated:chat,,agent",
            "generated:chat,chat",
            "generated:chat=many",
            "generated:chat=nan",
            "generated:chat=0",
            "generated:chat=-1",
            "generated?requests=0",
            "generated?requests=many",
            "generated?requests=99999999999999999999999",
            "generated?seed=-1",
            "generated?seed=1.5",
            "generated?rate=0",
            "generated?rate=inf",
            "generated?tenants=0",
            "generated?speed=2",
            "generated?requests",
            "generated?=",
        ],
    )
    def test_a_name_that_makes_no_sense_is_refused(self, name):
        with pytest.raises(TraceError, match="generated"):
            open_trace(name)


def test_reuse_counts_only_blocks_in_an_unbroken_prefix():
    trace = generate(2, seed=0)
    first, _ = trace.requests
    again = Trace(source="t", format="t", requests=(first, first))
    assert reusable_share(again) == 0.5
    broken = type(first)(
        arrival_s=1.0,
        input_tokens=first.input_tokens,
        output_tokens=1,
        block_ids=(-1, *first.block_ids[1:]),
    )
    assert reusable_share(Trace(source="t", format="t", requests=(first, broken))) == 0.0
