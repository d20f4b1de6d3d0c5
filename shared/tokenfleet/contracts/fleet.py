"""The registry and the telemetry of engine instances."""

import msgspec


class EngineProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Timing and capacity of one engine on one kind of hardware.

    One iteration with `d` decoding requests holding `c` context tokens in total, and prefill chunks of `k`
    tokens at context `x`, takes `t0 + td*d + tc*c + sum(tp*k + ta*k*(x + k/2))` seconds.
    """

    name: str
    base_s: float
    """t0: fixed cost of an iteration."""
    decode_s_per_request: float
    """td"""
    decode_s_per_context_token: float
    """tc"""
    prefill_s_per_token: float
    """tp"""
    attention_s_per_token_pair: float
    """ta"""
    kv_capacity_tokens: int
    iteration_budget_tokens: int
    max_running_requests: int
    max_context_tokens: int = 131_072


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
    schema: int = 1

    @property
    def pool(self) -> str:
        return f"{self.model}@{self.version}"


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
    Apply in order: cleared, then removed, then stored.
    """

    instance: str
    generation: int
    sequence: int
    stored: bytes = b""
    removed: bytes = b""
    cleared: bool = False
    schema: int = 1


class KvSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All cached blocks of an instance as of `sequence`: the answer to a snapshot request."""

    instance: str
    generation: int
    sequence: int
    blocks: bytes
    schema: int = 1
