"""What a summary says of a pool is what the pool's own deciders predict."""

import numpy as np
import pytest
from fleets import PROFILE, record, view

from tokenfleet.load import LoadView, OutputLengths, outlook, predict
from tokenfleet.load.prefixes import KnownPrefixes, pack_prefixes, told_blocks
from tokenfleet.load.summary import (
    LENGTHS_TOKENS,
    MOST_INSTANCES,
    at_length,
    first_free,
    own_prefill_s,
    pack_load,
    pool_load,
    unpack_load,
)


def busy(*pending_tokens: int) -> tuple[LoadView, list]:
    load, instances = LoadView(), []
    for number, tokens in enumerate(pending_tokens):
        load.joined(record(f"i{number}"))
        instances.append(view(f"i{number}"))
        load.routed(f"d{number}", 1, f"i{number}", 900, 0, 0.0, tpot_objective_s=0.03)
        load.first_token(f"d{number}", 0.5)
        if tokens:
            load.routed(f"p{number}", 1, f"i{number}", tokens, 0, 0.5)
    return load, instances


def test_backlog_and_own_prefill_are_what_predict_says():
    load, instances = busy(0, 8_000, 30_000)
    said = pool_load(unpack_load(pack_load(load, OutputLengths(), instances, 1.0)))
    slots = load.slots(["i0", "i1", "i2"])
    for tokens, reused in ((500, 0.0), (5_000, 0.0), (20_000, 12_000.0)):
        predicted = predict(load.table, slots, tokens, reused, 0.0, 1.0)
        assert said.backlog_s == pytest.approx(predicted.backlog_s, rel=1e-4, abs=1e-6)
        own_s = own_prefill_s(said, tokens, np.full(3, tokens - reused))
        # An iteration that the prompt before leaves half empty is shared there, and counted twice here.
        assert own_s == pytest.approx(predicted.own_prefill_s, abs=float(predicted.step_s.max()) + 1e-6)


def test_misses_and_waits_for_kv_are_told_for_a_few_lengths_and_interpolated():
    load, instances = busy(0, 8_000)
    lengths = OutputLengths()
    said = pool_load(unpack_load(pack_load(load, lengths, instances, 1.0)))
    slots = load.slots(["i0", "i1"])
    for number, tokens in enumerate(LENGTHS_TOKENS):
        closer = outlook(
            load.table, predict(load.table, slots, tokens, 0.0, 0.0, 1.0), np.arange(2), lengths.quantiles
        )
        assert said.expected_misses[number] == pytest.approx(closer.expected_misses, rel=1e-4)
    by_length = np.array([[0.0], [1.0], [2.0], [3.0]])
    assert at_length(by_length, np.array([2_000.0])) == pytest.approx([0.5])
    assert at_length(by_length, np.array([10.0])) == [0.0] and at_length(by_length, np.array([1e6])) == [3.0]


def test_of_a_large_pool_those_are_told_of_that_are_free_first():
    load, instances = busy(*[20_000 if number % 2 else 0 for number in range(2 * MOST_INSTANCES)])
    told = first_free(load, instances, 1.0)
    assert len(told) == MOST_INSTANCES
    assert all(int(one.record.instance[1:]) % 2 == 0 for one in told)


@pytest.mark.parametrize("packed", [b"1234", np.full(14, -1.0, dtype="<f4").tobytes(), b"\xff" * 56])
def test_what_is_no_load_is_refused(packed: bytes):
    with pytest.raises(ValueError, match="load"):
        unpack_load(packed)


def test_an_idle_reference_engine_is_told_as_its_profile_has_it():
    load = LoadView()
    load.joined(record("i"))
    said = pool_load(unpack_load(pack_load(load, OutputLengths(), [view("i")], 1.0)))
    assert said.backlog_s == [0.0] and said.step_s == pytest.approx([PROFILE.base_s])
    assert said.max_prompt_tokens == [PROFILE.longest_prompt_tokens]


def test_a_prefix_is_known_by_the_last_of_its_blocks_that_is_told_of():
    cached = range(3_200, 3_200 + 320)
    prefixes, one_in = pack_prefixes([[block for block in cached if block % 32 == 0], []])
    known = KnownPrefixes(prefixes, one_in)
    same = told_blocks(list(cached) + list(range(9_000, 9_100)))
    assert known.matched(same) == [(1, 9 * 32 + 1 + 16)]
    assert known.matched(told_blocks(range(64_000, 64_320))) == []
    assert KnownPrefixes().matched(same) == []


def test_a_full_cache_is_told_of_more_coarsely_so_that_a_summary_stays_small():
    held = [[32 * number for number in range(20_000)] for _ in range(4)]
    prefixes, one_in = pack_prefixes(held)
    assert sum(map(len, prefixes)) <= 4 * 8_192 and one_in > 32
    known = KnownPrefixes(prefixes, one_in)
    (all_of_them,) = known.matched(told_blocks(range(32 * 100), one_in))
    assert all_of_them[0] == 0b1111


def test_whoever_holds_less_of_a_prompt_is_told_apart_by_where_its_chain_ends():
    turns = [range(32 * 100), range(32 * 100, 32 * 130)]
    whole = [block for turn in turns for block in turn if block % 32 == 0]
    known = KnownPrefixes(*pack_prefixes([whole[:100], whole, [7 * 32], whole[:100]]))
    first, second = known.matched(told_blocks([block for turn in turns for block in turn]))
    assert first == (0b1011, 99 * 32 + 1 + 16) and second == (0b0010, 129 * 32 + 1 + 16)
