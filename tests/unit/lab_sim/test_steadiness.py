"""Whether a policy that steers itself settles after a step in load."""

from sim_worlds import Watcher, cluster, submission

from lab.sim.figures import Observed, policy_figures
from lab.sim.simulator import Simulation
from lab.sim.steadiness import steadiness
from tokenfleet.contracts.policy import Policy


def test_it_settled_when_it_changed_itself_for_the_last_time_before_the_next_step() -> None:
    moves = [(5.0, "a", 1.0, 0.9), (120.0, "a", 0.9, 0.8), (130.0, "b", 0.9, 0.8), (225.0, "a", 0.8, 0.9)]
    assert steadiness(moves, (100.0, 200.0)) == {"changes": 4, "turned_back": 0, "settled_s": 30.0}


def test_a_knob_that_goes_back_and_forth_between_two_steps_oscillates() -> None:
    moves = [(time, "a", *pair) for time, pair in zip(range(101, 105), [(2, 1), (1, 2)] * 2, strict=True)]
    assert steadiness(moves, (100.0,))["turned_back"] == 3


def test_opposite_moves_of_two_knobs_or_after_another_step_are_no_oscillation() -> None:
    moves = [(101.0, "a", 2.0, 1.0), (102.0, "b", 1.0, 2.0), (201.0, "a", 1.0, 2.0)]
    assert steadiness(moves, (100.0, 200.0))["turned_back"] == 0


def test_what_it_did_before_the_first_step_is_not_judged() -> None:
    moves = [(1.0, "a", 2.0, 1.0), (2.0, "a", 1.0, 2.0)]
    assert steadiness(moves, (100.0,)) == {"changes": 2, "turned_back": 0, "settled_s": 0.0}


def test_without_steps_there_is_nothing_to_settle_after() -> None:
    assert steadiness([], ()) == {"changes": 0, "turned_back": 0, "settled_s": None}


class Steering(Watcher):
    adjustments = [(0.5, "margin", 1.0, 0.9)]  # noqa: RUF012 - as a policy keeps it


def test_the_record_a_policy_keeps_of_its_own_changes_is_in_the_figures() -> None:
    work = [submission(0, 0.0), submission(1, 1.0)]
    run = Simulation(cluster(), work, Steering()).run()
    figures = policy_figures(run, Policy(), Observed(steps_s=(0.2,)))
    assert figures["steadiness"]["settled_s"] == 0.3
    assert figures["series"]["adjustments"] == [(0.5, "margin", 1.0, 0.9)]
    silent = policy_figures(Simulation(cluster(), work, Watcher()).run(), Policy())
    assert silent["steadiness"]["changes"] == 0
