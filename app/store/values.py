"""Single values that the service stores under a name, such as its chain's genesis hash."""

from sqlalchemy import Connection, select

from app.database.columns import upsert
from app.store.state_tables import setting_values as table


def get_value(connection: Connection, name: str) -> str | None:
    """Return the value with this name, or None."""
    return connection.scalar(select(table.c.value).where(table.c.name == name))


def put_value(connection: Connection, name: str, value: str) -> None:
    """Store a value under a name."""
    upsert(connection, table, {"name": name, "value": value}, keys=["name"])
