"""Replicas come at once and go slowly."""

from itertools import pairwise
from random import Random

from fleetmind.policy.planning.hysteresis import Steadying

KEY = ("B", "llama@1")


def test_more_is_wanted_at_once():
    assert Steadying().steadied(KEY, 2, 9, 600.0, 0.0) == 9


def test_fewer_only_after_all_of_a_while_wanted_fewer():
    steadying = Steadying()
    assert [steadying.steadied(KEY, 4, 2, 600.0, now_s) for now_s in (0.0, 300.0, 599.0)] == [4, 4, 4]
    assert steadying.steadied(KEY, 4, 2, 600.0, 601.0) == 3
    assert steadying.steadied(KEY, 3, 2, 600.0, 661.0) == 2


def test_one_plan_that_wants_more_begins_the_while_again():
    steadying = Steadying()
    steadying.steadied(KEY, 4, 2, 600.0, 0.0)
    steadying.steadied(KEY, 4, 4, 600.0, 500.0)
    assert steadying.steadied(KEY, 4, 2, 600.0, 700.0) == 4
    assert steadying.steadied(KEY, 4, 2, 600.0, 1_101.0) == 3


def test_a_tenth_goes_at_a_time():
    steadying = Steadying()
    steadying.steadied(KEY, 40, 10, 600.0, 0.0)
    assert steadying.steadied(KEY, 40, 10, 600.0, 700.0) == 36


def test_a_pool_that_was_gone_begins_anew():
    steadying = Steadying()
    steadying.steadied(KEY, 4, 2, 600.0, 0.0)
    steadying.keep(set())
    assert steadying.steadied(KEY, 4, 2, 600.0, 700.0) == 4


def test_after_a_step_of_noisy_demand_replicas_do_not_swing():
    rng, steadying, running = Random(1), Steadying(), 5
    history: list[int] = []
    for minute in range(600):
        level = 8.0 if 100 <= minute < 400 else 4.5
        wanted = round(rng.gauss(level, 0.8))
        running = steadying.steadied(KEY, running, wanted, 600.0, 60.0 * minute)
        history.append(running)
    moves = [later - earlier for earlier, later in pairwise(history)]
    turns = [one for one in moves if one]
    changes = sum(a * b < 0 for a, b in pairwise(turns))
    assert history[115] >= 8, "the step is followed within minutes"
    assert max(history[420:440]) < history[399], "and down again"
    assert sum(abs(one) for one in moves) < 100 and changes < 60
