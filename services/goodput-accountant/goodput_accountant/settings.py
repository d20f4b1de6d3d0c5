"""What the accountant needs to know."""

from pathlib import Path

from pydantic import Field, SecretStr, field_validator

from tokenfleet.settings import Settings

REPOSITORY_MIGRATIONS = Path(__file__).parents[3] / "infra" / "postgres" / "migrations"


KEEP_DAYS = 400
LEAST_KEEP_DAYS = 14
"""The stream keeps events for seven days: a row must be there for as long as its event may come again."""


class AccountantSettings(Settings):
    """`TOKENFLEET_POSTGRES_DSN` is required; the rest has defaults. Durations in wall seconds."""

    postgres_dsn: SecretStr
    postgres_wait_s: float = Field(default=60.0, ge=0, description="How long to wait for Postgres at start.")
    migrations_dir: Path = REPOSITORY_MIGRATIONS
    ledger_batch: int = Field(
        default=2_000, ge=1, le=10_000, description="Most events written per transaction."
    )
    lost_after_s: float = Field(
        default=900.0,
        gt=0,
        description="A request without an outcome so long after its deadline is closed as lost.",
    )
    goodput_window_s: float = Field(default=10.0, gt=0)
    report_max_rows: int = Field(
        default=100_000, ge=1, description="A report that reads more rows is refused."
    )
    ledger_keep_days: int = Field(
        default=KEEP_DAYS, ge=0, description="Rows are dropped so many days after their day; 0: never."
    )

    @field_validator("ledger_keep_days")
    @classmethod
    def _long_enough(cls, days: int) -> int:
        if 0 < days < LEAST_KEEP_DAYS:
            raise ValueError(f"must be 0 (for ever) or at least {LEAST_KEEP_DAYS}, not {days}")
        return days
