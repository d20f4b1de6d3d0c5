"""The ledger's schema, brought up to date in this process."""

from pathlib import Path

import asyncpg
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from tokenfleet.errors import ConfigurationError

# Any constant of ours: accountants that start together take turns on it.
MIGRATION_LOCK = 0x746F6B656E666C74


async def migrate(connection: asyncpg.Connection, migrations_dir: Path, to: str = "head") -> None:
    """Apply the revisions not yet applied, up to `to`, in one transaction, under a lock; closes the connection.

    Raises:
        ConfigurationError: the folder holds no migrations.
    """
    if not (migrations_dir / "env.py").is_file():
        await connection.close()
        raise ConfigurationError(
            f"No migrations in {migrations_dir}. Set TOKENFLEET_MIGRATIONS_DIR to the "
            "repository's infra/postgres/migrations."
        )

    async def connected() -> asyncpg.Connection:
        return connection

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connected, poolclass=NullPool)
    try:
        async with engine.begin() as transaction:
            await transaction.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
            await transaction.run_sync(_upgrade, migrations_dir, to)
    finally:
        await engine.dispose()


def _upgrade(connection: Connection, migrations_dir: Path, to: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(migrations_dir).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, to)
