"""The ledger in Postgres: append batches idempotently, read rows for reports and windows."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import asyncpg
import msgspec
import structlog

from goodput_accountant.kept import kept_days
from goodput_accountant.policy.accounting import LedgerRow
from goodput_accountant.policy.chain import FIELDS, ROW_SCHEMA, START, canonical_values, day_of, link
from goodput_accountant.policy.windows import WindowRow
from tokenfleet.contracts.ledger import LedgerEntry, ReportRequest
from tokenfleet.errors import TokenFleetError, UnavailableError

log = structlog.get_logger(__name__)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Statements are built only from these names; every value is a parameter.
COLUMNS = (*FIELDS, "submitted_at", "ended_at", "row_schema", "sequence", "chain_hash")
_FIELD_LIST = ", ".join(FIELDS)
_MISSED = FIELDS.index("missed")

YIELD_EVERY = 100
"""Rows prepared before others may go on: Postgres, say, to which the batch before is being sent."""
SAME_REQUEST = timedelta(days=1)
"""Two outcomes under one request id are of the same request if it was submitted so close together by both."""

# In order of days, so that two accountants cannot wait for each other in a circle.
ADD_DAYS = f"""
INSERT INTO ledger_days (day, rows, head) SELECT day, 0, '\\x{START.hex()}'::bytea FROM unnest($1::date[]) AS day ORDER BY day
ON CONFLICT DO NOTHING RETURNING day
"""  # noqa: S608
HOLD_DAYS = "SELECT day, rows, head, dropped_rows FROM ledger_days WHERE day = ANY($1::date[]) ORDER BY day FOR UPDATE"
KEEP_PARTITIONS = "LOCK TABLE ONLY ledger IN ACCESS SHARE MODE"
MOVE_DAY = "UPDATE ledger_days SET rows = $2, head = $3 WHERE day = $1"
THERE = """
SELECT request_id, revision FROM ledger
WHERE request_id = ANY($1::text[]) AND submitted_at >= $2::timestamptz - $4::interval
  AND submitted_at <= $3::timestamptz + $4::interval
"""
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
        self.available = True

    @classmethod
    async def open(cls, dsn: str) -> "Ledger":
        """Connect to a database whose schema is up to date."""
        return cls(await asyncpg.create_pool(dsn, min_size=1, max_size=4, timeout=5.0, command_timeout=30.0))

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
        days = await _prepare(rows)
        async with self.transaction() as connection:
            event_ids = await _append_rows(connection, days) if days else frozenset[str]()
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

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A connection in a transaction that commits when the block ends well.

        Raises:
            UnavailableError: Postgres is away, full or shutting down.
            RefusedError: of the content of what was to be written.
        """
        async with self._connection() as connection, connection.transaction():
            yield connection

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        try:
            async with self._pool.acquire(timeout=10.0) as connection:
                yield connection
        except REFUSALS as error:
            raise RefusedError(f"{type(error).__name__}: {error}") from error
        except AWAY as error:
            if self.available and not self._closing:
                log.error("postgres is away; trying again until it is back", error=repr(error))
            self.available = False
            raise UnavailableError(f"Postgres cannot be used: {error!r}") from error
        if not self.available:
            log.info("postgres is back")
        self.available = True


class _Prepared(msgspec.Struct, frozen=True):
    """A row, ready to be linked and written."""

    key: tuple[str, int]
    """Request and revision."""
    values: tuple[Any, ...]
    times: tuple[datetime, datetime]
    canonical: bytes


async def _prepare(rows: Sequence[LedgerRow]) -> dict[date, list[_Prepared]]:
    """The rows by day, each request and revision once: all the work that can be done before anything is locked."""
    days: dict[date, list[_Prepared]] = defaultdict(list)
    seen: set[tuple[str, int]] = set()
    for number, row in enumerate(rows, 1):
        if number % YIELD_EVERY == 0:
            await asyncio.sleep(0)
        key = row.request_id, row.revision
        if key not in seen:
            seen.add(key)
            values = msgspec.structs.astuple(row)
            times = timestamp(row.submitted_ns), timestamp(row.ended_ns)
            day_of(row)
            days[times[0].date()].append(_Prepared(key, values, times, canonical_values(values)))
    return days


async def _append_rows(connection: Any, days: dict[date, list[_Prepared]]) -> frozenset[str]:
    """Put the rows that are new at the ends of their days' chains; the event ids of those.

    Whoever appends to a day holds its row of `ledger_days`: what is there cannot change between looking and writing.
    """
    for day in await connection.fetch(ADD_DAYS, sorted(days)):
        await _create_partition(connection, day["day"])
    heads = await connection.fetch(HOLD_DAYS, sorted(days))
    there = await _there(connection, [row for rows in days.values() for row in rows])
    records: list[tuple[Any, ...]] = []
    for day, count, head, dropped in heads:
        new = [row for row in days[day] if row.key not in there]
        if not new:
            continue
        if count and count == dropped:
            await _create_partition(connection, day)
        hashes = link(head, [row.canonical for row in new])
        records += [
            (*row.values, *row.times, ROW_SCHEMA, place, hash_)
            for place, (row, hash_) in enumerate(zip(new, hashes, strict=True), count + 1)
        ]
        await connection.execute(MOVE_DAY, day, count + len(new), hashes[-1])
    if records:
        await connection.copy_records_to_table("ledger", records=records, columns=COLUMNS)
    return frozenset(record[0] for record in records)


async def _there(connection: Any, rows: Sequence[_Prepared]) -> set[tuple[str, int]]:
    """Those requests and revisions that have a row already."""
    submitted = [row.times[0] for row in rows]
    wanted = [row.key[0] for row in rows]
    found = await connection.fetch(THERE, wanted, min(submitted), max(submitted), SAME_REQUEST)
    return {tuple(record) for record in found}


async def _create_partition(connection: Any, day: date) -> None:
    await connection.execute(
        f"CREATE TABLE {partition_of(day)} PARTITION OF ledger "
        f"FOR VALUES FROM ('{day} 00:00:00+00') TO ('{day + timedelta(days=1)} 00:00:00+00')"
    )


def partition_of(day: date) -> str:
    """The name of the table that has the rows of a day."""
    return f"ledger_{day:%Y%m%d}"


def as_row(record: Sequence[Any]) -> LedgerRow:
    """The row of a record with the columns of `FIELDS`, in that order."""
    values = list(record)
    values[_MISSED] = tuple(values[_MISSED])
    return LedgerRow(*values)


def timestamp(unix_ns: int) -> datetime:
    """As Postgres keeps it, at microsecond resolution."""
    return EPOCH + timedelta(microseconds=unix_ns // 1000)


def like_prefix(prefix: str) -> str:
    """The LIKE pattern of whatever begins with `prefix`."""
    escaped = prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"{escaped}%"
