"""The book of what was asked for, kept by every replica from the same messages."""

import random

import pytest

from fleetmind.policy.planning.book import GRACE_S, HEARD_S, AskedBook, Asking
from fleetmind.policy.planning.forecast import INTERVAL_S
from tokenfleet.contracts.sites import Asked, AskedOf

START_S = 1_800_000_000 // 60 * 60


def asked(interval: int, work: float, site: str = "A", replica: str = "1", model: str = "m") -> Asked:
    return Asked(
        site=site,
        replica=replica,
        interval_start_s=START_S + int(interval * INTERVAL_S),
        interval_s=int(INTERVAL_S),
        asked=(AskedOf(model=model, work=work),),
    )


def after(interval: int) -> float:
    """When everything that is said of an interval has arrived."""
    return START_S + (interval + 1) * INTERVAL_S + GRACE_S


def horizon_s(_: str) -> float:
    return 120.0


def expected(book: AskedBook, site: str = "A", model: str = "m") -> float:
    return book.expected({site}, horizon_s)[Asking(site, model)].expected


def kept(messages: list[Asked], intervals: int) -> AskedBook:
    book = AskedBook()
    for message in messages:
        book.add(message)
    book.close(after(intervals), horizon_s)
    return book


def test_a_site_was_asked_for_what_its_replicas_were_asked_for_together():
    both = [asked(interval, 1.0, replica=replica) for interval in range(10) for replica in "12"]
    assert expected(kept(both, 9)) == pytest.approx(2.0)


def test_messages_told_twice_or_in_another_order_make_the_same_book():
    messages = [asked(interval, interval % 3, replica=replica) for interval in range(20) for replica in "12"]
    told = messages + messages[5:30]
    random.Random(7).shuffle(told)
    assert expected(kept(told, 19)) == expected(kept(messages, 19))


def test_an_interval_counts_only_when_all_had_time_to_tell_of_it():
    book = AskedBook()
    book.add(asked(0, 1.0))
    book.close(after(0) - 0.1, horizon_s)
    assert not book.expected({"A"}, horizon_s)
    book.close(after(0), horizon_s)
    assert book.expected({"A"}, horizon_s)


def test_a_model_that_a_site_does_not_mention_was_not_asked_for_there():
    messages = [asked(0, 5.0)] + [asked(interval, 1.0, model="other") for interval in range(1, 60)]
    assert expected(kept(messages, 59)) < 0.5


def test_a_site_that_tells_nothing_any_more_is_not_planned_for():
    book = kept([asked(0, 1.0)], 0)
    assert book.sites(after(0)) == {"A"}
    assert book.sites(START_S + INTERVAL_S + HEARD_S) == set()
