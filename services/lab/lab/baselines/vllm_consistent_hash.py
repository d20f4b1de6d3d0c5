"""vLLM router: consistent hashing of sessions."""

from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b

from lab.baselines.common import Router
from lab.sim.api import Arrival
from tokenfleet.contracts.fleet import InstanceRecord

VIRTUAL_NODES = 160
SESSION_TOKENS = 1_024


class VllmConsistentHash(Router):
    """The instance next on a hash ring after the session's hash.

    Definition: vLLM router 0.1.17 `consistent_hash` (vllm-project/router, `src/policies/consistent_hash.rs`):
    160 virtual nodes for each worker, named `url:i`; a key is the session header, else the user, else the whole
    body. If the instance cannot be used, the first one that can.

    Holes: traces carry no session header. What stands for one is the prompt up to 1,024 tokens (the hash of the block
    that ends there, or of the last full block of a shorter prompt), since every turn of a conversation begins with it;
    with shorter prompts than a block, the request's own id. BLAKE2b instead of its Murmur-based hash.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._ring: list[tuple[int, str]] = []
        """Built when it is first needed after instances changed."""

    def choose(self, arrival: Arrival, usable: Sequence[str], now_s: float) -> str:
        ring = self._ring = self._ring or self._build()
        at = bisect_left(ring, (_hash(_session(arrival)), ""))
        instance = ring[at % len(ring)][1]
        return instance if instance in usable else usable[0]

    def appeared(self, record: InstanceRecord) -> None:
        self._ring = []

    def vanished(self, record: InstanceRecord) -> None:
        self._ring = []

    def _build(self) -> list[tuple[int, str]]:
        return sorted((_hash(f"{name}:{i}"), name) for name in self.loads for i in range(VIRTUAL_NODES))


def _session(arrival: Arrival) -> str:
    blocks = arrival.blocks
    if not blocks:
        return arrival.request_id
    last = max(1, SESSION_TOKENS // arrival.spec.block_size_tokens) - 1
    return str(blocks[min(last, len(blocks) - 1)])


def _hash(key: str) -> int:
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")
