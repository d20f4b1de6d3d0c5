"""The timing form, against values worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.engine.profile import (
    LLAMA70B_TP4_H100,
    PROFILES,
    decode_step_s,
    iteration_s,
    prefill_s,
)

PROFILE = LLAMA70B_TP4_H100


def test_an_iteration_adds_its_fixed_cost_its_decodes_and_its_chunks():
    # 15 ms + 10 * 0.02 ms + 20,000 * 35 ns + 100 * (71.4 us + 1.3 ns * (1,000 + 50))
    assert iteration_s(PROFILE, 10, 20_000, [(100, 1_000)]) == pytest.approx(0.0231765)


def test_a_decode_step_is_an_iteration_without_prefill():
    assert decode_step_s(PROFILE, 4, 8_000) == pytest.approx(0.015 + 4 * 0.00002 + 8_000 * 35e-9)


def test_two_full_chunks_on_an_empty_engine_take_two_iterations():
    # 2 * 15 ms + 4,096 * 71.4 us + 1.3 ns * 4,096**2 / 2
    assert prefill_s(PROFILE, 4_096, 0) == pytest.approx(0.3333596)


def test_one_token_more_than_a_chunk_takes_another_iteration():
    one_chunk, more = prefill_s(PROFILE, 2_048, 0), prefill_s(PROFILE, 2_049, 0)
    assert more - one_chunk == pytest.approx(PROFILE.base_s + 71.4e-6 + 1.3e-9 * 2_048.5)


def test_nothing_to_compute_takes_no_time():
    assert prefill_s(PROFILE, 0, 10_000) == 0.0


@given(
    new_tokens=st.integers(1, 20_000),
    context_tokens=st.integers(0, 100_000),
    decoding=st.integers(0, 127),
    tokens_each=st.integers(1, 4_000),
)
def test_a_prefill_takes_as_long_as_its_iterations_one_by_one(
    new_tokens: int, context_tokens: int, decoding: int, tokens_each: int
):
    seconds, left, context, decode_context = 0.0, new_tokens, context_tokens, decoding * tokens_each
    while left:
        chunk = min(left, PROFILE.iteration_budget_tokens - decoding)
        seconds += iteration_s(PROFILE, decoding, decode_context, [(chunk, context)])
        left, context, decode_context = left - chunk, context + chunk, decode_context + decoding
    assert prefill_s(PROFILE, new_tokens, context_tokens, decoding, decoding * tokens_each) == pytest.approx(
        seconds
    )


def test_profiles_are_found_by_name():
    assert PROFILES["llama70b-tp4-h100"] is PROFILE
    assert PROFILE.kv_capacity_tokens == 450_560
