"""A stored block's name in the fleet: the hash that ingress computes of the same prompt.

Ingress knows a prompt's token ids and its adapter. vLLM's keys may cover more: `extra_keys` lists, for each
block, the adapter's name, images as (hash, offset), the cache salt (first block only) and digests of prompt
embeddings, all untagged. The adapter is part of our hash already; anything else cannot be known by ingress,
so such a block and all that follow it get no name.
"""

from typing import Any

from node_agent.policy.kv_events import BlockStored
from tokenfleet.blocks import BlockHasher, id_tokens


class BlockNamer:
    """Names blocks of one size."""

    def __init__(self, hasher: BlockHasher, block_size_tokens: int) -> None:
        self.block_size_tokens = block_size_tokens
        self._hasher = hasher
        self._event: BlockStored | None = None
        self._tokens = b""

    def name(self, event: BlockStored, position: int, parent: bytes | str) -> bytes | str:
        """A block's own hash, or why it has none.

        Args:
            position: of the block in the event.
            parent: its own hash, `b""` for none; a string says why it is not known.
        """
        if len(event.token_ids) != len(event.block_hashes) * self.block_size_tokens:
            # Also where blocks between were skipped: their tokens are there, and would shift the others'.
            return "no_tokens"
        if isinstance(parent, str):
            return parent
        if _has_extra_keys(event, position):
            return "extra_keys"
        width = self.block_size_tokens * 4
        chunk = self._packed(event)[position * width : (position + 1) * width]
        return self._hasher.child(parent, chunk, adapter_of(event))

    def _packed(self, event: BlockStored) -> bytes:
        if event is not self._event:
            self._event = event
            self._tokens = id_tokens(event.token_ids).astype("<u4", copy=False).tobytes()
        return self._tokens


def adapter_of(event: BlockStored) -> str:
    """The adapter's name; old engines give only a number, which matches no request."""
    return event.lora_name or ("" if event.lora_id is None else f"lora-{event.lora_id}")


def _has_extra_keys(event: BlockStored, position: int) -> bool:
    """Whether a block's key covers more than its tokens and its adapter."""
    if event.extra_keys is None:
        return False
    if position >= len(event.extra_keys):
        return True
    keys: list[Any] = list(event.extra_keys[position] or ())
    # Once only: a salt may be the same word as the adapter.
    for adapter in (event.lora_name, event.lora_id):
        if adapter is not None and adapter in keys:
            keys.remove(adapter)
            break
    return bool(keys)
