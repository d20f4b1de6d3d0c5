"""How long answers are, learned from those seen."""

import random

import msgspec
import numpy as np
import pytest

from tokenfleet.load import OutputLengths
from tokenfleet.load.lengths import BINS, MOST_CONTINUATIONS, REFRESH_AFTER, bins_of


def learned(*answers: int, input_tokens: int = 1_000, previous: int | None = None) -> OutputLengths:
    lengths = OutputLengths()
    for tokens in answers:
        lengths.learn(input_tokens, previous, tokens, None)
    return lengths


def test_before_anything_is_known_answers_have_some_hundred_tokens():
    lengths = OutputLengths()
    assert 100 < lengths.expected(lengths.row(1_000, None)) < 1_000


def test_the_median_and_spread_of_what_was_seen_are_found():
    rng = random.Random(1)
    answers = [round(rng.lognormvariate(5.0, 0.5)) for _ in range(50 * REFRESH_AFTER)]
    lengths = learned(*answers)
    quantiles = lengths.quantiles[lengths.row(1_000, None), 0]
    actual = np.quantile(answers, np.array([1, 3, 5, 7, 9, 11, 13]) / 14)
    assert quantiles == pytest.approx(actual, rel=0.15)


def test_the_previous_answer_tells_more_than_the_prompt():
    lengths = OutputLengths()
    for _ in range(4 * REFRESH_AFTER):
        lengths.learn(1_000, 30, 30, None)
        lengths.learn(1_000, 2_000, 2_000, None)
    short, long = lengths.expected(lengths.row(1_000, 30)), lengths.expected(lengths.row(1_000, 2_000))
    new = lengths.expected(lengths.row(1_000, None))
    assert short < new < long and long > 5 * short


def test_prompts_of_another_length_nobody_asked_yet_lean_on_all_answers():
    lengths = learned(*[40] * 10 * REFRESH_AFTER)
    assert lengths.expected(lengths.row(100_000, None)) == pytest.approx(40, rel=0.4)


def test_the_more_is_out_the_longer_the_answer_will_be_and_always_longer_than_that():
    lengths = learned(*[10, 100, 1_000] * 4 * REFRESH_AFTER)
    quantiles = lengths.quantiles[lengths.row(1_000, None)]
    assert (np.diff(quantiles, axis=0) >= -1e-9).all()
    assert (np.diff(quantiles, axis=1) >= 0).all()
    bins = bins_of(np.array([1.0, 150.0, 5_000.0]))
    assert (quantiles[bins, 0] >= np.array([1.0, 120.0, 4_000.0])).all()
    assert bins_of(np.array([0.0, 1e9])).tolist() == [0, BINS - 1]


def test_an_answer_of_no_token_teaches_nothing():
    assert learned(0).counts() == OutputLengths().counts()


class TestConversations:
    def test_a_prompt_that_continues_another_is_recognised_by_its_last_block(self):
        lengths = OutputLengths()
        lengths.learn(640, None, 77, last_block=10)
        assert lengths.previous_answer([1, 2, 10, 11, 12]) == 77
        assert lengths.previous_answer([1, 2, 3]) is None
        assert lengths.previous_answer([]) is None

    def test_the_latest_turn_counts(self):
        lengths = OutputLengths()
        lengths.learn(640, None, 77, last_block=10)
        lengths.learn(900, 77, 500, last_block=12)
        assert lengths.previous_answer([10, 11, 12, 13]) == 500

    def test_what_many_prompts_continue_is_no_conversation(self):
        lengths = OutputLengths()
        lengths.learn(640, None, 77, last_block=10)
        found = [lengths.previous_answer([10, number]) for number in range(100, 100 + MOST_CONTINUATIONS + 2)]
        assert found == [77] * MOST_CONTINUATIONS + [None] * 2


class TestHandingOver:
    def test_another_process_takes_up_what_was_learned(self):
        first, second = learned(*[40] * 10 * REFRESH_AFTER, previous=30), OutputLengths()
        second.restore(msgspec.json.decode(msgspec.json.encode(first.counts()), type=type(first.counts())))
        assert second.counts() == first.counts()
        assert np.array_equal(second.quantiles, first.quantiles)

    @pytest.mark.parametrize("bad", [[], [[1.0]], [[-1.0] * BINS] * 17, [[float("nan")] * BINS] * 17])
    def test_what_has_another_form_is_refused_and_changes_nothing(self, bad: list[list[float]]):
        lengths = learned(*[40] * 10)
        before = lengths.counts()
        with pytest.raises(ValueError, match=r"answer lengths|inhomogeneous"):
            lengths.restore(msgspec.structs.replace(before, by_previous=bad))
        assert lengths.counts() == before
