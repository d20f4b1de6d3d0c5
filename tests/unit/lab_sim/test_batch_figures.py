"""What batch lines got: deadlines, and their work beside that of others."""

import msgspec
import pytest
from sim_worlds import SMALL, submission

from lab.sim.api import Outcome
from lab.sim.batch import batch_figures, work_until_s
from lab.sim.workload import arrival

PROFILES = {"i0": SMALL}


def outcome(
    number: int,
    arrival_s: float,
    ttft_s: float | None,
    ended_s: float,
    *,
    due_s: float | None = None,
    tokens: int = 11,
    reused: int = 0,
) -> Outcome:
    sent = submission(number, arrival_s, 1_000, tokens, timeout_s=due_s - arrival_s if due_s else 600.0)
    if due_s is not None:
        request = msgspec.structs.replace(sent.request, task="batch", deadline_s=due_s - arrival_s)
        sent = msgspec.structs.replace(sent, request=request)
    done = ttft_s is not None
    return Outcome(
        arrival=arrival(sent, "m", 16, ()),
        outcome="completed" if done else "timed_out",
        reason="stop",
        status=200 if done else 504,
        ended_s=ended_s,
        instance="i0" if done else None,
        ttft_s=ttft_s,
        output_tokens=tokens if done else 0,
        reused_tokens=reused,
    )


PREFILL_S = 1_000 * SMALL.prefill_s_per_token + SMALL.attention_s_per_token_pair * 1_000**2 / 2
DECODE_S = 10 * (SMALL.decode_s_per_request + SMALL.decode_s_per_context_token * 1_005.5)


def test_work_is_what_a_request_alone_makes_iterations_longer_by() -> None:
    assert work_until_s(outcome(0, 0.0, 1.0, 5.0), 9.0, PROFILES) == pytest.approx(PREFILL_S + DECODE_S)


def test_of_a_prompt_only_what_was_computed_is_work() -> None:
    computed = work_until_s(outcome(0, 0.0, 1.0, 1.0, tokens=1, reused=800), 9.0, PROFILES)
    attention_s = SMALL.attention_s_per_token_pair * 200 * 900
    assert computed == pytest.approx(200 * SMALL.prefill_s_per_token + attention_s)


def test_decoding_is_booked_evenly_and_a_prompt_when_its_first_token_comes() -> None:
    answered = outcome(0, 10.0, 2.0, 16.0)
    assert work_until_s(answered, 11.9, PROFILES) == 0.0
    assert work_until_s(answered, 13.0, PROFILES) == pytest.approx(PREFILL_S + DECODE_S / 4)


def test_what_never_began_is_no_work() -> None:
    assert work_until_s(outcome(0, 0.0, None, 9.0), 99.0, PROFILES) == 0.0


def test_a_deadline_is_met_by_lines_that_are_done_by_then() -> None:
    figures = batch_figures(
        [outcome(0, 0.0, 1.0, 5.0, due_s=10.0), outcome(1, 0.0, None, 10.0, due_s=10.0)], PROFILES
    )
    assert figures is not None
    assert (figures["lines"], figures["deadlines"], figures["deadlines_met"]) == (2, 2, 0.5)


def test_rates_are_over_the_time_in_which_nine_tenths_of_the_lines_end_and_others_count_by_then() -> None:
    lines = [outcome(n, 0.0, 1.0, 2.0 + n, due_s=100.0, tokens=1) for n in range(10)]
    within = outcome(10, 0.0, 0.5, 4.0)
    after = outcome(11, 11.0, 0.5, 15.0)
    figures = batch_figures([*lines, within, after], PROFILES)
    assert figures is not None
    assert figures["window_s"] == 10.0
    assert figures["work_per_s"] == pytest.approx(10 * PREFILL_S / 10)
    assert figures["others_work_per_s"] == pytest.approx((PREFILL_S + DECODE_S) / 10)


def test_refusing_lines_makes_nobody_quicker() -> None:
    refused = outcome(0, 0.0, None, 0.0, due_s=100.0)
    figures = batch_figures([refused] * 9 + [outcome(9, 0.0, 1.0, 5.0, due_s=100.0)], PROFILES)
    assert figures is not None
    assert figures["window_s"] == 100.0


def test_without_batch_lines_there_are_no_figures_of_them() -> None:
    assert batch_figures([outcome(0, 0.0, 1.0, 2.0)], PROFILES) is None
