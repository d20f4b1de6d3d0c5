"""vLLM's KV events are read in every form that its versions have used."""

from typing import Any

import msgspec
import pytest

from node_agent.policy.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    decode_batch,
)
from tokenfleet.errors import ContractError

TS = 1_757_500_000.25


def payload(batch: Any) -> bytes:
    return msgspec.msgpack.encode(batch)


STORED = BlockStored(
    block_hashes=[11, 12],
    parent_block_hash=10,
    token_ids=[1, 2, 3, 4],
    block_size=2,
    lora_id=None,
    medium="GPU",
    lora_name="poet",
)
STORED_FIELDS = {
    "type": "BlockStored",
    "block_hashes": [11, 12],
    "parent_block_hash": 10,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": "poet",
}
REMOVED_FIELDS = {"type": "BlockRemoved", "block_hashes": [11], "medium": "CPU", "locality": "LOCAL"}
STORED_ARRAY = ["BlockStored", [11, 12], 10, [1, 2, 3, 4], 2, None, "GPU", "poet"]
EXPECTED = (STORED, BlockRemoved(block_hashes=[11], medium="CPU"), AllBlocksCleared())


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(
            [TS, [STORED_ARRAY, ["BlockRemoved", [11], "CPU"], ["AllBlocksCleared"]], 1],
            id="arrays in an array",
        ),
        pytest.param(
            [TS, [STORED_FIELDS, REMOVED_FIELDS, {"type": "AllBlocksCleared"}], 1], id="maps in an array"
        ),
        pytest.param(
            {
                "ts": TS,
                "events": [STORED_FIELDS, REMOVED_FIELDS, {"type": "AllBlocksCleared"}],
                "data_parallel_rank": 1,
            },
            id="maps in a map",
        ),
        pytest.param(
            [
                TS,
                [
                    [*STORED_ARRAY, None, None, "full_attention", None, "LOCAL", "field of tomorrow"],
                    ["BlockRemoved", [11], "CPU", None, "LOCAL", "another"],
                    ["AllBlocksCleared", "of tomorrow"],
                ],
                1,
                "of tomorrow",
            ],
            id="trailing fields that are not known here",
        ),
    ],
)
def test_every_form_gives_the_same_events(batch: Any) -> None:
    decoded = decode_batch(payload(batch))
    assert decoded.rank == 1
    stored, *others = decoded.events
    assert isinstance(stored, BlockStored)
    assert msgspec.structs.replace(stored, kv_cache_spec_kind=None) == STORED
    assert tuple(others) == EXPECTED[1:]


def test_the_oldest_events_have_fewer_fields() -> None:
    batch = [TS, [["BlockStored", [7], None, [1, 2], 2, None], ["BlockRemoved", [7]]]]
    assert decode_batch(payload(batch)) == EventBatch(
        events=(
            BlockStored(block_hashes=[7], token_ids=[1, 2], block_size=2),
            BlockRemoved(block_hashes=[7]),
        )
    )


def test_hashes_may_be_bytes() -> None:
    event = {**STORED_FIELDS, "block_hashes": [b"\x01" * 32], "parent_block_hash": b"\x02" * 32}
    (decoded,) = decode_batch(payload([TS, [event]])).events
    assert isinstance(decoded, BlockStored)
    assert decoded.block_hashes == [b"\x01" * 32]
    assert decoded.parent_block_hash == b"\x02" * 32


def test_an_event_type_of_tomorrow_is_passed_over() -> None:
    batch = [TS, [["BlockMoved", [1]], {"type": "BlockPinned"}, ["AllBlocksCleared"]]]
    assert decode_batch(payload(batch)).events == (AllBlocksCleared(),)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        payload(3),
        payload([TS]),
        payload({"ts": TS}),
        payload([TS, [{"block_hashes": []}]]),
        payload([TS, [["BlockStored", "no list"]]]),
        payload([TS, [["BlockStored", [1], None, [-5], 1, None]]]),
        payload([TS, [["BlockStored", [1], None, [2**32], 1, None]]]),
        payload([TS, [[]]]),
    ],
)
def test_what_is_no_batch_of_events_is_a_contract_error(data: bytes) -> None:
    with pytest.raises(ContractError, match="KV events"):
        decode_batch(data)
