"""The ledger in partitions of one day each, every day a hash chain; several rows of a request, of which the last counts."""

import hashlib
from datetime import date, timedelta
from typing import Any

import msgspec
from alembic import op
from sqlalchemy import text

revision = "0003"
down_revision = "0002"

# The columns of 0001 in the order that the hashes of such rows cover them (schema 1 of rows).
BEFORE = [
    "event_id",
    "event_schema",
    "request_id",
    "attempt",
    "client_request_id",
    "tenant",
    "request_class",
    "site",
    "pool",
    "model",
    "instance",
    "outcome",
    "reason",
    "status",
    "stream",
    "admitted",
    "degraded",
    "submitted_ns",
    "ended_ns",
    "time_scale",
    "input_tokens",
    "reused_tokens",
    "computed_tokens",
    "output_tokens",
    "tokens_exact",
    "ttft_s",
    "tpot_s",
    "e2e_s",
    "predicted_ttft_s",
    "predicted_tpot_s",
    "objective_ttft_s",
    "objective_tpot_s",
    "objective_e2e_s",
    "met",
    "missed",
    "good_output_tokens",
    "waste_cause",
    "wasted_input_tokens",
    "wasted_output_tokens",
    "retried_input_tokens",
    "retried_output_tokens",
]
PAGE = 5_000

CREATE = """
CREATE TABLE ledger (
    event_id             text NOT NULL,
    event_schema         integer NOT NULL,
    request_id           text NOT NULL,
    attempt              integer NOT NULL,
    client_request_id    text,
    tenant               text NOT NULL,
    request_class        text,
    site                 text NOT NULL,
    pool                 text NOT NULL,
    model                text NOT NULL,
    instance             text,
    outcome              text NOT NULL
        CHECK (outcome IN ('completed', 'rejected', 'timed_out', 'cancelled', 'failed', 'lost')),
    reason               text NOT NULL,
    status               integer NOT NULL,
    stream               boolean NOT NULL,
    admitted             boolean NOT NULL,
    degraded             boolean NOT NULL,
    submitted_ns         bigint NOT NULL,
    ended_ns             bigint NOT NULL,
    time_scale           double precision NOT NULL,
    input_tokens         bigint NOT NULL,
    reused_tokens        bigint NOT NULL,
    computed_tokens      bigint NOT NULL,
    output_tokens        bigint NOT NULL,
    tokens_exact         boolean NOT NULL,
    ttft_s               double precision,
    tpot_s               double precision,
    e2e_s                double precision NOT NULL,
    predicted_ttft_s     double precision,
    predicted_tpot_s     double precision,
    objective_ttft_s     double precision,
    objective_tpot_s     double precision,
    objective_e2e_s      double precision,
    met                  boolean,
    missed               text[] NOT NULL,
    good_output_tokens   bigint NOT NULL,
    waste_cause          text CHECK (waste_cause IN ('timed_out', 'cancelled', 'failed', 'lost', 'late')),
    wasted_input_tokens  bigint NOT NULL,
    wasted_output_tokens bigint NOT NULL,
    retried_input_tokens  bigint NOT NULL,
    retried_output_tokens bigint NOT NULL,
    queue_wait_s         double precision,
    -- Of several rows of a request the one with the highest revision counts: a correction is a new row.
    revision             integer NOT NULL,
    prefill_gpu_s        double precision,
    decode_gpu_s         double precision,
    retried_gpu_s        double precision NOT NULL,
    wasted_gpu_s         double precision,
    submitted_at         timestamptz NOT NULL,
    ended_at             timestamptz NOT NULL,
    -- Which columns the hash covers.
    row_schema           smallint NOT NULL,
    -- The place in the chain of its day, from 1.
    sequence             bigint NOT NULL,
    chain_hash           bytea NOT NULL,
    CONSTRAINT ledger_request PRIMARY KEY (request_id, revision, submitted_at)
) PARTITION BY RANGE (submitted_at)
"""
AROUND = (
    # The end of each day's chain: rows cut off there leave no other trace. Who appends to a day holds its row.
    """
    CREATE TABLE ledger_days (
        day          date PRIMARY KEY,
        rows         bigint NOT NULL,
        head         bytea NOT NULL,
        dropped_rows bigint NOT NULL DEFAULT 0,
        dropped_head bytea NOT NULL DEFAULT decode(repeat('00', 32), 'hex')
    )
    """,
    """
    CREATE VIEW ledger_current AS
    SELECT * FROM ledger AS one WHERE NOT (one.revision = 0 AND EXISTS (
        SELECT FROM ledger AS later
        WHERE later.request_id = one.request_id AND later.submitted_at = one.submitted_at AND later.revision > 0
    ))
    """,
)
INDEXES = (
    # Replay asks for the requests whose ids it gave a common prefix.
    "CREATE INDEX ledger_client_request_id ON ledger (client_request_id text_pattern_ops)",
    # Rows are appended nearly in the order they were submitted and ended: block-range indexes cost next to nothing.
    "CREATE INDEX ledger_submitted ON ledger USING brin (submitted_at) WITH (pages_per_range = 8, autosummarize = on)",
    "CREATE INDEX ledger_ended ON ledger USING brin (ended_at) WITH (pages_per_range = 8, autosummarize = on)",
    "CREATE INDEX ledger_sequence ON ledger USING brin (sequence) WITH (pages_per_range = 8, autosummarize = on)",
)


def upgrade() -> None:
    op.execute("ALTER TABLE ledger RENAME TO ledger_before")
    for statement in (CREATE, *AROUND):
        op.execute(statement)
    _move()
    op.execute("DROP TABLE ledger_before")
    for statement in INDEXES:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("The ledger's schema only moves forward; correct it with a new revision.")


def _move() -> None:
    """Chain the rows that there are, day by day, oldest first."""
    days = (
        "SELECT DISTINCT CAST(submitted_at AT TIME ZONE 'UTC' AS date) AS day FROM ledger_before ORDER BY 1"
    )
    for (day,) in op.get_bind().execute(text(days)).all():
        following = day + timedelta(days=1)
        op.execute(
            f"CREATE TABLE ledger_{day:%Y%m%d} PARTITION OF ledger "
            f"FOR VALUES FROM ('{day} 00:00:00+00') TO ('{following} 00:00:00+00')"
        )
        _move_day(day)


def _move_day(day: date) -> None:
    page = text(
        f"SELECT {', '.join(BEFORE)} FROM ledger_before "  # noqa: S608 - fixed names
        "WHERE submitted_at >= CAST(:day AS date) AT TIME ZONE 'UTC' "
        "AND submitted_at < CAST(:following AS date) AT TIME ZONE 'UTC' AND event_id > :after "
        "ORDER BY event_id LIMIT :page"
    )
    head, sequence, after = bytes(32), 0, ""
    while True:
        window = {"day": day, "following": day + timedelta(days=1), "after": after, "page": PAGE}
        rows = op.get_bind().execute(page, window).all()
        if not rows:
            break
        hashes: list[bytes] = []
        for row in rows:
            head = hashlib.sha256(head + msgspec.json.encode([1, *row])).digest()
            hashes.append(head)
        after = rows[-1][0]
        _append([row[0] for row in rows], range(sequence + 1, sequence + 1 + len(rows)), hashes)
        sequence += len(rows)
    values: dict[str, Any] = {"day": day, "rows": sequence, "head": head}
    op.get_bind().execute(
        text("INSERT INTO ledger_days (day, rows, head) VALUES (:day, :rows, :head)"), values
    )


def _append(event_ids: list[str], sequences: range, hashes: list[bytes]) -> None:
    names = ", ".join(BEFORE)
    statement = text(
        f"INSERT INTO ledger ({names}, revision, retried_gpu_s, submitted_at, ended_at, row_schema, sequence, chain_hash) "  # noqa: S608 - fixed names
        f"SELECT {names}, 1, 0.0, submitted_at, ended_at, 1, link.sequence, link.hash "
        "FROM unnest(CAST(:event_ids AS text[]), CAST(:sequences AS bigint[]), CAST(:hashes AS bytea[])) "
        "AS link(event_id, sequence, hash) JOIN ledger_before USING (event_id) ORDER BY link.sequence"
    )
    values = {"event_ids": event_ids, "sequences": list(sequences), "hashes": hashes}
    op.get_bind().execute(statement, values)
