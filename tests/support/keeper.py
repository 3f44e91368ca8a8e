"""Helpers for tests of the keeper: rules, expiring wallets, and records of queries and of calls to the chain."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection

from app.submission.context import Service
from tests.support.plans import listening
from tests.support.service_world import Json, ServiceWorld
from tests.support.sqlite import sqlite_readers

HOUR = 3600.0
PATIENCE = 30.0


def path_of(wallet: Json, rest: str = "") -> str:
    return f"/v1/wallets/{wallet['wallet_id']}{rest}"


async def expiring(world: ServiceWorld, seconds: float = HOUR) -> Json:
    """Create a wallet with a policy that expires this many seconds after the chain's current time."""
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(world.clock() + seconds))
    return await world.wallet((await world.policy(expiry=moment))["policy_id"], funds=None)


async def set_rule(world: ServiceWorld, wallet: Json, below: str, amount: str) -> None:
    body = {"enabled": True, "triggerBelow": below, "topupAmount": amount}
    await world.ok("PUT", path_of(wallet, "/auto-topup"), body)


async def shown(world: ServiceWorld, wallet: Json) -> tuple[str, str]:
    """Return the wallet's status and balance, after bringing the read models up to date."""
    await world.catch_up()
    shown = await world.ok("GET", path_of(wallet))
    return shown["status"], shown["usdc_balance"]


async def fundings_of(world: ServiceWorld, wallet: Json) -> list[str]:
    await world.catch_up()
    rows = (await world.ok("GET", path_of(wallet, "/transactions?type=funding")))["data"]
    return sorted(row["amount"] for row in rows)


async def events_of(world: ServiceWorld, wallet: Json, name: str) -> list[Json]:
    """Return the events of this name about the wallet."""
    await world.catch_up()
    query = f"event={name}&wallet_id={wallet['wallet_id']}"
    return list((await world.ok("GET", f"/v1/events?{query}"))["data"])


_IN_THE_BACKGROUND = ("setting_values", "webhook", "alert_mails", "export")
"""Texts that identify the statements run every second by other parts of the service."""


@contextmanager
def calls_of(service: Service) -> Iterator[list[str]]:
    """Collect the chain methods that the service, but not its indexer, calls inside the context."""
    found: list[str] = []
    call = service.chain.call

    async def note(method: str, params: list[Any]) -> Any:
        found.append(method)
        return await call(method, params)

    service.chain.call = note  # type: ignore[method-assign]
    try:
        yield found
    finally:
        service.chain.call = call  # type: ignore[method-assign]


@contextmanager
def queries_of(service: Service) -> Iterator[list[str]]:
    """Collect the statements that read the database.

    Ignores the statements that other parts of the service run in the background.
    """
    found: list[str] = []

    engine = sqlite_readers(service.db)

    def note(conn: Connection, statement: str, _values: Any) -> None:
        if conn.engine is engine and not any(one in statement for one in _IN_THE_BACKGROUND):
            found.append(statement)

    with listening(note):
        yield found


def asks_history(method: str) -> bool:
    """Return True if a method is one that the indexer uses to read past transactions."""
    return method in {"getSignaturesForAddress", "getTransaction"}
