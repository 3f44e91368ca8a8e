"""The connection to a PostgreSQL server: its address, the pool of connections, and the conversion of values."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from pydantic_core import from_json, to_json
from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from app.core.paths import ConfigurationError
from app.database.postgres._calls import track_sockets
from app.database.statements import SENDER, send_deferred

SETTING = "AGENT_VAULT_DATABASE_URL"
READERS = 7
"""Number of connections for short reads of several statements."""
SCANNERS = 4
"""Number of connections for reads that may take long, such as exports."""
_OTHERS = 5
"""One connection each for the writer, long writes, single queries, statements that wait for no writer, and
commands."""
_SPARE = 4
_POOL_PATIENCE = 5.0
_CONNECTION = {
    "application_name": "agent-vault",
    # This overrides the defaults of the database, the account and the environment, because texts are in all languages.
    "client_encoding": "utf8",
    "connect_timeout": 5,
    # With these values, a network that loses all packets is noticed after half a minute, even during a response.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 20_000,
}


def _parsed(url: str, setting: str = SETTING) -> URL:
    if "," in url.partition("//")[2].partition("/")[0].rpartition("@")[2]:
        raise ConfigurationError(f"{setting} names several hosts: give a single host that leads to the primary")
    try:
        parsed = make_url(url.strip())
    except (ArgumentError, ValueError):
        raise ConfigurationError(f"{setting} is not an address such as postgresql://user@host:5432/database") from None
    if "\0" in parsed.render_as_string(hide_password=False).replace("%00", "\0"):
        raise ConfigurationError(f"{setting} contains a NUL character")
    if parsed.drivername not in {"postgresql", "postgres"}:
        raise ConfigurationError(f"{setting} must begin with postgresql://")
    host = unquote(parsed.host or "")
    if any(one.isspace() for one in host):
        raise ConfigurationError(f"{setting} has a space in its host")
    if "@" in host:
        # The text before the last @ may be the end of a password, so it is not shown.
        raise ConfigurationError(f"{setting} has more than one @: write an @ in the user or password as %40")
    if host.startswith("/"):
        # Like libpq, accept the folder of a Unix socket in place of a host.
        given = {"host": host} | ({"port": str(parsed.port)} if parsed.port else {})
        parsed = URL.create(
            parsed.drivername,
            parsed.username,
            parsed.password,
            database=parsed.database,
            query={**parsed.query, **given},
        )
    return parsed.set(drivername="postgresql+psycopg")


def database_name(url: str) -> str:
    """Return the name of the database for messages. Raises ConfigurationError if its address is invalid."""
    parsed = _parsed(url)
    hosts = parsed.host or parsed.query.get("host") or "this machine"
    host = hosts if isinstance(hosts, str) else ", ".join(hosts)
    return f"database {parsed.database or parsed.username or ''} on {host}"


def engine_of(url: str, *, prepare_threshold: int = 5) -> Engine:
    """Return the engine with its pool, which connects at the first use.

    Raises ConfigurationError if the address is invalid or psycopg is not installed.
    """
    try:
        # Use SQLAlchemy's pool, because it checks all connections once one connection is lost. After a restart of the
        # server, all of them are unusable.
        engine = create_engine(
            _parsed(url),
            pool_size=READERS + SCANNERS + _OTHERS,
            max_overflow=_SPARE,
            pool_timeout=_POOL_PATIENCE,
            pool_use_lifo=True,
            # psycopg would deallocate all prepared statements after a rollback, even the `Sender`'s.
            connect_args={**_CONNECTION, "prepare_threshold": None},
            json_serializer=lambda value: to_json(value).decode(),
            json_deserializer=from_json,
            use_native_hstore=False,
            # Bound values include memos, responses and signed transactions, which must not appear in messages or logs.
            hide_parameters=True,
        )
    except (ImportError, NoSuchModuleError):
        raise ConfigurationError(f"{SETTING} needs psycopg: pip install 'agent-vault[postgresql]'") from None

    from psycopg import Binary  # noqa: PLC0415 - optional
    from psycopg.adapt import Dumper  # noqa: PLC0415
    from psycopg.postgres import types  # noqa: PLC0415
    from psycopg.types.numeric import NumericLoader  # noqa: PLC0415
    from psycopg.types.string import StrDumperUnknown  # noqa: PLC0415

    from app.database.postgres._statements import READ_ONLY, Preparation, Sender  # noqa: PLC0415 - psycopg is optional

    preparation = Preparation(prepare_threshold)

    class _WholeNumber(NumericLoader):
        """Loads sums as integers: PostgreSQL adds up integers to `numeric`, but the tables contain no fractions."""

        def load(self, data: Any) -> Any:
            found = super().load(data)
            assert isinstance(found, Decimal)
            return int(found) if found == found.to_integral_value() else found

    class _Text(StrDumperUnknown):
        """Replaces NUL by U+FFFD, because PostgreSQL cannot store NUL.

        Text that is received with NUL is stored with the replacement. A search for text with NUL therefore finds texts
        with the replacement.
        """

        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\0", "\ufffd"))

    class _Hexadecimal(Dumper):
        """Dumps bytes as hexadecimal: psycopg's dumper escapes backslashes if `standard_conforming_strings` is off."""

        oid = types["bytea"].oid

        def dump(self, obj: Any) -> Any:
            return b"\\x" + bytes(obj.obj if isinstance(obj, Binary) else obj).hex().encode()

    @event.listens_for(engine, "connect")
    def configure(connection: Any, record: Any) -> None:
        connection.adapters.register_loader("numeric", _WholeNumber)
        connection.adapters.register_dumper(str, _Text)
        for kind in (bytes, bytearray, memoryview, Binary):
            connection.adapters.register_dumper(kind, _Hexadecimal)
        record.info[SENDER] = Sender(connection, preparation)

    track_sockets(engine)

    @event.listens_for(engine, "handle_error")
    def lose(context: Any) -> None:
        # Give up the connection, as a `Sender` does.
        if getattr(context.original_exception, "sqlstate", None) == READ_ONLY:
            context.is_disconnect = True

    @event.listens_for(engine, "before_cursor_execute")
    def send(connection: Any, *_statement: Any) -> None:
        send_deferred(connection)

    return engine


def require_address(url: str, setting: str) -> None:
    """Raise ConfigurationError unless this is the address of a database. ``setting`` is its name for messages."""
    _parsed(url, setting)


PLACE = "SELECT current_database() || ' of the server begun at ' || extract(epoch FROM pg_postmaster_start_time())"
"""The query for the identity of the database and server at the other end of a connection."""


@asynccontextmanager
async def listening(
    url: str, channel: str, heard: Callable[[str], object], *, at: str | None = None
) -> AsyncIterator[asyncio.Future[None]]:
    """Listen to a channel; ``heard`` is called in the event loop with each text.

    Yields a future that fails once the connection is lost. Raises OSError if the connection fails, or if the context
    raises the future's error. Also raises OSError if ``at`` is given and the result of `PLACE` on the reached database
    differs from it.
    """
    import psycopg  # noqa: PLC0415 - optional

    address = _parsed(url).set(drivername="postgresql").render_as_string(hide_password=False)
    options: Any = {**_CONNECTION, "application_name": "agent-vault-listener"}
    try:
        async with await psycopg.AsyncConnection.connect(address, autocommit=True, **options) as connection:
            [place] = await (await connection.execute(PLACE)).fetchone() or [None]
            if at is not None and place != at:
                raise OSError(f"listens to a different database ({place}) than the service ({at})")
            await connection.execute(f"LISTEN {channel}")
            with _notifying(connection.pgconn, heard) as lost:
                yield lost
    except psycopg.Error as error:
        # Omit the address, because it may contain a password.
        raise OSError(str(error).splitlines()[0] if str(error) else type(error).__name__) from None


@contextmanager
def _notifying(libpq: Any, heard: Callable[[str], object]) -> Iterator[asyncio.Future[None]]:
    """Pass the texts of notifications to ``heard``. Yield a future that fails when the notifications end.

    psycopg's own iterator waits for the socket again for each notification, which costs as much as a statement.
    """
    # Use a duplicate handle: when the connection is lost, libpq closes its own handle immediately, and another
    # connection may get the same number before this one is removed from the event loop.
    loop, number = asyncio.get_running_loop(), os.dup(libpq.socket)
    lost: asyncio.Future[None] = loop.create_future()

    def collect() -> None:
        try:
            libpq.consume_input()
            while (one := libpq.notifies()) is not None:
                heard(one.extra.decode(errors="replace"))
        except Exception as error:  # noqa: BLE001 - raised by the future
            loop.remove_reader(number)
            if not lost.done():
                lost.set_exception(error)

    loop.add_reader(number, collect)
    try:
        yield lost
    finally:
        loop.remove_reader(number)
        os.close(number)
        # Retrieve the exception, because no caller may have waited for the future.
        if not lost.cancel() and not lost.cancelled():
            lost.exception()
