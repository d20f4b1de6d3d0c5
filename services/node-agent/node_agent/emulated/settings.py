"""Settings of one emulated engine."""

from pathlib import Path

import msgspec
from pydantic import Field, field_validator

from tokenfleet.contracts.fleet import EngineProfile
from tokenfleet.engine.profile import LLAMA70B_TP4_H100, PROFILES
from tokenfleet.settings import Settings

ANY_FREE = 0
OFF = -1


class EngineSettings(Settings):
    """`TOKENFLEET_ENGINE_*`."""

    engine_host: str = "127.0.0.1"
    engine_port: int = Field(default=ANY_FREE, ge=0, le=65535)
    engine_advertised_host: str | None = Field(
        default=None, description="The host by which others reach this engine; engine_host unless given."
    )
    engine_model: str = "llama-70b"
    engine_version: str = "1"
    engine_profile: str = LLAMA70B_TP4_H100.name
    engine_block_size: int = Field(default=64, ge=1, le=4096)
    engine_kv_scale: float = Field(default=1.0, gt=0, description="Multiplies the profile's KV capacity.")
    engine_stream_interval: int = Field(default=8, ge=1, description="Tokens per streamed chunk.")
    engine_kv_events_port: int = Field(default=ANY_FREE, ge=OFF, le=65535, description="-1: no KV events.")
    engine_replay_port: int = Field(default=ANY_FREE, ge=0, le=65535)
    engine_ready_file: Path | None = None

    @field_validator("engine_profile")
    @classmethod
    def _known_profile(cls, name: str) -> str:
        if name not in PROFILES:
            raise ValueError(f"no such profile {name!r}; there are: {', '.join(sorted(PROFILES))}")
        return name

    @property
    def profile(self) -> EngineProfile:
        """The profile by name, with its KV capacity scaled."""
        profile = PROFILES[self.engine_profile]
        capacity_tokens = round(profile.kv_capacity_tokens * self.engine_kv_scale)
        return msgspec.structs.replace(profile, kv_capacity_tokens=capacity_tokens)
