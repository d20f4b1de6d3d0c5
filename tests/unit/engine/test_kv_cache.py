"""The prefix cache, against a plain one that handles every block by itself."""

from collections.abc import Hashable, Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tokenfleet.engine.kv_cache import Allocation, Cleared, KvCache, Removed, Stored


def chain(tokens: Sequence[int]) -> list[Hashable]:
    """Chained hashes at their plainest: a block's hash is the whole prefix up to it."""
    return [tuple(tokens[: end + 1]) for end in range(len(tokens))]


def filled(cache: KvCache, request_id: str, hashes: list[Hashable], extra: int = 0) -> Allocation:
    allocation = cache.allocate(request_id, hashes, len(hashes), len(hashes) + extra)
    assert allocation is not None
    cache.commit(allocation, hashes, len(hashes))
    return allocation


def test_computed_blocks_are_found_again_after_their_request_ended():
    cache = KvCache(10)
    cache.free(filled(cache, "a", chain([1, 2, 3])))
    assert cache.match(chain([1, 2, 3, 4])) == 3
    assert cache.match(chain([1, 2, 9])) == 2
    assert cache.match(chain([2, 3])) == 0
    assert cache.used_blocks == 0


def test_blocks_that_were_not_computed_are_not_found():
    cache = KvCache(10)
    hashes = chain([1, 2, 3])
    allocation = cache.allocate("a", hashes, 3, 3)
    assert allocation is not None
    assert cache.match(hashes) == 0
    cache.commit(allocation, hashes, 2)
    assert cache.match(hashes) == 2


def test_the_least_recently_used_prefix_is_evicted_from_its_end():
    cache = KvCache(6, record_changes=True)
    old, recent = chain([1, 2, 3]), chain([7, 8, 9])
    cache.free(filled(cache, "old", old))
    cache.free(filled(cache, "recent", recent))
    cache.take_changes()
    assert cache.allocate("new", [], 0, 2) is not None
    assert cache.take_changes() == [Removed((old[2], old[1]))]
    assert (cache.match(old), cache.match(recent)) == (1, 3)


def test_blocks_in_use_are_never_evicted_and_what_does_not_fit_changes_nothing():
    cache = KvCache(4)
    filled(cache, "a", chain([1, 2, 3]))
    assert cache.allocate("b", [], 0, 2) is None
    assert not cache.extend(2)
    assert cache.match(chain([1, 2, 3])) == 3
    assert cache.extend(1)
    assert cache.available_blocks == 0


def test_an_unreferenced_prefix_counts_once_whether_reused_or_evicted():
    cache = KvCache(4)
    cache.free(filled(cache, "a", chain([1, 2, 3])))
    assert cache.allocate("too large", chain([1, 2, 3]), 3, 5) is None
    assert cache.allocate("fits", chain([1, 2, 3]), 3, 4) is not None


def test_two_requests_that_computed_the_same_prefix_share_one_copy():
    cache = KvCache(10, record_changes=True)
    hashes = chain([1, 2])
    first, second = (cache.allocate(name, hashes, 2, 2) for name in "ab")
    assert first is not None
    assert second is not None
    cache.commit(first, hashes, 2)
    cache.commit(second, hashes, 2)
    assert cache.used_blocks == 2
    assert cache.take_changes() == [Stored("a", 0, None, tuple(hashes))]


def test_a_stored_run_names_the_block_it_follows():
    cache = KvCache(10, record_changes=True)
    cache.free(filled(cache, "a", chain([1, 2])))
    cache.take_changes()
    longer = chain([1, 2, 3, 4])
    filled(cache, "b", longer)
    assert cache.take_changes() == [Stored("b", 2, longer[1], (longer[2], longer[3]))]


def test_the_cache_is_cleared_only_while_nobody_uses_it():
    cache = KvCache(10, record_changes=True)
    allocation = filled(cache, "a", chain([1, 2]))
    assert not cache.clear()
    cache.free(allocation)
    cache.take_changes()
    assert cache.clear()
    assert cache.take_changes() == [Cleared()]
    assert cache.match(chain([1, 2])) == 0
    assert cache.cached_blocks == 0


class _PlainHolding:
    def __init__(self, path: list[Hashable], private: int) -> None:
        self.path = path
        self.private = private


class _PlainCache:
    """The same rules, block by block."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.references: dict[Hashable, int] = {}
        self.unreferenced: list[Hashable] = []
        self.private = 0
        self.removed: list[Hashable] = []
        self.stored: list[Hashable] = []

    def allocate(self, hashes: list[Hashable], total: int) -> _PlainHolding | None:
        matched = hashes[: self.match(hashes)]
        needed = total - len(matched)
        used = self.private + sum(1 for count in self.references.values() if count)
        if needed + sum(1 for block in matched if not self.references[block]) > self.capacity - used:
            return None
        for block in matched:
            self.hold(block)
        self.take(needed)
        return _PlainHolding(matched, needed)

    def match(self, hashes: list[Hashable]) -> int:
        return next((i for i, block in enumerate(hashes) if block not in self.references), len(hashes))

    def hold(self, block: Hashable) -> None:
        if self.references[block] == 0:
            self.unreferenced.remove(block)
        self.references[block] += 1

    def take(self, blocks: int) -> None:
        while blocks > self.capacity - self.private - len(self.references):
            evicted = self.unreferenced.pop(0)
            del self.references[evicted]
            self.removed.append(evicted)
        self.private += blocks

    def commit(self, holding: _PlainHolding, hashes: list[Hashable], computed: int) -> None:
        for block in hashes[len(holding.path) : computed]:
            if block not in self.references:
                self.references[block] = 0
                self.unreferenced.append(block)
                self.stored.append(block)
            self.hold(block)
            holding.path.append(block)
            holding.private -= 1
            self.private -= 1

    def free(self, holding: _PlainHolding) -> None:
        self.private -= holding.private
        for block in reversed(holding.path):
            self.references[block] -= 1
            if self.references[block] == 0:
                self.unreferenced.append(block)


class CacheAgainstPlainCache(RuleBasedStateMachine):
    """Whatever is done to both, they hold, match, store and evict the same blocks in the same order."""

    holdings = Bundle("holdings")

    def __init__(self) -> None:
        super().__init__()
        self.cache = KvCache(12, record_changes=True)
        self.plain = _PlainCache(12)
        self.stored: list[Hashable] = []
        self.removed: list[Hashable] = []
        self.hashes: dict[int, list[Hashable]] = {}
        self.allocations: dict[int, tuple[Allocation, _PlainHolding]] = {}

    @rule(
        target=holdings,
        tokens=st.lists(st.integers(0, 1), max_size=8),
        extra=st.integers(0, 2),
        computed=st.integers(0, 8),
    )
    def begin(self, tokens: list[int], extra: int, computed: int) -> int:
        hashes = chain(tokens)
        name = len(self.hashes)
        self.hashes[name] = hashes
        allocation = self.cache.allocate(str(name), hashes, len(hashes), len(hashes) + extra)
        plain = self.plain.allocate(hashes, len(hashes) + extra)
        assert (allocation is None) == (plain is None)
        if allocation is not None and plain is not None:
            self.allocations[name] = (allocation, plain)
            self.compute(name, computed)
        return name

    @rule(name=holdings, computed=st.integers(0, 8))
    def compute(self, name: int, computed: int) -> None:
        if name in self.allocations:
            allocation, plain = self.allocations[name]
            upto = min(computed, len(self.hashes[name]))
            self.cache.commit(allocation, self.hashes[name], upto)
            self.plain.commit(plain, self.hashes[name], upto)

    @rule(name=consumes(holdings))
    def end(self, name: int) -> None:
        if name in self.allocations:
            allocation, plain = self.allocations.pop(name)
            self.cache.free(allocation)
            self.plain.free(plain)

    @invariant()
    def same(self) -> None:
        for change in self.cache.take_changes():
            if isinstance(change, Stored):
                self.stored += change.hashes
            elif isinstance(change, Removed):
                self.removed += change.hashes
        assert self.stored == self.plain.stored
        assert self.removed == self.plain.removed
        assert self.cache.private_blocks == self.plain.private
        assert self.cache.cached_blocks == len(self.plain.references)
        assert self.cache.unreferenced_blocks == len(self.plain.unreferenced)
        assert self.cache.private_blocks + self.cache.cached_blocks <= self.cache.capacity_blocks
        for hashes in self.hashes.values():
            assert self.cache.match(hashes) == self.plain.match(hashes)


TestCacheAgainstPlainCache = CacheAgainstPlainCache.TestCase
TestCacheAgainstPlainCache.settings = settings(max_examples=150, stateful_step_count=30)
