"""What the batch API can be told by the environment (`TOKENFLEET_INGRESS_BATCH_*`)."""

from pydantic import Field, SecretStr

from tokenfleet.settings import Settings


class BatchSettings(Settings):
    """Without `TOKENFLEET_POSTGRES_DSN` there is no batch API. Durations are wall seconds."""

    postgres_dsn: SecretStr | None = None
    ingress_batch_concurrency: int = Field(
        default=64, ge=0, description="Lines in progress at once; 0: this ingress runs none."
    )
    ingress_batch_connections: int = Field(default=4, ge=2, description="To Postgres, at most.")
    ingress_batch_lease_s: float = Field(
        default=15.0, ge=1, description="After which a line whose ingress has died is run by another."
    )
    ingress_batch_max_file_bytes: int = Field(default=200 << 20, gt=0)
    ingress_batch_max_lines: int = Field(default=50_000, gt=0, description="Of one batch.")
    ingress_batch_max_open: int = Field(default=100, gt=0, description="Unfinished batches of one tenant.")
    ingress_batch_max_stored_bytes: int = Field(default=10 << 30, gt=0, description="Of one tenant's files.")
    ingress_batch_keep_files_s: float = Field(
        default=30 * 86400.0, ge=60, description="After their creation."
    )
