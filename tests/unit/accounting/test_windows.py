"""Goodput windows: aligned, closed, one per pool and class."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from unit.accounting.rows import BASE_NS, SECOND_NS, any_ended, ended

from goodput_accountant.policy.accounting import LedgerRow, account
from goodput_accountant.policy.windows import goodput_windows, last_window_end, split

WINDOW_NS = 10 * SECOND_NS


@given(st.integers(0, 10**6), st.integers(0, 3 * SECOND_NS))
def test_the_newest_window_is_aligned_and_has_been_over_for_the_settling_time(
    offset: int, settle_ns: int
) -> None:
    now_ns = BASE_NS + offset * 1_000_003
    end_ns = last_window_end(now_ns, WINDOW_NS, settle_ns)
    assert end_ns % WINDOW_NS == 0
    assert 0 <= now_ns - end_ns - settle_ns < WINDOW_NS


@given(st.integers(0, 10**11), st.integers(0, 10))
def test_a_pause_is_made_up_for_in_whole_windows_without_gap_or_overlap(offset: int, count: int) -> None:
    start_ns = BASE_NS + offset
    end_ns = last_window_end(start_ns, WINDOW_NS, 0) + count * WINDOW_NS
    windows = split(start_ns, end_ns, WINDOW_NS)
    edges = [begin_ns for begin_ns, _ in windows] + [end_ns]
    assert windows == [(begin, begin + WINDOW_NS) for begin in edges[:-1]]
    assert all(after - before == WINDOW_NS for before, after in itertools.pairwise(edges))
    assert start_ns <= edges[0] < start_ns + WINDOW_NS or not windows


def test_each_pool_and_class_has_a_window_of_what_ended_in_it() -> None:
    rows = [
        account(ended("a", time_ns=BASE_NS)),
        account(ended("b", time_ns=BASE_NS + 1, ttft_s=9.0)),
        account(ended("c", time_ns=BASE_NS, request_class="batch", outcome="rejected", output_tokens=0)),
        account(ended("d", time_ns=BASE_NS, pool="mistral@2", request_class=None, objective=None)),
        account(ended("e", time_ns=BASE_NS, outcome="lost", output_tokens=0, ttft_s=None, tpot_s=None)),
        account(ended("too early", time_ns=BASE_NS - 1)),
        account(ended("too late", time_ns=BASE_NS + WINDOW_NS)),
    ]
    windows = {
        (window.pool, window.request_class): window
        for window in goodput_windows(rows, BASE_NS, BASE_NS + WINDOW_NS)
    }
    assert set(windows) == {
        ("llama-70b@1", "interactive"),
        ("llama-70b@1", "batch"),
        ("mistral@2", "unclassified"),
    }
    interactive = windows["llama-70b@1", "interactive"]
    assert (interactive.offered, interactive.completed, interactive.met) == (3, 2, 1)
    assert interactive.lost == 1
    assert (interactive.output_tokens, interactive.good_tokens) == (200, 100)
    assert interactive.window_s == 10.0
    assert windows["llama-70b@1", "batch"].rejected == 1
    assert windows["mistral@2", "unclassified"].met == 0


def test_a_window_lasts_as_many_engine_seconds_as_the_engines_counted() -> None:
    row = account(ended("a", time_ns=BASE_NS, time_scale=5.0))
    assert goodput_windows([row], BASE_NS, BASE_NS + WINDOW_NS)[0].window_s == 50.0


@given(st.lists(any_ended().map(account), max_size=5), st.integers(0, 2 * 10**12))
def test_two_neighbouring_windows_hold_what_one_over_both_holds(rows: list[LedgerRow], cut: int) -> None:
    end_ns = BASE_NS + 2 * 10**12 + 1
    cut_ns = BASE_NS + cut
    apart = [*goodput_windows(rows, BASE_NS, cut_ns), *goodput_windows(rows, cut_ns, end_ns)]
    together = goodput_windows(rows, BASE_NS, end_ns)
    for name in ("offered", "met", "output_tokens", "good_tokens"):
        assert sum(getattr(window, name) for window in apart) == sum(
            getattr(window, name) for window in together
        )
