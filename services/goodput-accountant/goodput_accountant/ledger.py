"""The ledger in Postgres: append batches idempotently, read rows for reports and windows."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

import asyncpg
import msgspec
import structlog

from goodput_accountant.appending import append_rows, prepare, timestamp
from goodput_accountant.kept import KeptDay, kept_days, summarise
from goodput_accountant.policy.accounting import LedgerRow
from goodput_accountant.policy.chain import FIELDS
from goodput_accountant.policy.windows import WindowRow
from tokenfleet.contracts.ledger import LedgerEntry, ReportRequest
from tokenfleet.errors import TokenFleetError, UnavailableError

log = structlog.get_logger(__name__)

# Statements are built only from names of columns; every value is a parameter.
_FIELD_LIST = ", ".join(FIELDS)
_MISSED = FIELDS.index("missed")

KEEP_PARTITIONS = "LOCK TABLE ONLY ledger IN ACCESS SHARE MODE"
REPORT_ROWS = f"""
SELECT {_FIELD_LIST} FROM ledger_current
WHERE ($1::text IS NULL OR client_request_id LIKE $1)
  AND ($2::timestamptz IS NULL OR submitted_at >= $2)
  AND ($3::timestamptz IS NULL OR submitted_at < $3)
  AND ($4::text IS NULL OR pool = $4)
  AND ($5::text IS NULL OR tenant = $5)
LIMIT $6
"""  # noqa: S608
LOOKUP_ROWS = """
SELECT request_id, client_request_id, submitted_ns, ended_ns, outcome FROM ledger_current
WHERE request_id = $1 OR client_request_id = $1 ORDER BY submitted_at DESC LIMIT $2
"""
# The bound on the submission spares looking into every day: feedback has no use for what began so long ago.
# A request that was closed as lost before, and was in that window, is in no other: windows are not corrected.
ENDED_ROWS = f"""
SELECT {", ".join(WindowRow.__struct_fields__)} FROM ledger_current AS one
WHERE ended_at >= $1 AND ended_at < $2 AND site = $3 AND submitted_at >= $1::timestamptz - interval '2 days'
  AND NOT (revision > 0 AND EXISTS (
      SELECT FROM ledger AS lost WHERE lost.request_id = one.request_id AND lost.revision = 0
        AND lost.submitted_at = one.submitted_at AND lost.ended_at < $1
  ))
"""  # noqa: S608
ADD_CURSOR = """
INSERT INTO goodput_cursor (site, published_to_ns) VALUES ($1, $2) ON CONFLICT DO NOTHING
"""
READ_CURSOR = "SELECT published_to_ns FROM goodput_cursor WHERE site = $1 FOR UPDATE"
MOVE_CURSOR = "UPDATE goodput_cursor SET published_to_ns = $2 WHERE site = $1"

# What Postgres says of the content of a batch; everything else is about its own state and passes.
REFUSALS = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, OverflowError, UnicodeEncodeError)
# asyncpg shows a connection that the server closed under it as an internal error, too.
AWAY = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


Use = Literal["append", "queries"]
"""Told apart since a Postgres whose disk is full still answers queries."""


class RefusedError(TokenFleetError):
    """Postgres refuses the content of at least one row of a batch."""


class TooManyRowsError(TokenFleetError):
    """A report covers more rows, or ids, than one answer may."""


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch changed."""

    event_ids: frozenset[str]
    """The rows that were new; the others were there already."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that are this accountant's to publish."""

    start_ns: int
    """The moment since which they ended."""
    rows: list[WindowRow]


class Ledger:
    """Use `Ledger.open`; `close` before leaving. Says in the log when Postgres goes away and comes back."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._closing = False
        self._failing: set[Use] = set()

    @classmethod
    async def open(cls, dsn: str) -> "Ledger":
        """Connect to a database whose schema is up to date."""
        return cls(await asyncpg.create_pool(dsn, min_size=0, max_size=4, timeout=5.0, command_timeout=30.0))

    async def close(self) -> None:
        """Give running queries two seconds to end, then close every connection."""
        self._closing = True
        try:
            async with asyncio.timeout(2.0):
                await self._pool.close()
        except (TimeoutError, OSError):
            self._pool.terminate()

    async def append(self, rows: Sequence[LedgerRow]) -> Appended:
        """Write a batch in one transaction. Rows whose event or request is already there change nothing.

        Raises:
            UnavailableError: Postgres is away, full or shutting down; nothing is known to be written.
            RefusedError: nothing was written, because of the content of at least one row.
        """
        days = await prepare(rows)
        async with self.transaction("append") as connection:
            event_ids = await append_rows(connection, days) if days else frozenset[str]()
        return Appended(event_ids=event_ids)

    async def report_rows(self, request: ReportRequest, max_rows: int) -> list[LedgerRow]:
        """The rows a report asks for; time bounds are on submission, at microsecond resolution.

        Raises:
            BadQuestionError: rows of the span are no longer there.
            TooManyRowsError: more than `max_rows` match.
            UnavailableError: Postgres is away.
        """
        prefix = request.client_request_id_prefix
        async with self.reading() as connection:
            await kept_days(connection, request.from_ns, request.to_ns)
            records = await connection.fetch(
                REPORT_ROWS,
                None if prefix is None else like_prefix(prefix),
                None if request.from_ns is None else timestamp(request.from_ns),
                None if request.to_ns is None else timestamp(request.to_ns),
                request.pool,
                request.tenant,
                max_rows + 1,
            )
        if len(records) > max_rows:
            raise TooManyRowsError(
                f"The report covers more than {max_rows:,} requests. Narrow it by time, run, pool or tenant, "
                "or raise TOKENFLEET_REPORT_MAX_ROWS."
            )
        return list(map(as_row, records))

    async def lookup(self, wanted_id: str, max_rows: int) -> list[LedgerEntry]:
        """The latest requests that bear an id, ours or the client's.

        Raises:
            UnavailableError: Postgres is away.
        """
        async with self._connection() as connection:
            records = await connection.fetch(LOOKUP_ROWS, wanted_id, max_rows)
        return [LedgerEntry(**record) for record in records]

    async def claim_ended(self, site: str, oldest_ns: int, end_ns: int) -> Claim | None:
        """A site's rows that ended before `end_ns` and that no accountant has claimed, from `oldest_ns` on.

        Raises:
            UnavailableError: Postgres is away.
        """
        async with self._connection() as connection, connection.transaction():
            await connection.execute(ADD_CURSOR, site, oldest_ns)
            claimed_to_ns = await connection.fetchval(READ_CURSOR, site)
            if claimed_to_ns >= end_ns:
                return None
            await connection.execute(MOVE_CURSOR, site, end_ns)
            start_ns = max(claimed_to_ns, oldest_ns)
            records = await connection.fetch(ENDED_ROWS, timestamp(start_ns), timestamp(end_ns), site)
        return Claim(start_ns=start_ns, rows=[WindowRow(*record) for record in records])

    @property
    def available(self) -> bool:
        """Whether Postgres did the last of each kind of thing that it was asked for."""
        return not self._failing

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[Any]:
        """A connection that only reads, and sees everything as it was at one moment.

        Raises:
            UnavailableError: Postgres is away.
        """
        async with (
            self._connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            await connection.execute(KEEP_PARTITIONS)
            yield connection

    async def summarise(self, days: Sequence[KeptDay]) -> None:
        """Let pages of these days be found fast (`kept.summarise`), unless Postgres is away."""
        async with self._connection() as connection:
            await summarise(connection, days)

    @contextlib.asynccontextmanager
    async def transaction(self, use: Use = "queries") -> AsyncIterator[Any]:
        """A connection in a transaction that commits when the block ends well.

        Raises:
            UnavailableError: Postgres is away, full or shutting down.
            RefusedError: of the content of what was to be written.
        """
        async with self._connection(use) as connection, connection.transaction():
            yield connection

    @contextlib.asynccontextmanager
    async def _connection(self, use: Use = "queries") -> AsyncIterator[Any]:
        try:
            async with self._pool.acquire(timeout=10.0) as connection:
                yield connection
        except REFUSALS as error:
            raise RefusedError(f"{type(error).__name__}: {error}") from error
        except AWAY as error:
            if self.available and not self._closing:
                log.error("postgres is away; trying again until it is back", error=repr(error))
            self._failing.add(use)
            raise UnavailableError(f"Postgres cannot be used: {error!r}") from error
        if self._failing == {use}:
            log.info("postgres is back")
        self._failing.discard(use)


def as_row(record: Sequence[Any]) -> LedgerRow:
    """The row of a record with the columns of `FIELDS`, in that order."""
    values = list(record)
    values[_MISSED] = tuple(values[_MISSED])
    return LedgerRow(*values)


def like_prefix(prefix: str) -> str:
    """The LIKE pattern of whatever begins with `prefix`."""
    escaped = prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"{escaped}%"
