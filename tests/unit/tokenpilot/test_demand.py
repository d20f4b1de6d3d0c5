"""What arrives at a pool, and how old the blocks are that its caches would evict next."""

import pytest

from tokenpilot.policy.demand import OLDEST_S, Demand


def test_the_interval_and_the_work_of_arrivals_are_found():
    demand = Demand()
    for number in range(1_000):
        demand.arrived(0.2 if number % 2 else 0.4, number * 0.05)
    assert demand.interval_s == pytest.approx(0.05, rel=0.05)
    assert demand.work_s == pytest.approx(0.3, rel=0.05)


def test_a_cache_that_was_never_full_evicts_nothing_young():
    demand = Demand()
    demand.routed("a", 1_000, 10_000, 0.0)
    assert demand.oldest_block_age_s("a", 1.0) == OLDEST_S == demand.oldest_block_age_s("never heard of", 1.0)


def test_a_full_cache_evicts_what_was_sent_longest_ago():
    demand = Demand()
    for second in range(20):
        demand.routed("a", 1_000, 10_000, float(second))
    assert demand.oldest_block_age_s("a", 20.0) == pytest.approx(10.0, abs=1.0)
    assert demand.oldest_block_age_s("b", 20.0) == OLDEST_S, "another instance's cache is its own"


def test_the_more_is_sent_the_younger_are_the_blocks_evicted():
    demand = Demand()
    for second in range(20):
        demand.routed("a", 1_000, 10_000, float(second))
        demand.routed("b", 4_000, 10_000, float(second))
    assert demand.oldest_block_age_s("b", 20.0) < demand.oldest_block_age_s("a", 20.0)


def test_a_prompt_larger_than_the_cache_turns_all_of_it_over():
    demand = Demand()
    demand.routed("a", 1_000, 10_000, 0.0)
    demand.routed("a", 50_000, 10_000, 5.0)
    assert demand.oldest_block_age_s("a", 5.0) == 0.0


def test_ages_are_bounded_and_a_new_process_has_an_empty_cache():
    demand = Demand()
    for second in range(20):
        demand.routed("a", 1_000, 10_000, float(second))
    assert demand.oldest_block_age_s("a", 1e6) == OLDEST_S
    demand.left("a")
    assert demand.oldest_block_age_s("a", 20.0) == OLDEST_S
