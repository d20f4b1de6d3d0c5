"""What users of other routers report of load accounting, turned into what TokenFleet does instead.

Rows are those of docs/peers-complaints.md.
"""

import pytest
from unit.complaints.router import Router

from lab.sim.api import Refuse, Route

BIG = 30_000
"""Tokens of a prompt that keeps a reference engine busy for over two seconds."""


class TestOldTelemetryIsNotSaturation:
    """Row 1 (llm-d-router #2100, #2408, #2547, #2492): readings older than 200 ms counted as full and halted dispatch."""

    @pytest.mark.parametrize("silence_s", [0.25, 0.6, 1.2])
    def test_the_only_engine_of_a_pool_is_used_at_the_same_prediction_while_a_scrape_stalls(
        self, silence_s: float
    ):
        router = Router("a", admission=True)
        before_s = router.probe().predicted_ttft_s
        router.wait(silence_s)
        assert router.probe().predicted_ttft_s == pytest.approx(before_s, rel=0.01)

    def test_when_all_telemetry_is_away_requests_are_still_spread_by_our_own_count(self):
        router = Router("a", "b", "c", "d")
        router.wait(30.0)
        assert sorted(router.sent_to(f"r{number}", BIG) for number in range(4)) == ["a", "b", "c", "d"]

    def test_one_silent_engine_among_others_is_left_alone_until_it_is_heard_again(self):
        router = Router("a", "b")
        router.wait(1.0)
        router.read("b")
        assert {router.probe().instance for _ in range(8)} == {"b"}
        router.read("a")
        assert {router.probe().instance for _ in range(20)} == {"a", "b"}


class TestInFlightCountsNeverLeak:
    """Row 3 (llm-d-router #1739, aibrix #2421): in flight went negative when an engine came back under its name."""

    def test_ends_of_requests_of_the_old_process_take_nothing_from_the_new_one(self):
        router = Router("a", "b")
        router.fill("a", "old-1", BIG)
        router.fill("a", "old-2", BIG)
        router.leave("a")
        router.join("a", generation=2)
        router.fill("a", "new", BIG)
        for _ in range(2):  # reported late, and twice
            for name in ("old-1", "old-2"):
                router.first_token(name)
                router.end(name, output_tokens=0)
        assert router.probe().instance == "b", "the new process still has its one request"
        router.end("new")
        assert {router.probe().instance for _ in range(20)} == {"a", "b"}, "neither more nor less than idle"

    def test_an_end_reported_twice_counts_once(self):
        router = Router("a", "b")
        router.fill("a", "one", BIG)
        router.fill("a", "two", BIG)
        router.end("one")
        router.end("one")
        assert router.probe().instance == "b"


class TestDispatchIsCountedBeforeTelemetryShowsIt:
    """Row 4 (llm-d-router #2066): decisions every millisecond on readings every 50 ms overshot one engine."""

    def test_a_burst_between_two_readings_is_spread_evenly(self):
        router = Router("a", "b", "c", "d")
        sent = [router.sent_to(f"r{number}", 8_000) for number in range(16)]
        assert {engine: sent.count(engine) for engine in sent} == dict.fromkeys(["a", "b", "c", "d"], 4)

    def test_a_request_that_telemetry_shows_in_time_is_not_counted_twice(self):
        router = Router("a")
        for number in range(3):
            router.fill("a", f"r{number}", BIG)
        before_s = router.probe().predicted_ttft_s
        assert before_s is not None
        router.wait(0.1)
        router.read("a", running=1, waiting=2)
        after_s = router.probe().predicted_ttft_s
        assert before_s - 0.15 < after_s < before_s + 0.05

    def test_a_reading_taken_before_the_engine_had_it_does_not_erase_it(self):
        router = Router("a", "b")
        router.fill("a", "r1", BIG)
        router.read("a")  # still idle: the request is on its way
        assert router.probe().instance == "b"


class TestWorkIsBalancedNotRequestRate:
    """Row 17 (production-stack #1073, #1089): routing by requests per second starved engines."""

    def test_one_long_prompt_weighs_more_than_many_short_ones(self):
        router = Router("a", "b")
        router.fill("a", "long", 60_000)
        for number in range(5):
            router.fill("b", f"short-{number}", 200)
        assert router.probe().instance == "b"

    def test_an_engine_that_was_sent_much_and_finished_it_is_as_good_as_any(self):
        router = Router("a", "b")
        for number in range(50):
            router.fill("a", f"r{number}", 500)
            router.first_token(f"r{number}")
            router.end(f"r{number}", output_tokens=1)
        router.wait(1.0)
        router.read("a")
        router.read("b")
        assert {router.probe().instance for _ in range(20)} == {"a", "b"}


class TestNobodyStarves:
    """Row 25 (llm-d-router #1934, #1119, #1995, GIE #1797): sheddable work was not shed, low bands starved."""

    def test_what_cannot_be_served_in_time_is_refused_at_once_and_what_is_admitted_waits_a_bounded_time(self):
        router = Router("a", "b", admission=True)
        decisions = [router.send(f"r{number}", 8_000) for number in range(40)]
        admitted = [each for each in decisions if isinstance(each, Route)]
        refused = [each for each in decisions if isinstance(each, Refuse)]
        assert admitted
        assert len(refused) > len(decisions) / 4
        assert all((each.predicted_ttft_s or 0.0) < 4.0 for each in admitted)

    def test_a_long_prompt_is_taken_while_short_ones_are_refused_for_its_objective_leaves_it_time(self):
        router = Router("a", admission=True)
        number = 0
        while not isinstance(router.send(f"r{number}", 4_000), Refuse):
            number += 1
        assert not isinstance(router.send("long", 60_000), Refuse)
