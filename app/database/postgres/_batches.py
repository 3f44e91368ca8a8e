"""Runs several pieces of work in one PostgreSQL transaction, either all or none, or each with its own savepoint."""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from app.database.leases import LeaseLostError
from app.database.postgres._calls import BatchedCall, FailedCall, is_connection_lost, translated_error

_SAVE, _UNDO = "SAVEPOINT piece", "ROLLBACK TO SAVEPOINT piece"
"""A later savepoint hides earlier ones with the same name, so a rollback always undoes the newest piece."""


class RetryBatch(Exception):  # noqa: N818 - not an error
    """One of several pieces failed, so all of them were undone. They can be repeated with savepoints."""


def run_together(connection: Connection, pieces: Sequence[BatchedCall]) -> list[Any]:
    """Run pieces without savepoints.

    Raises `RetryBatch` if a piece fails, or the piece's error if this error leaves no usable connection.
    """
    try:
        return [one.run(connection) for one in pieces]
    except Exception as error:
        if is_connection_lost(connection, error):
            raise
        raise RetryBatch from error


def run_with_savepoints(connection: Connection, pieces: Sequence[BatchedCall]) -> list[Any]:
    """Run pieces, and undo each failed piece alone. Raises an error if the connection is lost."""
    if len(pieces) == 1:
        return [result_or_failure(pieces[0].run, connection)]
    outcomes = []
    for one in pieces:
        # Do not release the savepoint: that would be another statement for each piece. The commit releases all.
        connection.exec_driver_sql(_SAVE)
        outcomes.append(result_or_failure(one.run, connection))
        if isinstance(outcomes[-1], FailedCall):
            connection.exec_driver_sql(_UNDO)
    return outcomes


def result_or_failure(work: Callable[[Connection], Any], connection: Connection) -> Any:
    """Run work and return its result or its failure. Raises an error only if the connection is lost."""
    try:
        return work(connection)
    except Exception as error:
        if is_connection_lost(connection, error):
            raise
        return FailedCall(translated_error(error) if isinstance(error, SQLAlchemyError) else error)


def lease_lost(_connection: Connection) -> None:
    """Raise `LeaseLostError` in place of work that has lost its lease to another process."""
    raise LeaseLostError
