"""Pieces of work in one transaction of PostgreSQL's: all of them together, or each undone by itself."""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from app.database.leases import LeaseLostError
from app.database.postgres._calls import BatchedCall, FailedCall, is_connection_lost, translated_error

_SAVE, _UNDO = "SAVEPOINT piece", "ROLLBACK TO SAVEPOINT piece"
"""A later savepoint hides earlier ones of its name, so what is undone is always the newest."""


class RetryBatch(Exception):  # noqa: N818 - no error
    """One of several pieces failed, and all are undone."""


def run_together(connection: Connection, pieces: Sequence[BatchedCall]) -> list[Any]:
    """Run pieces; raises `RetryBatch` if one of them fails, or what leaves no connection to go on with."""
    try:
        return [one.run(connection) for one in pieces]
    except Exception as error:
        if is_connection_lost(connection, error):
            raise
        raise RetryBatch from error


def run_with_savepoints(connection: Connection, pieces: Sequence[BatchedCall]) -> list[Any]:
    """Run pieces, each of which is undone by itself if it fails; raises what leaves no connection to go on with."""
    if len(pieces) == 1:
        return [result_or_failure(pieces[0].run, connection)]
    outcomes = []
    for one in pieces:
        # Not released one by one, which would be another statement for each: the commit does that.
        connection.exec_driver_sql(_SAVE)
        outcomes.append(result_or_failure(one.run, connection))
        if isinstance(outcomes[-1], FailedCall):
            connection.exec_driver_sql(_UNDO)
    return outcomes


def result_or_failure(work: Callable[[Connection], Any], connection: Connection) -> Any:
    """Run work and return what it returned or how it failed; raises what leaves no connection to go on with."""
    try:
        return work(connection)
    except Exception as error:
        if is_connection_lost(connection, error):
            raise
        return FailedCall(translated_error(error) if isinstance(error, SQLAlchemyError) else error)


def lease_lost(_connection: Connection) -> None:
    """Stand in for work whose lease another process has."""
    raise LeaseLostError
