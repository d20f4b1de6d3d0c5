"""Batches: uploaded and result files by line, the batches, and the lines still to be run."""

from alembic import op

revision = "0002"
down_revision = "0001"

STATEMENTS = (
    "CREATE SCHEMA batch",
    """
    CREATE TABLE batch.files (
        file_id    text PRIMARY KEY,
        tenant     text NOT NULL,
        purpose    text NOT NULL CHECK (purpose IN ('batch', 'batch_output')),
        filename   text NOT NULL,
        bytes      bigint NOT NULL DEFAULT 0,
        lines      integer NOT NULL DEFAULT 0,
        -- Seen by its tenant only once it is ready.
        state      text NOT NULL CHECK (state IN ('uploading', 'building', 'ready')),
        created_at timestamptz NOT NULL DEFAULT now(),
        expires_at timestamptz NOT NULL
    )
    """,
    "CREATE INDEX files_of_tenant ON batch.files (tenant, created_at, file_id)",
    "CREATE INDEX files_by_expiry ON batch.files (expires_at)",
    # A file is its lines one after the other. A line of a result file has the number of the line it answers,
    # so a second result of the same line cannot be stored.
    """
    CREATE TABLE batch.file_lines (
        file_id text NOT NULL REFERENCES batch.files ON DELETE CASCADE,
        line    integer NOT NULL,
        data    bytea NOT NULL,
        PRIMARY KEY (file_id, line)
    )
    """,
    """
    CREATE TABLE batch.batches (
        batch_id          text PRIMARY KEY,
        tenant            text NOT NULL,
        input_file_id     text NOT NULL,
        endpoint          text NOT NULL,
        completion_window text NOT NULL,
        metadata          text,
        status            text NOT NULL CHECK (status IN ('validating', 'failed', 'in_progress', 'finalizing',
                                                          'completed', 'expired', 'cancelling', 'cancelled')),
        closing_as        text CHECK (closing_as IN ('completed', 'expired', 'cancelled')),
        errors            text,
        total             integer NOT NULL DEFAULT 0,
        completed         integer NOT NULL DEFAULT 0,
        failed            integer NOT NULL DEFAULT 0,
        output_file_id    text,
        error_file_id     text,
        created_at        timestamptz NOT NULL DEFAULT now(),
        due_at            timestamptz NOT NULL,
        in_progress_at    timestamptz,
        finalizing_at     timestamptz,
        completed_at      timestamptz,
        failed_at         timestamptz,
        expired_at        timestamptz,
        cancelling_at     timestamptz,
        cancelled_at      timestamptz
    )
    """,
    "CREATE INDEX batches_of_tenant ON batch.batches (tenant, created_at, batch_id)",
    """
    CREATE INDEX batches_open ON batch.batches (due_at)
    WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling')
    """,
    # What is still to be run: a row leaves in the transaction that stores its result. While a line runs, `owner` is
    # the process that runs it and `ready_at` the end of its lease; otherwise the moment it may be tried (again).
    """
    CREATE TABLE batch.lines (
        batch_id  text NOT NULL REFERENCES batch.batches ON DELETE CASCADE,
        line      integer NOT NULL,
        custom_id text NOT NULL,
        ready_at  timestamptz NOT NULL DEFAULT now(),
        owner     text,
        refusals  integer NOT NULL DEFAULT 0,
        failures  integer NOT NULL DEFAULT 0,
        PRIMARY KEY (batch_id, line)
    )
    """,
    "CREATE INDEX lines_ready ON batch.lines (batch_id, ready_at, line)",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("The schema only moves forward; correct it with a new revision.")
