"""The ledger: one row per request, the messages that could not become rows, and the windows' cursor."""

from alembic import op

revision = "0001"
down_revision = None

STATEMENTS = (
    """
    CREATE TABLE ledger (
        event_id             text PRIMARY KEY,
        event_schema         integer NOT NULL,
        request_id           text NOT NULL UNIQUE,
        attempt              integer NOT NULL,
        client_request_id    text,
        tenant               text NOT NULL,
        request_class        text,
        site                 text NOT NULL,
        pool                 text NOT NULL,
        model                text NOT NULL,
        instance             text,
        outcome              text NOT NULL
            CHECK (outcome IN ('completed', 'rejected', 'timed_out', 'cancelled', 'failed')),
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
        waste_cause          text CHECK (waste_cause IN ('timed_out', 'cancelled', 'failed', 'late')),
        wasted_input_tokens  bigint NOT NULL,
        wasted_output_tokens bigint NOT NULL,
        retried_input_tokens  bigint NOT NULL,
        retried_output_tokens bigint NOT NULL,
        submitted_at         timestamptz NOT NULL,
        ended_at             timestamptz NOT NULL
    )
    """,
    # Replay asks for the requests whose ids it gave a common prefix.
    "CREATE INDEX ledger_client_request_id ON ledger (client_request_id text_pattern_ops)",
    "CREATE INDEX ledger_submitted ON ledger (submitted_at)",
    "CREATE INDEX ledger_tenant_submitted ON ledger (tenant, submitted_at)",
    "CREATE INDEX ledger_pool_class_submitted ON ledger (pool, request_class, submitted_at)",
    # Rows are appended nearly in the order they ended: a block-range index costs next to nothing.
    "CREATE INDEX ledger_ended ON ledger USING brin (ended_at) WITH (pages_per_range = 8, autosummarize = on)",
    """
    CREATE TABLE dead_letters (
        stream_sequence bigint NOT NULL,
        payload_sha256  bytea NOT NULL,
        subject         text NOT NULL,
        reason          text NOT NULL,
        payload         bytea NOT NULL,
        received_at     timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (stream_sequence, payload_sha256)
    )
    """,
    # How far the goodput windows have been published, so that of several accountants one does it.
    """
    CREATE TABLE goodput_cursor (
        site            text PRIMARY KEY,
        published_to_ns bigint NOT NULL
    )
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("The ledger's schema only moves forward; correct it with a new revision.")
