"""The database of the batch API: connections, and whether they work.

The schema `batch` is brought up to date by the accountant, the one service that migrates; ingress waits for it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import structlog

from tokenfleet.errors import UnavailableError

log = structlog.get_logger(__name__)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CONNECT_EVERY_S = 0.5
ACQUIRE_TIMEOUT_S = 5.0

# asyncpg shows a connection that the server closed under it as an internal error, too.
AWAY = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)

# A transaction's locks are the claim on a batch: they must not outlive a machine that is gone.
_SESSION = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "idle_in_transaction_session_timeout": "30s",
}


class Database:
    """A bounded pool. Says in the log when Postgres goes away and when it is back."""

    def __init__(self, dsn: str, connections: int) -> None:
        self._dsn = dsn
        self._connections = connections
        self._pool: asyncpg.Pool | None = None
        self._connected = asyncio.Event()
        self._closing = False
        self.available = False

    async def connect(self) -> None:
        """Return once the database answers and has our schema, however long that takes."""
        said = ""
        while self._pool is None:
            try:
                pool = await asyncpg.create_pool(
                    self._dsn,
                    min_size=1,
                    max_size=self._connections,
                    timeout=5.0,
                    command_timeout=30.0,
                    server_settings=_SESSION,
                )
                if await pool.fetchval("SELECT to_regclass('batch.lines')") is not None:
                    self._pool, self.available = pool, True
                    self._connected.set()
                    return
                await pool.close()
                problem = "the accountant has not brought its schema up to date yet"
            except (*AWAY, ValueError) as error:
                problem = repr(error)
            if problem != said:
                log.warning("batches wait for postgres", problem=problem)
                said = problem
            await asyncio.sleep(CONNECT_EVERY_S)

    async def close(self) -> None:
        """Give running queries two seconds to end, then close every connection."""
        self._closing = True
        if self._pool is None:
            return
        try:
            async with asyncio.timeout(2.0):
                await self._pool.close()
        except (TimeoutError, OSError):
            self._pool.terminate()

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A connection inside a transaction.

        Raises:
            UnavailableError: Postgres is away; unless it went away during the commit, nothing was changed.
        """
        pool = await self._first_connection()
        try:
            async with (
                pool.acquire(timeout=ACQUIRE_TIMEOUT_S) as connection,
                connection.transaction(),
            ):
                yield connection
        except AWAY as error:
            if self.available and not self._closing:
                log.error("postgres is away; batches wait until it is back", error=repr(error))
            self.available = False
            raise UnavailableError(f"Postgres cannot be used: {error!r}") from error
        if not self.available:
            log.info("postgres is back")
        self.available = True

    async def _first_connection(self) -> asyncpg.Pool:
        """The pool; a process that has just started is given as long to connect as any query is."""
        if self._pool is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ACQUIRE_TIMEOUT_S):
                    await self._connected.wait()
        if self._pool is None:
            raise UnavailableError("Postgres cannot be used yet.")
        return self._pool


def unix_ns(moment: datetime) -> int:
    """Unix time in nanoseconds, exact to the microsecond."""
    return (moment - EPOCH) // timedelta(microseconds=1) * 1000


def unix_s(moment: datetime | None) -> int | None:
    """Unix time in whole seconds, as OpenAI's objects have it."""
    return None if moment is None else int(moment.timestamp())
