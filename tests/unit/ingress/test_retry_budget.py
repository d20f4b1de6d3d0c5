"""Retries never amplify an outage, and a quiet fleet can still retry."""

from hypothesis import given
from hypothesis import strategies as st

from ingress.policy.retry_budget import FREE_RETRIES, WINDOW_S, RetryBudget


def test_a_quiet_fleet_may_retry_a_few_times() -> None:
    budget = RetryBudget()
    budget.request(0.0)
    assert [budget.take(0.1, 0.0) for _ in range(FREE_RETRIES + 1)] == [True] * FREE_RETRIES + [False]


def test_of_many_requests_a_share_may_be_retried() -> None:
    budget = RetryBudget()
    for _ in range(100):
        budget.request(5.0)
    assert sum(budget.take(0.1, 6.0) for _ in range(100)) == 10


def test_budget_comes_back_as_retries_grow_old_and_goes_as_requests_do() -> None:
    budget = RetryBudget()
    for _ in range(100):
        budget.request(0.0)
    assert sum(budget.take(0.1, 0.0) for _ in range(20)) == 10
    assert not budget.take(0.1, WINDOW_S - 1.0)
    assert sum(budget.take(0.1, WINDOW_S + 1.0) for _ in range(20)) == FREE_RETRIES, "nothing was asked since"


@given(
    st.lists(st.tuples(st.floats(0.0, 20.0), st.booleans()), max_size=200), st.sampled_from([0.0, 0.1, 0.5])
)
def test_in_no_window_are_there_more_retries_than_the_share_allows(
    steps: list[tuple[float, bool]], share: float
) -> None:
    budget, now_s = RetryBudget(), 0.0
    requests: list[float] = []
    retries: list[float] = []
    for pause_s, is_retry in steps:
        now_s += pause_s
        if not is_retry:
            budget.request(now_s)
            requests.append(now_s)
        elif budget.take(share, now_s):
            retries.append(now_s)
            # Seconds are counted whole, so the window may be up to a second wider.
            recent = sum(at_s > now_s - WINDOW_S - 1.0 for at_s in requests)
            assert sum(at_s > now_s - WINDOW_S + 1.0 for at_s in retries) <= max(FREE_RETRIES, share * recent)
