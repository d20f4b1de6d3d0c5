"""Without deciders, ingress picks the least-loaded ready instance it knows of."""

import fleets

from ingress.policy.fallback import least_loaded


def test_the_instance_with_the_fewest_reported_requests_is_chosen() -> None:
    busy, free = fleets.view("a"), fleets.view("b")
    busy.state = fleets.state("a", waiting=2, running=3)
    free.state = fleets.state("b", waiting=0, running=4)
    assert least_loaded([busy, free], {}) is free


def test_requests_of_this_ingress_count_even_before_a_reading_shows_them() -> None:
    assert least_loaded([fleets.view("a"), fleets.view("b")], {"a": 1}).record.instance == "b"  # type: ignore[union-attr]


def test_an_instance_without_a_reading_is_judged_by_what_this_ingress_has_there() -> None:
    silent = fleets.view("a")
    silent.state = None
    busy = fleets.view("b")
    busy.state = fleets.state("b", running=1)
    assert least_loaded([busy, silent], {"a": 0}) is silent


def test_excluded_instances_are_never_chosen() -> None:
    assert least_loaded([fleets.view("a")], {}, excluded=["a"]) is None
