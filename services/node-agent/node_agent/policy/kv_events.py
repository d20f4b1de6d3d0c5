"""vLLM's KV-cache events, decoded from MessagePack.

The wire format has changed with vLLM's versions: batches and events come as arrays (events tagged by their
first element) or as maps (tagged by `type`), block hashes as integers or as bytes. SGLang sends the same. All
are read; fields and event types not known here are passed over.
"""

from typing import Annotated, Any, TypeAlias, cast

import msgspec

from tokenfleet.errors import ContractError

EngineHash: TypeAlias = int | bytes
"""A block's hash as the engine computes it: opaque, and different from engine to engine."""

TokenId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class BlockStored(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive blocks of one sequence entered a cache tier."""

    block_hashes: list[EngineHash]
    parent_block_hash: EngineHash | None = None
    token_ids: list[TokenId] = []
    block_size: int = 0
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    """For each block what besides the tokens its hash covers: adapter, images, cache salt, embeddings."""
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks left a cache tier."""

    block_hashes: list[EngineHash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, kw_only=True):
    """The whole cache was emptied."""


Event: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared

_TYPES: dict[str, type[Event]] = {
    kind.__name__: kind for kind in (BlockStored, BlockRemoved, AllBlocksCleared)
}


class EventBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The events of one engine step, in order."""

    events: tuple[Event, ...]
    rank: int = 0
    """The engine's data-parallel rank."""


def decode_batch(payload: bytes) -> EventBatch:
    """Decode one message's payload.

    Raises:
        ContractError: it is not a batch of KV events.
    """
    try:
        raw: Any = msgspec.msgpack.decode(payload)
        events, rank = _envelope(raw)
        decoded = tuple(event for event in map(_event, events) if event is not None)
        return EventBatch(events=decoded, rank=msgspec.convert(rank, int | None) or 0)
    except (msgspec.DecodeError, LookupError, TypeError, ValueError) as error:
        raise ContractError(f"not a batch of KV events: {error}") from error


def _envelope(raw: Any) -> tuple[list[Any], Any]:
    if isinstance(raw, dict):
        fields = cast("dict[str, Any]", raw)
        return list(fields["events"]), fields.get("data_parallel_rank")
    _, events, *rest = raw
    return list(events), rest[0] if rest else None


def _event(raw: Any) -> Event | None:
    if isinstance(raw, dict):
        fields = cast("dict[str, Any]", raw)
        kind = _TYPES.get(fields["type"])
    else:
        tag, *values = raw
        kind = _TYPES.get(tag)
        fields = dict(zip(kind.__struct_fields__, values, strict=False)) if kind else {}
    return msgspec.convert(fields, kind) if kind else None
