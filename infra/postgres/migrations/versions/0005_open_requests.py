"""Requests that have not ended; dead letters are in JetStream from now on."""

from alembic import op
from sqlalchemy import text

revision = "0005"
down_revision = "0004"

STATEMENTS = (
    # Submitted longer ago than the bound for `lost`, and not in the ledger then: few.
    """
    CREATE TABLE open_requests (
        request_id   text PRIMARY KEY,
        submitted_ns bigint NOT NULL,
        -- Without an outcome by then, it is lost.
        decide_ns    bigint NOT NULL,
        -- Of its submission, what its end needs: JSON.
        submission   bytea NOT NULL,
        -- What is said of its end, fixed before it is published: said twice, it is the same.
        ended        bytea
    )
    """,
    "CREATE INDEX open_requests_due ON open_requests (decide_ns)",
    # Up to where the submissions of a stream have been looked at. A stream that was set up anew begins anew.
    """
    CREATE TABLE submissions_cursor (
        stream   text PRIMARY KEY,
        created  text NOT NULL,
        sequence bigint NOT NULL
    )
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
    # What was refused before stays readable where it is.
    if op.get_bind().execute(text("SELECT EXISTS (SELECT FROM dead_letters)")).scalar():
        op.execute("ALTER TABLE dead_letters RENAME TO dead_letters_before_0005")
    else:
        op.execute("DROP TABLE dead_letters")


def downgrade() -> None:
    raise NotImplementedError("The schema only moves forward; correct it with a new revision.")
