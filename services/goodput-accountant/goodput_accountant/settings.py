"""What the accountant needs to know."""

from pathlib import Path

from pydantic import Field, SecretStr

from tokenfleet.settings import Settings

REPOSITORY_MIGRATIONS = Path(__file__).parents[3] / "infra" / "postgres" / "migrations"


class AccountantSettings(Settings):
    """`TOKENFLEET_POSTGRES_DSN` is required; the rest has defaults. Durations in wall seconds."""

    postgres_dsn: SecretStr
    postgres_wait_s: float = Field(default=60.0, ge=0, description="How long to wait for Postgres at start.")
    migrations_dir: Path = REPOSITORY_MIGRATIONS
    ledger_batch: int = Field(
        default=2_000, ge=1, le=10_000, description="Most events written per transaction."
    )
    goodput_window_s: float = Field(default=10.0, gt=0)
    report_max_rows: int = Field(default=100_000, ge=1, description="A report over more rows is refused.")
