"""Alembic's entry point: runs the revisions on the connection the accountant hands over.

The accountant holds the migration lock in that connection's transaction, so all revisions commit as one.
"""

from alembic import context

context.configure(connection=context.config.attributes["connection"], target_metadata=None)
with context.begin_transaction():
    context.run_migrations()
