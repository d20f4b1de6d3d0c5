"""An engine's ready file: the JSON that an engine (or its operator) puts into the agent's folder."""

import re
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

import msgspec

from tokenfleet.contracts.fleet import EngineProfile
from tokenfleet.engine.profile import LLAMA70B_TP4_H100, PROFILES
from tokenfleet.errors import ConfigurationError

Positive = Annotated[int, msgspec.Meta(gt=0)]

VLLM_BLOCK_SIZE_TOKENS = 16
"""vLLM's default on GPUs."""

OFFLOADED_SHARE = 16
"""Offloaded blocks are remembered for this many times the accelerator's capacity, where the engine file says nothing."""

_ENDPOINT = re.compile(r"tcp://[^\s*/]+:\d{1,5}|ipc://\S+")


class KvEndpoint(NamedTuple):
    """Where one data-parallel rank publishes its KV events, and where it replays them (None: nowhere)."""

    events: str
    replay: str | None


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What must be known of an engine to report it; only `url` and `model` have no default.

    The engine may run anywhere the agent can reach, `pid` only tells one process from its successor.
    """

    url: Annotated[str, msgspec.Meta(min_length=1)]
    model: Annotated[str, msgspec.Meta(min_length=1)]
    version: Annotated[str, msgspec.Meta(min_length=1)] = "1"
    profile: str | EngineProfile = LLAMA70B_TP4_H100.name
    block_size_tokens: Positive = VLLM_BLOCK_SIZE_TOKENS
    kv_capacity_tokens: Positive | None = None
    """Overrides the profile's."""
    offloaded_kv_capacity_tokens: Positive | None = None
    """Of host memory and disk together: beyond it the oldest offloaded blocks are forgotten."""
    tokens_per_chunk: Positive = 1
    data_parallel_size: Positive = 1
    kv_events_endpoint: str | tuple[str, ...] | None = None
    """ZMQ address to connect to for KV events; None: the engine has none.

    Each data-parallel rank has an address of its own. One is enough where they are on one host: vLLM and SGLang
    add the rank to the port, of the replay endpoint too. Otherwise list them by rank.
    """
    kv_replay_endpoint: str | tuple[str, ...] | None = None
    adapters: tuple[str, ...] = ()
    pid: int | None = None

    def resolved_profile(self) -> EngineProfile:
        """The profile by name or as given, with this engine's own KV capacity."""
        profile = PROFILES[self.profile] if isinstance(self.profile, str) else self.profile
        if self.kv_capacity_tokens is None:
            return profile
        return msgspec.structs.replace(profile, kv_capacity_tokens=self.kv_capacity_tokens)

    @property
    def kv_endpoints(self) -> tuple[KvEndpoint, ...]:
        """Where the ranks publish, in their order; empty: the engine has no KV events."""
        events = _by_rank(self.kv_events_endpoint, self.data_parallel_size)
        replays = _by_rank(self.kv_replay_endpoint, self.data_parallel_size) or (None,) * len(events)
        return tuple(KvEndpoint(*pair) for pair in zip(events, replays, strict=True)) if events else ()

    @property
    def offloaded_limit_blocks(self) -> int:
        """How many offloaded blocks to remember."""
        tokens = self.offloaded_kv_capacity_tokens
        return (
            tokens or OFFLOADED_SHARE * self.resolved_profile().kv_capacity_tokens
        ) // self.block_size_tokens


def parse_ready_file(data: bytes) -> EngineSpec:
    """Decode and check a ready file.

    Raises:
        ConfigurationError: it is not JSON, or a field is missing or wrong; the message says which.
    """
    try:
        spec = msgspec.json.decode(data, type=EngineSpec)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"not a valid engine file: {error}") from error
    if isinstance(spec.profile, str) and spec.profile not in PROFILES:
        known = ", ".join(sorted(PROFILES))
        raise ConfigurationError(f"unknown profile {spec.profile!r}: use one of {known}, or give its fields")
    _check_endpoints(spec)
    return msgspec.structs.replace(spec, url=_base_url(spec.url))


def _check_endpoints(spec: EngineSpec) -> None:
    for name in ("kv_events_endpoint", "kv_replay_endpoint"):
        given: str | tuple[str, ...] | None = getattr(spec, name)
        for endpoint in (given,) if isinstance(given, str) else given or ():
            if not _ENDPOINT.fullmatch(endpoint):
                raise ConfigurationError(
                    f"{name} {endpoint!r} is no address to connect to: write tcp://HOST:PORT, with the engine's host"
                )
        if isinstance(given, tuple) and len(given) != spec.data_parallel_size:
            raise ConfigurationError(
                f"{name} lists {len(given)} addresses, but data_parallel_size is {spec.data_parallel_size}: "
                "list one for each rank"
            )
        if isinstance(given, str) and spec.data_parallel_size > 1 and not given.startswith("tcp://"):
            raise ConfigurationError(
                f"{name} {given!r} has no port to add the rank to: list one for each rank"
            )
    addresses = [address for endpoint in spec.kv_endpoints for address in endpoint if address]
    if len(set(addresses)) < len(addresses):
        raise ConfigurationError(
            f"kv_events_endpoint and kv_replay_endpoint meet in {max(addresses, key=addresses.count)}: vLLM adds "
            "the rank to both ports, so keep them at least data_parallel_size apart"
        )


def _by_rank(given: str | tuple[str, ...] | None, ranks: int) -> tuple[str, ...]:
    if not isinstance(given, str):
        return given or ()
    if ranks == 1:
        return (given,)
    host, _, port = given.rpartition(":")
    return tuple(f"{host}:{int(port) + rank}" for rank in range(ranks))


def _base_url(url: str) -> str:
    problem = ConfigurationError(f"url {url!r} is wrong: write http://HOST:PORT or https://HOST:PORT")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise problem from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise problem
    return url.rstrip("/")
