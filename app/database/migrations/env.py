"""Runs revisions on the connection that `migrate` passes; Alembic executes this file."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
