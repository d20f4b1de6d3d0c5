"""The registry and the telemetry of engine instances."""

from typing import Annotated, Literal

import msgspec

Cost = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(gt=0)]


class EngineProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Timing and capacity of one engine on one kind of hardware.

    One iteration with `d` decoding requests holding `c` context tokens in total, and prefill chunks of `k`
    tokens at context `x`, takes `t0 + td*d + tc*c + sum(tp*k + ta*k*(x + k/2))` seconds.
    """

    name: str
    base_s: Cost
    """t0: fixed cost of an iteration."""
    decode_s_per_request: Cost
    """td"""
    decode_s_per_context_token: Cost
    """tc"""
    prefill_s_per_token: Cost
    """tp"""
    attention_s_per_token_pair: Cost
    """ta"""
    kv_capacity_tokens: Count
    iteration_budget_tokens: Count
    max_running_requests: Count
    max_context_tokens: Count = 131_072
    gpus: Count = 1
    """Accelerators that one engine occupies."""
    restore_s_per_token: Cost = 0.0
    """To bring one token's KV back from host memory or disk; 0 where nothing is offloaded."""

    @property
    def longest_prompt_tokens(self) -> int:
        """What it can compute, with room for one token of an answer."""
        return min(self.max_context_tokens, self.kv_capacity_tokens) - 1


class InstanceRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One engine endpoint, as its node agent registered it (KV bucket `instances`, JSON)."""

    instance: str
    node: str
    site: str
    model: str
    version: str
    url: str
    generation: int
    """Unix ns at which the agent first saw this engine process; a restart is a new generation."""
    profile: EngineProfile
    block_size_tokens: int
    kv_events: bool = False
    draining: bool = False
    tokens_per_chunk: int = 1
    """How many tokens one streamed chunk usually carries (vLLM `--stream-interval`)."""
    adapters: tuple[str, ...] = ()
    region: str | None = None
    """Where its site lies, as far as data residency goes; None: not known."""
    schema: int = 1

    @property
    def pool(self) -> str:
        return f"{self.model}@{self.version}"


class SiteRegistry(msgspec.Struct, frozen=True, kw_only=True):
    """A site's instances, told to other sites' ingresses once a second (MessagePack): where their requests are sent."""

    site: str
    time_ns: int
    instances: tuple[InstanceRecord, ...]
    ready: frozenset[str]
    """Of these, the names of those that may be sent a request."""
    schema: int = 1


class InstanceState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reading of one engine (MessagePack). A missing metric is None: unknown, not zero."""

    instance: str
    generation: int
    pool: str
    site: str
    time_ns: int
    reachable: bool
    waiting: int | None = None
    running: int | None = None
    kv_usage: float | None = None
    """Share of the KV blocks in use by running requests, 0 to 1."""
    prefix_queries_tokens: int | None = None
    prefix_hits_tokens: int | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    preemptions: int | None = None
    schema: int = 1


class KvDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Changes to one instance's cached blocks (MessagePack), 8-byte keyed hashes packed as in `blocks`.

    `sequence` rises by one per delta of a generation; a reader that misses one asks for a snapshot.
    Apply in order: cleared, then removed, then stored. A block may lie in both tiers at once.
    """

    instance: str
    generation: int
    sequence: int
    stored: bytes = b""
    """Now in the accelerator's memory."""
    removed: bytes = b""
    stored_offloaded: bytes = b""
    """Now in host memory or on disk, from where it is restored faster than computed."""
    removed_offloaded: bytes = b""
    cleared: bool = False
    """Both tiers were emptied."""
    complete: bool = True
    """False while the node agent knows that it missed some of what the engine stored or removed."""
    schema: int = 1


class KvSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All cached blocks of an instance as of `sequence`: the answer to a snapshot request."""

    instance: str
    generation: int
    sequence: int
    blocks: bytes
    offloaded: bytes = b""
    complete: bool = True
    schema: int = 1


IndexQuality = Literal["exact", "degraded", "approximate"]
"""How far to trust what is known of an instance's cache: fed by an unbroken stream of events; with a hole in
it, so some blocks are missing or gone; or only a model of what was routed there, for want of events."""
