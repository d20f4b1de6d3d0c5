"""Roll-ups of the ledger, how far each day is rolled up, and what retention leaves of the rows it drops."""

from alembic import op

revision = "0004"
down_revision = "0003"


def _of_one_width(width_s: int) -> tuple[str, str]:
    # Apart from those of other widths: a report reads thousands of one width, which so lie side by side, in their rows and
    # uncompressed.
    name = f"ledger_rollups_{width_s}"
    return (
        f"CREATE TABLE {name} PARTITION OF ledger_rollups FOR VALUES IN ({width_s}) "
        "WITH (toast_tuple_target = 8160, fillfactor = 80)",
        f"ALTER TABLE {name} ALTER figures SET STORAGE EXTERNAL, ALTER ttft SET STORAGE EXTERNAL, "
        "ALTER tpot SET STORAGE EXTERNAL, ALTER e2e SET STORAGE EXTERNAL",
    )


STATEMENTS = (
    # Totals of the requests submitted in the `width_s` seconds from `start_at` on. What the bytes are is said in the
    # accountant's policy/rollups.py and policy/histograms.py; they add up by being joined.
    """
    CREATE TABLE ledger_rollups (
        width_s       integer NOT NULL,
        start_at      timestamptz NOT NULL,
        site          text NOT NULL,
        pool          text NOT NULL,
        tenant        text NOT NULL,
        request_class text NOT NULL,
        model         text NOT NULL,
        time_scale    double precision NOT NULL,
        first_ns      bigint NOT NULL,
        last_ns       bigint NOT NULL,
        figures       bytea NOT NULL,
        ttft          bytea NOT NULL,
        tpot          bytea NOT NULL,
        e2e           bytea NOT NULL,
        PRIMARY KEY (width_s, start_at, site, pool, tenant, request_class, model, time_scale)
    ) PARTITION BY LIST (width_s)
    """,
    *_of_one_width(300),
    *_of_one_width(3_600),
    *_of_one_width(86_400),
    # Apart from `ledger_days`, so that rolling up and appending never wait for each other. Who rolls a day up holds its row.
    """
    CREATE TABLE ledger_rolled (
        day  date PRIMARY KEY,
        -- Of the day's chain, this many rows from its beginning are in the roll-ups.
        rows bigint NOT NULL DEFAULT 0,
        -- Whether the narrowest roll-ups are kept, too.
        fine boolean NOT NULL
    )
    """,
    # A later row replaces one of revision 0 (`lost`), of which there are few: ingest pays nothing for the others.
    "CREATE INDEX ledger_replaceable ON ledger (request_id) WHERE revision = 0",
    # As a function, so that only the rare row of revision 0 costs a look at other rows: written out in the view, every
    # statement about it would be planned over the partitions of all days once more.
    """
    CREATE FUNCTION ledger_replaced(request text, submitted timestamptz) RETURNS boolean
    LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
    BEGIN
        RETURN EXISTS (
            SELECT FROM ledger WHERE submitted_at = submitted AND request_id = request AND revision > 0
        );
    END
    $$
    """,
    """
    CREATE OR REPLACE VIEW ledger_current AS SELECT * FROM ledger
    WHERE NOT (revision = 0 AND ledger_replaced(request_id, submitted_at))
    """,
    # Rows that a later one may still replace, of days that were dropped: they must be taken out of the roll-ups then.
    """
    CREATE TABLE ledger_dropped_lost (
        LIKE ledger,
        PRIMARY KEY (submitted_at, request_id)
    )
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("The ledger's schema only moves forward; correct it with a new revision.")
