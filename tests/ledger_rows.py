"""Ledger rows as the tests look at them: straight from Postgres."""

import asyncio
from typing import Any

import asyncpg
from running_stack import RunningStack


async def _row(dsn: str, client_request_id: str) -> dict[str, Any] | None:
    connection = await asyncpg.connect(dsn)
    try:
        row = await connection.fetchrow(
            "SELECT * FROM ledger WHERE client_request_id = $1", client_request_id
        )
        return dict(row) if row else None
    except asyncpg.UndefinedTableError:  # the accountant is still starting
        return None
    finally:
        await connection.close()


def row_of(stack: RunningStack, client_request_id: str) -> dict[str, Any] | None:
    """The row of the request that a client named so, if it is there."""
    return asyncio.run(_row(stack.run["postgres_dsn"], client_request_id))
