"""Which class goes next."""

from slomax.policy.shares import Work, order
from tokenfleet.contracts.policy import ClassShare

SHARES = {
    "interactive": ClassShare(floor=0.5),
    "long_context": ClassShare(floor=0.2),
    "batch": ClassShare(floor=0.1, ceiling=0.3),
}


def work(**seconds: float) -> Work:
    done = Work()
    for name, work_s in seconds.items():
        done.started(name, work_s, 0.0)
    return done


def test_a_class_below_its_floor_goes_before_one_that_has_less_time():
    waiting = {"interactive": 1.0, "long_context": 9.0}
    assert order(waiting, work(interactive=9.0, long_context=1.0), SHARES, 0.0)[0] == "long_context"


def test_above_the_floors_whoever_has_less_time_goes_first():
    waiting = {"interactive": 1.0, "long_context": 9.0}
    assert order(waiting, work(interactive=6.0, long_context=4.0), SHARES, 0.0)[0] == "interactive"


def test_a_class_at_its_ceiling_goes_last_while_others_wait_and_first_when_none_does():
    done = work(interactive=5.0, long_context=1.0, batch=4.0)
    assert order({"batch": 0.0, "interactive": 9.0}, done, SHARES, 0.0) == ["interactive", "batch"]
    assert order({"batch": 0.0}, done, SHARES, 0.0) == ["batch"]


def test_shares_are_of_the_last_while_not_of_all_time():
    done = work(batch=1_000.0)
    done.started("interactive", 1.0, 600.0)
    assert done.share("interactive", 600.0) > 0.99
