"""What one request was worth."""

from typing import Any

import pytest
from hypothesis import given
from unit.accounting.rows import any_ended, ended

from goodput_accountant.policy.accounting import account
from tokenfleet.contracts.requests import Ended, Objective
from tokenfleet.errors import ContractError

TTFT_ONLY = Objective(ttft_s=4.0)
TPOT_ONLY = Objective(tpot_s=0.1)
E2E_ONLY = Objective(e2e_s=60.0)
NOT_STREAMED: dict[str, Any] = {"stream": False, "ttft_s": None, "tpot_s": None}
UNANSWERED: dict[str, Any] = {"ttft_s": None, "tpot_s": None, "output_tokens": 0}


@pytest.mark.parametrize(
    ("case", "changes", "met", "missed"),
    [
        ("every term within its limit", {}, True, ()),
        ("exactly at the limits", {"ttft_s": 4.0, "tpot_s": 0.1}, True, ()),
        ("first token late", {"ttft_s": 4.01}, False, ("ttft",)),
        ("tokens too slow", {"tpot_s": 0.11}, False, ("tpot",)),
        ("both late", {"ttft_s": 5.0, "tpot_s": 0.2}, False, ("ttft", "tpot")),
        ("no promise", {"objective": None}, None, ()),
        ("a promise without terms", {"objective": Objective()}, None, ()),
        ("one token has no TPOT", {"output_tokens": 1, "tpot_s": None}, True, ()),
        ("one late token", {"output_tokens": 1, "tpot_s": None, "ttft_s": 5.0}, False, ("ttft",)),
        ("only the end was promised", {"objective": E2E_ONLY, "ttft_s": 50.0}, True, ()),
        ("only the end was promised, late", {"objective": E2E_ONLY, "e2e_s": 61.0}, False, ("e2e",)),
        # Not streamed, 100 tokens: as good as promised if over within 4 + 99 * 0.1 = 13.9 s.
        ("not streamed, in time for both terms", {**NOT_STREAMED, "e2e_s": 13.8}, True, ()),
        ("not streamed, too late for both terms", {**NOT_STREAMED, "e2e_s": 14.0}, False, ("e2e",)),
        ("not streamed, one token", {**NOT_STREAMED, "output_tokens": 1, "e2e_s": 4.1}, False, ("e2e",)),
        ("not streamed, TTFT alone cannot be judged", {**NOT_STREAMED, "objective": TTFT_ONLY}, None, ()),
        ("not streamed, TPOT alone cannot be judged", {**NOT_STREAMED, "objective": TPOT_ONLY}, None, ()),
        (
            "not streamed, the stricter of two limits counts",
            {**NOT_STREAMED, "e2e_s": 13.0, "objective": Objective(ttft_s=4.0, tpot_s=0.1, e2e_s=12.0)},
            False,
            ("e2e",),
        ),
        ("an empty stream is judged by its end", {**UNANSWERED, "e2e_s": 3.0}, True, ()),
        ("refused with a promise", {"outcome": "rejected", **UNANSWERED, "e2e_s": 0.01}, False, ()),
        ("refused without one", {"outcome": "rejected", **UNANSWERED, "objective": None}, None, ()),
        ("timed out in the queue", {"outcome": "timed_out", **UNANSWERED, "e2e_s": 600.0}, False, ("ttft",)),
        ("timed out though in time so far", {"outcome": "timed_out"}, False, ()),
        ("failed", {"outcome": "failed"}, False, ()),
        ("cancelled while in time", {"outcome": "cancelled"}, None, ()),
        ("cancelled soon, nothing seen", {"outcome": "cancelled", **UNANSWERED, "e2e_s": 3.0}, None, ()),
        ("cancelled after a late token", {"outcome": "cancelled", "ttft_s": 5.0}, False, ("ttft",)),
        ("cancelled after silence", {"outcome": "cancelled", **UNANSWERED, "e2e_s": 5.0}, False, ("ttft",)),
        (
            "cancelled after the promised end",
            {"outcome": "cancelled", **NOT_STREAMED, "e2e_s": 61.0, "objective": E2E_ONLY},
            False,
            ("e2e",),
        ),
        (
            "cancelled before a streamed answer was due",
            {"outcome": "cancelled", **NOT_STREAMED, "e2e_s": 61.0},
            None,
            (),
        ),
    ],
)
def test_a_promise_is_judged_by_the_terms_that_can_be_measured(
    case: str, changes: dict[str, Any], met: bool | None, missed: tuple[str, ...]
) -> None:
    row = account(ended(**changes))
    assert (row.met, row.missed) == (met, missed), case


@pytest.mark.parametrize(
    ("changes", "cause", "wasted_input", "wasted_output"),
    [
        ({}, None, 0, 0),
        ({"objective": None}, None, 0, 0),
        ({"ttft_s": 5.0}, "late", 600, 100),
        ({"outcome": "timed_out"}, "timed_out", 600, 100),
        ({"outcome": "cancelled"}, "cancelled", 600, 100),
        ({"outcome": "failed"}, "failed", 600, 100),
        # Never at an engine: nothing was computed, so nothing is lost.
        ({"outcome": "timed_out", "instance": None, **UNANSWERED}, "timed_out", 0, 0),
        ({"outcome": "rejected", **UNANSWERED}, None, 0, 0),
    ],
)
def test_waste_is_what_was_computed_for_an_answer_nobody_could_use(
    changes: dict[str, Any], cause: str | None, wasted_input: int, wasted_output: int
) -> None:
    row = account(ended(**changes))
    assert (row.waste_cause, row.wasted_input_tokens, row.wasted_output_tokens) == (
        cause,
        wasted_input,
        wasted_output,
    )


def test_abandoned_attempts_are_waste_even_if_the_last_one_was_good() -> None:
    row = account(ended(attempt=2, retried_input_tokens=600, retried_output_tokens=3))
    assert row.met
    assert row.wasted_tokens == 603
    assert row.good_output_tokens == 100


def test_prediction_and_actual_stand_on_the_same_row() -> None:
    row = account(ended(predicted_ttft_s=0.8, predicted_tpot_s=0.07))
    assert (row.predicted_ttft_s, row.ttft_s) == (0.8, 1.0)
    assert (row.predicted_tpot_s, row.tpot_s) == (0.07, 0.09)


def test_reuse_beyond_the_input_is_capped() -> None:
    row = account(ended(input_tokens=100, reused_tokens=512))
    assert (row.reused_tokens, row.computed_tokens) == (100, 0)


@pytest.mark.parametrize(
    "changes",
    [{"output_tokens": -1}, {"e2e_s": -0.1}, {"ttft_s": -1.0}, {"submitted_ns": 2**63}, {"time_scale": 0.0}],
)
def test_figures_that_cannot_be_are_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(ContractError, match=next(iter(changes))):
        account(ended(**changes))


@given(any_ended())
def test_every_output_token_is_good_wasted_or_neutral(event: Ended) -> None:
    row = account(event)
    parts = (row.good_output_tokens, row.wasted_output_tokens, row.neutral_output_tokens)
    assert sum(parts) == event.output_tokens
    assert all(part >= 0 for part in parts)
    assert [part for part in parts if part] in ([], [event.output_tokens])


@given(any_ended())
def test_met_means_completed_with_a_promise_and_nothing_missed(event: Ended) -> None:
    row = account(event)
    if row.met:
        assert row.outcome == "completed"
        assert row.missed == ()
        assert event.objective is not None
        assert event.objective.declared
    if row.met is False:
        assert row.missed or row.outcome != "completed"
    if row.met is None:
        assert row.missed == ()


@given(any_ended())
def test_no_more_prompt_is_wasted_than_was_computed(event: Ended) -> None:
    row = account(event)
    assert 0 <= row.wasted_input_tokens <= row.computed_tokens <= event.input_tokens
    assert row.reused_tokens + row.computed_tokens <= event.input_tokens
