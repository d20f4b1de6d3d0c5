"""A completion window is a deadline, in whole minutes, hours or days."""

import pytest

from ingress.policy.batch.deadline import LONGEST_S, SHORTEST_S, window_s


@pytest.mark.parametrize(
    ("text", "seconds"), [("24h", 86_400), ("1m", 60), ("90m", 5_400), ("7d", 604_800), ("14d", LONGEST_S)]
)
def test_a_window_is_a_number_and_a_unit(text: str, seconds: int):
    assert window_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "24", "h", "0m", "-1h", "1.5h", "24H", " 24h", "24h\n", "1w", "15d", "99999d", "٢m"]
)
def test_anything_else_is_refused_with_what_is_allowed(text: str):
    with pytest.raises(ValueError, match=r"24h or 7d, from 1m to 14d"):
        window_s(text)


def test_the_message_states_the_bounds_in_force():
    assert (SHORTEST_S, LONGEST_S) == (60, 14 * 86_400)
