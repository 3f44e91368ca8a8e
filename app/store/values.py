"""Single values that the service stores under a name, such as its chain's genesis hash."""

from sqlalchemy import Connection, select

from app.database.columns import upsert
from app.store.state_tables import setting_values as table

_CLOCK_AHEAD = "test_clock_ahead"


def get_value(connection: Connection, name: str) -> str | None:
    """Return the value with this name, or None."""
    return connection.scalar(select(table.c.value).where(table.c.name == name))


def put_value(connection: Connection, name: str, value: str) -> None:
    """Store a value under a name."""
    upsert(connection, table, {"name": name, "value": value}, keys=["name"])


def clock_ahead(connection: Connection) -> int:
    """Return the test clock's lead over the host's clock, in seconds."""
    return int(get_value(connection, _CLOCK_AHEAD) or 0)


def put_clock_ahead(connection: Connection, seconds: int) -> None:
    """Store the lead that `clock_ahead` returns."""
    put_value(connection, _CLOCK_AHEAD, str(seconds))
