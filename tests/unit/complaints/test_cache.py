"""What users of other routers report of prefix caches, turned into what TokenFleet does instead.

Rows are those of docs/peers-complaints.md. Blocks hold 64 tokens.
"""

import pytest
from unit.complaints.router import Router

PROMPT = list(range(1, 301))
"""The blocks of a prompt of 19,200 tokens, which takes a reference engine 1.6 s to prefill."""
TOKENS = len(PROMPT) * 64 + 10


class TestALostCacheIsForgotten:
    """Row 10 (llm-d-router #1736, kv-cache-manager #563, #593): the index kept a dead engine's blocks."""

    def test_an_engine_that_came_back_is_cold(self):
        router = Router("a", "b")
        router.cache("a", PROMPT)
        assert router.probe(TOKENS, PROMPT).instance == "a"
        router.leave("a")
        router.join("a", generation=2)
        router.fill("a", "r1", 2_000)
        assert router.probe(TOKENS, PROMPT).instance == "b", "it has a request and no cache"

    def test_what_an_engine_says_it_removed_is_gone(self):
        router = Router("a")
        cold_s = router.probe(TOKENS, PROMPT).predicted_ttft_s
        router.cache("a", PROMPT)
        assert router.probe(TOKENS, PROMPT).predicted_ttft_s < cold_s / 5
        router.cache("a", removed=PROMPT)
        assert router.probe(TOKENS, PROMPT).predicted_ttft_s == pytest.approx(cold_s)


class TestOnlyAContiguousPrefixCounts:
    """Row 11 (llm-d-router #2362, #2889, vllm #44488): scattered hits overstated what is resident."""

    def test_blocks_after_a_hole_are_worth_nothing(self):
        whole, holed = Router("a"), Router("a")
        whole.cache("a", PROMPT[:100])
        holed.cache("a", [*PROMPT[:100], *PROMPT[101:]])
        expected_s = whole.probe(TOKENS, PROMPT).predicted_ttft_s
        assert holed.probe(TOKENS, PROMPT).predicted_ttft_s == pytest.approx(expected_s)

    def test_a_cache_that_lacks_the_first_block_is_cold(self):
        cold, late = Router("a"), Router("a")
        late.cache("a", PROMPT[1:])
        expected_s = cold.probe(TOKENS, PROMPT).predicted_ttft_s
        assert late.probe(TOKENS, PROMPT).predicted_ttft_s == pytest.approx(expected_s)

    def test_a_block_stored_twice_is_one_block_and_one_removal_removes_it(self):
        cold, router = Router("a"), Router("a")
        router.cache("a", PROMPT)
        router.cache("a", PROMPT)
        router.cache("a", removed=PROMPT)
        expected_s = cold.probe(TOKENS, PROMPT).predicted_ttft_s
        assert router.probe(TOKENS, PROMPT).predicted_ttft_s == pytest.approx(expected_s)


class TestCacheAndLoadAreOneCost:
    """Row 18 (production-stack #1045, #1035, #884): the cache-aware policy ignored load."""

    def test_a_cached_prefix_is_worth_waiting_for_only_as_long_as_computing_it_takes(self):
        router = Router("a", "b")
        router.cache("a", PROMPT)
        router.fill("a", "r1", 4_000)
        assert router.probe(TOKENS, PROMPT).instance == "a", "a short wait for a long prefix"
        router.fill("a", "r2", 40_000)
        assert router.probe(TOKENS, PROMPT).instance == "b", "a long one costs more than it saves"

    def test_a_popular_prefix_does_not_herd_its_requests_to_one_engine(self):
        router = Router("a", "b", "c", "d")
        router.cache("a", PROMPT[:40])
        sent = {router.sent_to(f"r{number}", 12_000, PROMPT[:40]) for number in range(12)}
        assert sent == {"a", "b", "c", "d"}


class TestCostsAreSeconds:
    """Row 20 (inference-sim #1007): a prefix nobody holds scored 1.0 everywhere and drowned the load."""

    def test_when_nobody_has_the_prefix_load_decides(self):
        router = Router("a", "b", "c")
        router.fill("a", "r1", 2_000)
        router.fill("b", "r2", 2_000)
        assert router.probe(TOKENS, PROMPT).instance == "c"

    def test_one_cached_block_weighs_as_much_as_one_block_takes_to_compute(self):
        router = Router("a", "b")
        router.cache("a", PROMPT[:1])
        assert {router.probe(TOKENS, PROMPT).instance for _ in range(8)} == {"a"}
        router.fill("a", "r1", 1_000)
        assert router.probe(TOKENS, PROMPT).instance == "b"


class TestTheCacheIsWhereItsEngineSaysItIs:
    """Row 29 (GIE #2391): the prefix was credited to the engine that decoded, not to the one that computed it."""

    def test_blocks_are_credited_to_the_engine_whose_events_name_them_wherever_the_request_was_sent(self):
        router = Router("a", "b")
        router.fill("a", "r1", TOKENS)
        router.cache("b", PROMPT)
        router.end("r1")
        assert {router.probe(TOKENS, PROMPT).instance for _ in range(8)} == {"b"}
