"""An organisation with as many wallets as a test needs, by copies of one wallet's rows."""

from sqlalchemy import Connection

#: What is different in every copy of a row.
_UNIQUE = {"wallets": ("wallet_id", "vault"), "wallet_details": ("wallet_id", "vault", "agent_id")}


def multiply(connection: Connection, wallet_id: str, count: int) -> None:
    """Copy a wallet's rows; the copies are called `copy 1` and so on, and have the tag `many`."""
    execute = connection.exec_driver_sql
    for table, names in _UNIQUE.items():
        columns = [row[1] for row in execute(f"PRAGMA table_info({table})")]
        chosen = ", ".join(f"{one} || n" if one in names else one for one in columns)
        chosen = chosen.replace("label", "'copy ' || n") if table == "wallet_details" else chosen
        execute(
            f"WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {count}) "
            f"INSERT INTO {table} SELECT {chosen} FROM {table}, c WHERE wallet_id = '{wallet_id}'"
        )
    execute(f"INSERT INTO wallet_tags SELECT wallet_id, 'many' FROM wallets WHERE wallet_id <> '{wallet_id}'")
