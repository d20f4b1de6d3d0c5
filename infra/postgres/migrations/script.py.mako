"""${message}"""

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    op.execute("")


def downgrade() -> None:
    raise NotImplementedError("The ledger's schema only moves forward; correct it with a new revision.")
