"""The ledger in Postgres: append batches idempotently, read rows for reports and windows."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

import asyncpg
import msgspec
import structlog

from goodput_accountant.appending import append_rows, prepare, timestamp
from goodput_accountant.policy.accounting import LedgerRow
from goodput_accountant.policy.chain import FIELDS
from goodput_accountant.policy.windows import WindowRow
from tokenfleet.contracts.ledger import LedgerEntry, ReportRequest
from tokenfleet.errors import TokenFleetError, UnavailableError

log = structlog.get_logger(__name__)

# Statements are built only from names of columns; every value is a parameter.
_FIELD_LIST = ", ".join(FIELDS)

DEAD_LETTER = """
INSERT INTO dead_letters (stream_sequence, payload_sha256, subject, reason, payload)
VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING RETURNING true
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
ENDED_ROWS = f"""
SELECT {", ".join(WindowRow.__struct_fields__)} FROM ledger_current
WHERE ended_at >= $1 AND ended_at < $2 AND site = $3 AND submitted_at >= $1::timestamptz - interval '2 days'
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


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that cannot become a row, and why."""

    stream_sequence: int
    subject: str
    payload: bytes
    reason: str


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch changed."""

    event_ids: frozenset[str]
    """The rows that were new; the others were there already."""
    dead_letters: int


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

    async def append(self, rows: Sequence[LedgerRow], dead_letters: Sequence[DeadLetter]) -> Appended:
        """Write a batch in one transaction. Rows whose event or request is already there change nothing.

        Raises:
            UnavailableError: Postgres is away, full or shutting down; nothing is known to be written.
            RefusedError: nothing was written, because of the content of at least one row.
        """
        days = await prepare(rows)
        async with self._connection("append") as connection, connection.transaction():
            event_ids: frozenset[str] = frozenset()
            if days:
                event_ids = await append_rows(connection, days)
            letters = 0
            for letter in dead_letters:
                digest = hashlib.sha256(letter.payload).digest()
                reason = letter.reason.replace("\0", "\\0")
                arguments = (letter.stream_sequence, digest, letter.subject, reason, letter.payload)
                letters += await connection.fetchval(DEAD_LETTER, *arguments) is not None
        return Appended(event_ids=event_ids, dead_letters=letters)

    async def report_rows(self, request: ReportRequest, max_rows: int) -> list[LedgerRow]:
        """The rows a report asks for; time bounds are on submission, at microsecond resolution.

        Raises:
            TooManyRowsError: more than `max_rows` match.
            UnavailableError: Postgres is away.
        """
        prefix = request.client_request_id_prefix
        async with self._connection() as connection:
            records = await connection.fetch(
                REPORT_ROWS,
                None if prefix is None else _like_prefix(prefix),
                None if request.from_ns is None else timestamp(request.from_ns),
                None if request.to_ns is None else timestamp(request.to_ns),
                request.pool,
                request.tenant,
                max_rows + 1,
            )
        if len(records) > max_rows:
            raise TooManyRowsError(
                f"The report covers more than {max_rows} requests. Narrow it by time, run, pool or tenant, "
                "or raise TOKENFLEET_REPORT_MAX_ROWS."
            )
        return [_row(record) for record in records]

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


def _row(record: "asyncpg.Record") -> LedgerRow:
    return LedgerRow(**{**record, "missed": tuple(record["missed"])})


def _like_prefix(prefix: str) -> str:
    escaped = prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"{escaped}%"
