"""Events as engines encode them, from the struct definitions that vLLM and SGLang document, end in the same index.

Older vLLM sends arrays in arrays, newer maps in arrays (0.32) or in maps; SGLang sends arrays with its own trailing
fields. Hashes are 64-bit integers or the 32 bytes of a SHA-256.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from node_agent.policy.kv_events import decode_batch
from node_agent.policy.kv_index import KvIndex
from tokenfleet.blocks import HASH_BYTES, BlockHasher, id_tokens

BLOCK = 16
HASHER = BlockHasher(b"secret")
PROMPT = list(range(1000, 1000 + 3 * BLOCK))


def define(name: str, fields: list[tuple[str, Any] | tuple[str, Any, Any]], **options: Any) -> Any:
    return msgspec.defstruct(
        name, fields, omit_defaults=True, tag=name if options.pop("event", True) else None, **options
    )


OLD_STORED = define(
    "BlockStored",
    [
        ("block_hashes", list[int]),
        ("parent_block_hash", int | None),
        ("token_ids", list[int]),
        ("block_size", int),
        ("lora_id", int | None),
    ],
    array_like=True,
)
OLD_REMOVED = define("BlockRemoved", [("block_hashes", list[int])], array_like=True)
OLD_CLEARED = define("AllBlocksCleared", [], array_like=True)

NEW_STORED = define(
    "BlockStored",
    [
        ("block_hashes", list[bytes | int]),
        ("parent_block_hash", bytes | int | None),
        ("token_ids", list[int]),
        ("block_size", int),
        ("lora_id", int | None),
        ("medium", str | None),
        ("lora_name", str | None),
        ("extra_keys", list[tuple[Any, ...] | None] | None, None),
        ("group_idx", int | None, None),
        ("kv_cache_spec_kind", str | None, None),
        ("kv_cache_spec_sliding_window", int | None, None),
        ("locality", str | None, None),
        ("ownership", str | None, None),
        ("session_id", str | None, None),
    ],
)
NEW_REMOVED = define(
    "BlockRemoved",
    [
        ("block_hashes", list[bytes | int]),
        ("medium", str | None),
        ("group_idx", int | None, None),
        ("locality", str | None, None),
        ("ownership", str | None, None),
    ],
)
NEW_CLEARED = define("AllBlocksCleared", [])

ENVELOPE = [("ts", float), ("events", list[Any]), ("data_parallel_rank", int | None, None)]
BATCH_ARRAY = define("KVEventBatch", ENVELOPE, event=False, array_like=True)
BATCH_MAP = define("KVEventBatch", ENVELOPE, event=False)

SGLANG_TAIL = [None] * 6
"""extra_keys, group_idx, kv_cache_spec_kind, kv_cache_spec_sliding_window, locality, ownership."""


def engine_hash(number: int, as_bytes: bool) -> int | bytes:
    return number.to_bytes(32, "big") if as_bytes else 2**63 + number


def new_events(as_bytes: bool) -> list[Any]:
    h = [engine_hash(number, as_bytes) for number in range(3)]
    common = {"block_size": BLOCK, "lora_id": None, "lora_name": None, "group_idx": 0}
    kind = {"kv_cache_spec_kind": "full_attention"}
    return [
        NEW_STORED(
            block_hashes=h[:2], parent_block_hash=None, token_ids=PROMPT[:32], medium="GPU", **common, **kind
        ),
        NEW_STORED(
            block_hashes=h[2:],
            parent_block_hash=h[1],
            token_ids=PROMPT[32:],
            medium="GPU",
            **common,
            **kind,
            session_id="s",
        ),
        NEW_STORED(
            block_hashes=h[:2],
            parent_block_hash=None,
            token_ids=[],
            medium="CPU",
            **{**common, "block_size": 0},
            locality="LOCAL",
        ),
        NEW_REMOVED(block_hashes=[h[2]], medium="GPU", group_idx=0),
        NEW_REMOVED(block_hashes=[h[1]], medium="CPU", group_idx=0, locality="LOCAL"),
    ]


OLD_EVENTS = [
    OLD_STORED([10, 11], None, PROMPT[:32], BLOCK, None),
    OLD_STORED([12], 11, PROMPT[32:], BLOCK, None),
    OLD_REMOVED([12]),
]
SGLANG_EVENTS = [
    ["BlockStored", [-7], None, PROMPT[:16], BLOCK, None, "GPU", None, *SGLANG_TAIL],
    ["BlockStored", [-8], -7, PROMPT[16:32], BLOCK, None, "GPU", None, *SGLANG_TAIL],
    ["BlockStored", [-9], -8, PROMPT[32:], BLOCK, None, "GPU", None, *SGLANG_TAIL],
    ["BlockStored", [-7], None, PROMPT[:16], BLOCK, None, "CPU_PINNED", None, *SGLANG_TAIL],
    [
        "BlockStored",
        [-5],
        None,
        PROMPT[16:32],
        BLOCK,
        None,
        "GPU",
        None,
        [["dynamo-cache-salt:t"]],
        *SGLANG_TAIL[1:],
    ],
    ["BlockRemoved", [-9], "GPU", *SGLANG_TAIL[1:]],
]


def index_of(*payloads: bytes) -> KvIndex:
    index = KvIndex("engine", 1, HASHER, BLOCK)
    index.whole(0)
    for payload in payloads:
        index.apply(decode_batch(payload))
    return index


def numbers(packed: bytes) -> list[int]:
    own = HASHER.chain(id_tokens(PROMPT), BLOCK)
    return sorted(
        own.index(packed[at : at + HASH_BYTES]) // HASH_BYTES for at in range(0, len(packed), HASH_BYTES)
    )


@pytest.mark.parametrize(
    ("payload", "offloaded"),
    [
        pytest.param(BATCH_ARRAY(1.5, OLD_EVENTS), [], id="older vllm: arrays, no rank, no medium"),
        pytest.param(BATCH_ARRAY(1.5, OLD_EVENTS, 0), [], id="older vllm: arrays and a rank"),
        pytest.param(
            BATCH_ARRAY(1.5, new_events(False), 0), [0], id="newer vllm: maps in an array, integers"
        ),
        pytest.param(BATCH_ARRAY(1.5, new_events(True), 0), [0], id="vllm 0.32: maps in an array, bytes"),
        pytest.param(BATCH_MAP(1.5, new_events(True), 0), [0], id="maps in a map"),
        pytest.param([1.5, SGLANG_EVENTS, 0], [0], id="sglang: arrays, signed hashes, its own media"),
    ],
)
def test_every_encoding_gives_the_same_blocks(payload: Any, offloaded: list[int]) -> None:
    index = index_of(msgspec.msgpack.encode(payload))
    snapshot = index.snapshot()
    assert numbers(snapshot.blocks) == [0, 1]
    assert numbers(snapshot.offloaded) == offloaded
    assert index.complete


@pytest.mark.parametrize("cleared", [OLD_CLEARED(), NEW_CLEARED(), ["AllBlocksCleared", None]])
def test_every_clearing_clears(cleared: Any) -> None:
    index = index_of(
        msgspec.msgpack.encode(BATCH_ARRAY(1.5, new_events(True), 0)),
        msgspec.msgpack.encode(BATCH_ARRAY(2.5, [cleared], 0)),
    )
    assert (len(index), index.offloaded) == (0, 0)


def test_adapters_are_named_and_salted_or_pictured_blocks_left_out_as_vllm_keys_them() -> None:
    """The untagged keys that vLLM publishes: adapter, (image, offset), salt on the first block only."""
    common = {"parent_block_hash": None, "block_size": BLOCK, "medium": "GPU", "token_ids": PROMPT}

    def event(first: int, lora: str | None, keys: Sequence[tuple[Any, ...] | None] | None) -> Any:
        hashes = [engine_hash(first + at, True) for at in range(3)]
        return NEW_STORED(
            **common, block_hashes=hashes, lora_id=1 if lora else None, lora_name=lora, extra_keys=keys
        )

    def blocks(*parts: Any) -> bytes:
        return index_of(msgspec.msgpack.encode(BATCH_ARRAY(1.5, list(parts), 0))).snapshot().blocks

    assert numbers(blocks(event(0, None, None))) == [0, 1, 2]
    assert blocks(event(10, "poet", [("poet",)] * 3)) == HASHER.chain(id_tokens(PROMPT), BLOCK, "poet")
    assert blocks(event(20, None, [("salt",), None, None])) == b""
    assert blocks(event(30, "poet", [("poet", "poet"), ("poet",), ("poet",)])) == b""
    assert numbers(blocks(event(40, None, [None, ("image-hash", 5), None]))) == [0]
