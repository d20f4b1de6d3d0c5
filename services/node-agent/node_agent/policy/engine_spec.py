"""An engine's ready file: the JSON that an engine (or its operator) puts into the agent's folder."""

import re
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from tokenfleet.contracts.fleet import EngineProfile
from tokenfleet.engine.profile import LLAMA70B_TP4_H100, PROFILES
from tokenfleet.errors import ConfigurationError

Positive = Annotated[int, msgspec.Meta(gt=0)]

VLLM_BLOCK_SIZE_TOKENS = 16
"""vLLM's default on GPUs."""

_ENDPOINT = re.compile(r"tcp://[^\s*/]+:\d{1,5}|ipc://\S+")


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
    tokens_per_chunk: Positive = 1
    kv_events_endpoint: str | None = None
    """ZMQ address to connect to for KV events; None: the engine has none."""
    kv_replay_endpoint: str | None = None
    adapters: tuple[str, ...] = ()
    pid: int | None = None

    def resolved_profile(self) -> EngineProfile:
        """The profile by name or as given, with this engine's own KV capacity."""
        profile = PROFILES[self.profile] if isinstance(self.profile, str) else self.profile
        if self.kv_capacity_tokens is None:
            return profile
        return msgspec.structs.replace(profile, kv_capacity_tokens=self.kv_capacity_tokens)


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
    for name in ("kv_events_endpoint", "kv_replay_endpoint"):
        endpoint: str | None = getattr(spec, name)
        if endpoint is not None and not _ENDPOINT.fullmatch(endpoint):
            raise ConfigurationError(
                f"{name} {endpoint!r} is no address to connect to: write tcp://HOST:PORT, with the engine's host"
            )
    return msgspec.structs.replace(spec, url=_base_url(spec.url))


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
