"""Whatever a tenant does, it never uses more than its rate and one bucket, and is charged what it used."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.policy.token_rate import (
    EXPECTED_OUTPUT_TOKENS,
    HORIZON_S,
    Exceeded,
    Reservation,
    TokenBucket,
    TokenRates,
    used_tokens,
)
from tokenfleet.contracts.requests import Ended, Outcome

PER_MINUTE = 6_000
RATE = PER_MINUTE / 60.0


@dataclass
class Taken:
    at_s: float
    reserved: int
    used: int
    open: bool = True


STEP = st.tuples(
    st.floats(0.0, 30.0),
    st.integers(1, PER_MINUTE),
    st.floats(0.0, 1.0),
    st.booleans(),
    st.integers(0, 30),
)
"""Seconds that pass, tokens to reserve, the share that is used, whether to settle another first, and which."""


@given(st.lists(STEP, max_size=60))
def test_what_is_used_in_any_window_is_at_most_the_rate_and_one_bucket(
    steps: list[tuple[float, int, float, bool, int]],
) -> None:
    bucket, now_s = TokenBucket(0.0), 0.0
    taken: list[Taken] = []
    for pause_s, tokens, share, settles, which in steps:
        now_s += pause_s
        waiting = [each for each in taken if each.open]
        if settles and waiting:
            over = waiting[which % len(waiting)]
            over.open = False
            bucket.settle(over.at_s, over.reserved, over.used)
        if bucket.reserve(tokens, PER_MINUTE, now_s) == 0.0:
            taken.append(Taken(now_s, tokens, int(tokens * share)))
    for first, begin in enumerate(taken):
        used = 0
        for end in taken[first:]:
            # What is still open may yet be used in full.
            used += end.reserved if end.open else end.used
            assert used <= PER_MINUTE + RATE * (end.at_s - begin.at_s) + 1e-6


@given(st.lists(STEP, min_size=1, max_size=40))
def test_what_is_settled_equals_what_was_used(steps: list[tuple[float, int, float, bool, int]]) -> None:
    reserving, knowing, now_s = TokenBucket(0.0), TokenBucket(0.0), 0.0
    taken: list[Taken] = []
    for pause_s, tokens, share, _, _ in steps:
        now_s += pause_s
        if reserving.reserve(tokens, PER_MINUTE, now_s) == 0.0:
            used = int(tokens * share)
            taken.append(Taken(now_s, tokens, used))
            assert knowing.reserve(used, PER_MINUTE, now_s) == 0.0, (
                "what is used is no more than was reserved"
            )
    now_s = min(now_s, taken[0].at_s + HORIZON_S - 1.0)
    for each in taken:
        reserving.settle(each.at_s, each.reserved, each.used)
    later_s = taken[-1].at_s + 1.0
    assert reserving.level(PER_MINUTE, later_s) == pytest.approx(knowing.level(PER_MINUTE, later_s))


@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(1, PER_MINUTE)), max_size=30))
def test_after_the_wait_it_was_told_a_request_is_taken_and_not_before(steps: list[tuple[float, int]]) -> None:
    bucket, now_s = TokenBucket(0.0), 0.0
    for pause_s, tokens in steps:
        now_s += pause_s
        wait_s = bucket.reserve(tokens, PER_MINUTE, now_s)
        if wait_s > 0.0:
            assert wait_s <= 62.0
            if wait_s > 0.1:
                assert bucket.reserve(tokens, PER_MINUTE, now_s + wait_s - 0.05) > 0.0
            now_s += wait_s + 1e-6
            assert bucket.reserve(tokens, PER_MINUTE, now_s) == 0.0


def test_a_full_bucket_holds_a_minute_and_refills_at_the_rate() -> None:
    bucket = TokenBucket(0.0)
    assert bucket.reserve(PER_MINUTE, PER_MINUTE, 0.0) == 0.0
    assert bucket.level(PER_MINUTE, 1.0) == 0.0
    assert bucket.level(PER_MINUTE, 31.0) == 30 * RATE
    assert bucket.level(PER_MINUTE, 500.0) == PER_MINUTE


def test_reserving_much_and_using_little_saves_nothing_up() -> None:
    bucket = TokenBucket(0.0)
    for minute in range(5):
        assert bucket.reserve(PER_MINUTE, PER_MINUTE, minute * 61.0) == 0.0
    for minute in range(5):
        bucket.settle(minute * 61.0, PER_MINUTE, 0)
    assert bucket.level(PER_MINUTE, 5 * 61.0) == PER_MINUTE, "one bucket, however much came back"


def test_an_answer_longer_than_expected_is_paid_for_later() -> None:
    bucket = TokenBucket(0.0)
    bucket.reserve(1_000, PER_MINUTE, 0.0)
    bucket.settle(0.0, 1_000, 10_000)
    assert bucket.level(PER_MINUTE, 1.0) == -4_000
    assert bucket.reserve(1_000, PER_MINUTE, 1.0) == pytest.approx(50.0, abs=1.0)


def test_what_ends_after_the_horizon_gets_nothing_back_but_pays_what_is_more() -> None:
    bucket = TokenBucket(0.0)
    bucket.reserve(PER_MINUTE, PER_MINUTE, 0.0)
    now_s = HORIZON_S + 100.0
    assert bucket.level(PER_MINUTE, now_s) == PER_MINUTE
    bucket.settle(0.0, PER_MINUTE, 0)
    assert bucket.level(PER_MINUTE, now_s) == PER_MINUTE
    bucket.settle(0.0, PER_MINUTE, PER_MINUTE + int(RATE * HORIZON_S) + 500)
    assert bucket.level(PER_MINUTE, now_s) < PER_MINUTE


def test_long_silence_is_as_good_as_a_new_bucket() -> None:
    bucket = TokenBucket(0.0)
    for second in range(2 * HORIZON_S):
        bucket.reserve(int(RATE), PER_MINUTE, float(second))
    assert bucket.level(PER_MINUTE, 10.0 * HORIZON_S) == PER_MINUTE


def test_a_changed_limit_counts_at_once() -> None:
    rates = TokenRates()
    assert isinstance(rates.reserve("acme", 1_000, 900, 100, 0.0), Reservation)
    assert isinstance(rates.reserve("acme", 1_000, 900, 100, 1.0), Exceeded)
    assert isinstance(rates.reserve("acme", 10_000, 900, 100, 1.0), Reservation)


def test_tenants_do_not_share_a_bucket() -> None:
    rates = TokenRates()
    assert isinstance(rates.reserve("acme", 1_000, 1_000, 1, 0.0), Reservation)
    assert isinstance(rates.reserve("other", 1_000, 1_000, 1, 0.0), Reservation)


def test_only_an_output_that_may_be_expected_is_reserved() -> None:
    taken = TokenRates().reserve("acme", 1_000_000, 100, 500_000, 0.0)
    assert isinstance(taken, Reservation)
    assert taken.tokens == 100 + EXPECTED_OUTPUT_TOKENS
    small = TokenRates().reserve("acme", 500, 100, 4_096, 0.0)
    assert isinstance(small, Reservation)
    assert small.tokens == 500, "a request may take the whole bucket, rather than never run"


def test_a_prompt_longer_than_a_minutes_tokens_never_fits() -> None:
    assert TokenRates().reserve("acme", 500, 501, 1, 0.0) == Exceeded(None)


def test_what_is_refused_takes_nothing() -> None:
    rates = TokenRates()
    rates.reserve("acme", 1_000, 600, 1, 0.0)
    for _ in range(10):
        assert isinstance(rates.reserve("acme", 1_000, 600, 1, 0.0), Exceeded)
    assert isinstance(rates.reserve("acme", 1_000, 300, 1, 0.0), Reservation)


def test_a_batch_leaves_half_to_the_tenants_clients_and_a_large_line_waits_for_a_full_bucket() -> None:
    rates = TokenRates()
    assert isinstance(rates.reserve("acme", 1_000, 400, 1, 0.0, leave_share=0.5), Reservation)
    assert isinstance(rates.reserve("acme", 1_000, 400, 1, 0.0, leave_share=0.5), Exceeded)
    assert isinstance(rates.reserve("acme", 1_000, 400, 1, 0.0), Reservation)
    assert isinstance(rates.reserve("acme", 1_000, 900, 1, 0.0, leave_share=0.5), Exceeded)
    assert isinstance(rates.reserve("acme", 1_000, 900, 1, 100.0, leave_share=0.5), Reservation)


def test_buckets_of_silent_tenants_are_forgotten_and_may_still_be_settled() -> None:
    rates = TokenRates()
    old = rates.reserve("acme", 1_000, 900, 1, 0.0)
    assert isinstance(old, Reservation)
    rates.reserve("other", 1_000, 900, 1, 2.0 * HORIZON_S)
    rates.settle(old, 5_000)
    assert isinstance(rates.reserve("acme", 1_000, 900, 1, 2.0 * HORIZON_S), Reservation)


def end(outcome: Outcome, instance: str | None = "a", output_tokens: int = 7) -> Ended:
    return Ended(
        event_id="r.end",
        request_id="r",
        attempt=2,
        tenant="acme",
        pool="llama@1",
        site="local",
        time_ns=1,
        outcome=outcome,
        reason="x",
        status=200,
        model="llama",
        stream=False,
        submitted_ns=0,
        e2e_s=1.0,
        instance=instance,
        input_tokens=100,
        output_tokens=output_tokens,
        retried_input_tokens=100,
    )


@pytest.mark.parametrize(
    ("ended", "tokens"),
    [
        (end("completed"), 107),
        (end("cancelled"), 107),
        (end("timed_out"), 107),
        (end("failed"), 107),
        (end("failed", output_tokens=0), 0),
        (end("rejected"), 0),
        (end("cancelled", instance=None, output_tokens=0), 0),
        (end("timed_out", instance=None, output_tokens=0), 0),
    ],
)
def test_a_tenant_is_charged_once_for_what_it_got(ended: Ended, tokens: int) -> None:
    assert used_tokens(ended) == tokens
