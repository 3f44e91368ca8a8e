"""Records the text of statements: as sent to a database, and as compiled by SQLAlchemy."""

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.sql.compiler import DDLCompiler, SQLCompiler

_ENTRY = re.compile(r"^\S+ \S+ \S+ \[\d+\] (LOG|DETAIL|ERROR|STATEMENT|HINT|CONTEXT|WARNING|FATAL):  (.*)", re.DOTALL)
_STATEMENT = re.compile(r"(?:statement|execute [^:]+): (.*)", re.DOTALL)
_NAMED = re.compile(r"%\((\w+)\)s")


@contextmanager
def compiled_texts() -> Iterator[set[str]]:
    """Collect the texts that SQLAlchemy compiles in this context."""
    found: set[str] = set()

    def note(kind: Any, method: str, text_of: str) -> None:
        run = getattr(kind, method)

        def noting(self: Any, *arguments: Any, **options: Any) -> Any:
            result = run(self, *arguments, **options)
            found.add(str(getattr(result if result is not None else self, text_of) or ""))
            return result

        patch.setattr(kind, method, noting)

    with pytest.MonkeyPatch.context() as patch:
        note(SQLCompiler, "__init__", "string")
        note(DDLCompiler, "__init__", "string")
        # The text of a statement with lists depends on their lengths.
        note(SQLCompiler, "_process_parameters_for_postcompile", "statement")
        yield found


def numbered(compiled: str) -> str:
    """Return a text as psycopg sends it: with `$1` in place of a named parameter, and `%` in place of `%%`."""
    numbers: dict[str, int] = {}
    marked = _NAMED.sub(lambda name: f"${numbers.setdefault(name[1], len(numbers) + 1)}", compiled)
    return marked.replace("%%", "%")


@contextmanager
def sent_to_sqlite(*names: str) -> Iterator[Counter[str]]:
    """Count the texts that connections to files with these names execute in this context."""
    found: Counter[str] = Counter()

    class RecordingCursor(sqlite3.Cursor):
        def execute(self, sql: str, *values: Any) -> Any:
            found[sql] += 1
            return super().execute(sql, *values)

        def executemany(self, sql: str, *values: Any) -> Any:
            found[sql] += 1
            return super().executemany(sql, *values)

    class RecordingConnection(sqlite3.Connection):
        def cursor(self, factory: Any = RecordingCursor) -> Any:
            return super().cursor(factory)

        def execute(self, sql: str, *values: Any) -> Any:
            return self.cursor().execute(sql, *values)

    connect: Any = sqlite3.connect

    def recording(database: Any, *arguments: Any, **options: Any) -> sqlite3.Connection:
        if Path(str(database)).name in names:
            options["factory"] = RecordingConnection
        opened: sqlite3.Connection = connect(database, *arguments, **options)
        return opened

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", recording)
        patch.setattr(sqlite3.dbapi2, "connect", recording)
        yield found


def logged(log: str) -> set[str]:
    """Return the statements in the log of a PostgreSQL server with `log_statement = 'all'`."""
    found: set[str] = set()
    for entry in re.split(r"\n(?!\t)", log):
        if (line := _ENTRY.match(entry)) and line[1] == "LOG" and (sent := _STATEMENT.match(line[2])):
            # The server indents further lines of a statement by a tab.
            found.add(sent[1].replace("\n\t", "\n"))
    return found
