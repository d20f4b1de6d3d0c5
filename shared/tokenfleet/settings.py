"""The one settings scheme: environment variables `TOKENFLEET_*`, validated once at start.

Secrets come from the environment or from a file named by the variable with `_FILE` appended, and are never
printed.
"""

import os
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from tokenfleet.errors import ConfigurationError

PREFIX = "TOKENFLEET_"
DEVELOPMENT_BLOCK_SECRET = "tokenfleet-development"  # noqa: S105 - public, and warned of


class Settings(BaseSettings):
    """What every process of the fleet needs to know."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True)

    site: str = "local"
    sites: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Every site of the fleet, separated by commas; the first is its home."
    )
    region: str | None = Field(
        default=None, description="Where the site lies, as far as data residency goes; not set: not known."
    )
    nats_url: str = "nats://127.0.0.1:4222"
    nats_user: str | None = None
    nats_password: SecretStr | None = None
    state_dir: Path = Path(".tokenfleet")
    time_scale: float = Field(default=1.0, gt=0)
    admin_host: str = "127.0.0.1"
    admin_port: int = Field(default=0, ge=0, le=65535, description="/health and /metrics; 0: any free port.")
    log_level: str = "info"
    block_secret: SecretStr = SecretStr(DEVELOPMENT_BLOCK_SECRET)
    replica: str = Field(default_factory=lambda: f"{os.uname().nodename}-{os.getpid()}")

    @field_validator("sites", mode="before")
    @classmethod
    def _split_sites(cls, value: Any) -> Any:
        return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else value

    @field_validator("region", mode="before")
    @classmethod
    def _no_region_is_none(cls, value: Any) -> Any:
        return value or None

    @model_validator(mode="after")
    def _is_a_site_of_the_fleet(self) -> Self:
        if self.sites and self.site not in self.sites:
            raise ValueError(f"TOKENFLEET_SITE ({self.site}) is not one of TOKENFLEET_SITES")
        return self

    @property
    def fleet_sites(self) -> tuple[str, ...]:
        """Every site of the fleet, its home first: the one with the ledger, and where tenants and policy are kept."""
        return self.sites or (self.site,)

    @model_validator(mode="before")
    @classmethod
    def _secrets_from_files(cls, values: dict[str, Any]) -> dict[str, Any]:
        for name in cls.model_fields:
            path = os.environ.get(f"{PREFIX}{name.upper()}_FILE")
            if path and name not in values:
                values[name] = Path(path).read_text().strip()
        return values


SettingsT = TypeVar("SettingsT", bound=Settings)


def load(settings_type: type[SettingsT]) -> SettingsT:
    """Settings from the environment.

    Raises:
        ConfigurationError: a variable is missing or wrong; the message names each one.
    """
    try:
        return settings_type()
    except (ValidationError, OSError) as error:
        if isinstance(error, OSError):
            raise ConfigurationError(f"A secret file cannot be read: {error}") from error
        problems = "; ".join(
            f"{PREFIX}{'_'.join(str(part) for part in item['loc']).upper()}: {item['msg']}"
            for item in error.errors()
        )
        raise ConfigurationError(f"Wrong settings: {problems}") from error
