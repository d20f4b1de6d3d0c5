"""What outcomes move: by bounded steps, not by chance, and with a way back."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slomax.policy.feedback import BOUNDS, FLOOR_MOST, MISSING_WINDOWS, SEVERAL, WINDOW_S, Controller
from slomax.policy.outcomes import Evidence, absurd
from tokenfleet.contracts.policy import ClassShare, Policy

POLICY = Policy()


def window(
    ended: int = 1_000, met: float = 0.97, *, refused: int = 0, tpot: bool = True, good: float | None = None
):
    missed = ended - round(ended * met)
    return Evidence(
        offered=ended + refused,
        refused=refused,
        ended=ended,
        met=ended - missed,
        missed_tpot=missed if tpot else 0,
        missed_ttft=0 if tpot else missed,
        output_tokens=100 * ended,
        good_tokens=round(100 * ended * (met if good is None else good)),
    )


class Run:
    """A controller that is shown one window after the other."""

    def __init__(self, policy: Policy = POLICY) -> None:
        self.controller, self.policy, self.now_s = Controller(), policy, 0.0

    def see(self, seen: Evidence | dict[str, Evidence], times: int = 1):
        changes = []
        for _ in range(times):
            self.now_s += WINDOW_S
            windows = seen if isinstance(seen, dict) else {"interactive": seen}
            changes += self.controller.judge(windows, self.policy, self.now_s)
        return changes

    @property
    def margins(self):
        return self.controller.margins(self.policy)


def test_while_objectives_are_met_nothing_moves():
    assert Run().see(window(met=0.96), times=20) == []


def test_missed_tpot_lowers_the_harm_that_is_allowed_and_missed_ttft_the_wait():
    tpot, ttft = Run(), Run()
    (change,) = tpot.see(window(met=0.8), times=SEVERAL)
    assert change.knob == "misses_allowed" and change.after < change.before and "80.0%" in change.reason
    assert tpot.margins.misses_allowed < POLICY.misses_allowed
    (change,) = ttft.see(window(met=0.8, tpot=False), times=SEVERAL)
    assert change.knob == "wait_share_of_slack"


def test_one_bad_window_moves_nothing():
    run = Run()
    assert run.see(window(met=0.8)) == []
    assert run.see(window(met=0.96)) == []
    assert run.see(window(met=0.8)) == []


def test_what_a_small_window_shows_may_be_chance():
    assert Run().see(window(40, 0.9), times=3) == []
    assert Run().see(window(4_000, 0.9), times=3) != []


def test_a_small_lack_that_lasts_is_no_chance_and_one_that_does_not_last_is():
    assert Run().see(window(150, 0.94), times=8) == []
    (first, *_) = Run().see(window(150, 0.94), times=40)
    assert first.knob == "misses_allowed" and first.after < first.before
    run = Run()
    for _ in range(20):
        assert run.see(window(150, 0.93)) == run.see(window(150, 0.97)) == []


def test_hours_in_which_all_was_well_do_not_hide_that_it_is_no_more():
    run = Run()
    run.see(window(150, 0.965), times=1_000)
    assert run.see(window(150, 0.925), times=80) != []


def test_a_tightening_after_which_less_becomes_good_is_taken_back():
    run = Run()
    run.see(window(met=0.8), times=SEVERAL)
    changes = run.see(window(met=0.8, good=0.5), times=2)
    assert [change.after for change in changes] == [1.0] and "after tightening" in changes[0].reason
    assert run.see(window(met=0.8, good=0.5), times=2) == [], "nor is it tried again at once"


def test_a_margin_comes_back_when_objectives_are_met_again():
    run = Run()
    run.see(window(met=0.8), times=SEVERAL)
    assert run.see(window(met=0.99), times=10)[-1].after == 1.0
    assert run.margins.misses_allowed == POLICY.misses_allowed


def test_without_outcomes_everything_returns_to_what_is_configured():
    run = Run()
    run.see(window(met=0.8), times=8)
    assert run.margins.misses_allowed < POLICY.misses_allowed
    run.see(Evidence(), times=MISSING_WINDOWS + 10)
    assert run.margins == Controller().margins(POLICY)


def test_with_feedback_off_margins_are_as_configured():
    run = Run(Policy(feedback=False))
    assert run.see(window(met=0.1), times=10) == []


def test_a_class_served_worse_than_the_others_gets_a_higher_floor_within_bounds_and_gives_it_back():
    run = Run()
    worse = {"interactive": window(), "long_context": window(met=0.6, refused=100)}
    run.see(worse, times=30)
    raised = run.controller.shares(POLICY)["long_context"].floor
    assert POLICY.shares["long_context"].floor < raised <= POLICY.shares["long_context"].floor + FLOOR_MOST
    run.see({"interactive": window(), "long_context": window()}, times=10)
    assert run.controller.shares(POLICY) == POLICY.shares


def test_a_class_of_few_requests_is_judged_by_several_windows_and_not_by_its_crowded_ones():
    run, changes = Run(), []
    for _ in range(20):
        for few in (window(29), window(29), window(31, met=0.5)):
            changes += run.see({"interactive": window(met=0.97), "long_context": few})
    assert changes == []
    assert run.see({"interactive": window(met=0.97), "long_context": window(10, met=0.3)}, times=10) != []


def test_a_class_that_is_a_little_behind_now_and_then_keeps_its_floor_where_it_is():
    run, changes = Run(), []
    for _ in range(20):
        for met in (0.95, 0.88, 0.92):
            changes += run.see({"interactive": window(10_000, met=0.97), "long_context": window(met=met)})
    assert changes == []


counts = st.integers(0, 5_000)


@given(
    st.lists(
        st.tuples(counts, st.floats(0, 1), counts, st.booleans(), st.floats(0, 1)), min_size=1, max_size=60
    )
)
def test_whatever_comes_margins_and_floors_stay_within_their_bounds(seen):
    run = Run()
    for ended, met, refused, tpot, good in seen:
        run.see(
            {
                "interactive": window(ended, met, refused=refused, tpot=tpot, good=good),
                "long_context": window(),
            }
        )
        margins, shares = run.margins, run.controller.shares(POLICY)
        least, most = BOUNDS["misses_allowed"]
        assert least <= margins.misses_allowed / POLICY.misses_allowed <= most
        assert 0 < margins.wait_share_of_slack <= 1.0 and 0 < margins.queue_share <= 1.0
        assert sum(share.floor for share in shares.values()) <= 1.0 + 1e-9
        assert all(
            isinstance(share, ClassShare) and share.floor <= share.ceiling for share in shares.values()
        )


COUNTS = dict.fromkeys(("completed", "rejected", "timed_out", "cancelled", "failed", "lost"), 1.0) | {
    "offered": 6.0,
    "met": 1.0,
    "output_tokens": 10.0,
    "good_tokens": 10.0,
}


@pytest.mark.parametrize(
    ("changes", "window_s", "age_s"),
    [
        ({"met": -1.0}, 10.0, 1.0),
        ({"output_tokens": math.nan}, 10.0, 1.0),
        ({"met": 2.0}, 10.0, 1.0),
        ({"good_tokens": 11.0}, 10.0, 1.0),
        ({"offered": 5.0}, 10.0, 1.0),
        ({}, 0.0, 1.0),
        ({}, math.inf, 1.0),
        ({}, 10.0, 86_400.0),
        ({}, 10.0, -3_600.0),
    ],
)
def test_absurd_windows_are_not_believed(changes: dict[str, float], window_s: float, age_s: float):
    assert absurd(COUNTS, 10.0, 1.0) is None
    assert absurd(COUNTS | changes, window_s, age_s)
