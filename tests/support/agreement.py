"""Compares the records of a service, of its fleet and of the chain after a period of faults."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import httpx
from solders.pubkey import Pubkey

from app.chain.client import ChainClient
from app.chain.transport import HttpTransport
from app.core.money import parse_usdc
from app.verifier.verify import verify
from idl.codec import load
from indexer import Indexer, StoredEvent
from tests.support.escrows import A2A
from tests.support.fleet import Fleet

_EXPORTED = 60.0


class Deployed(Protocol):
    """Running processes.

    `chain` reads the chain without the faults, `client` has an admin's key, `folder` is for files.
    """

    @property
    def folder(self) -> Path: ...
    @property
    def chain(self) -> ChainClient: ...
    @property
    def chain_url(self) -> str: ...
    @property
    def client(self) -> httpx.AsyncClient: ...


async def history(deployment: Deployed) -> list[StoredEvent]:
    """Return the program's events, read from the chain without the faults and without the service."""
    transport = HttpTransport(deployment.chain_url)
    truth = Indexer(transport=transport, codec=load(), db_path=deployment.folder / "truth.db")
    try:
        await truth.catch_up()
        return await truth.changes(0, 10**9)
    finally:
        await truth.stop()
        await transport.aclose()


def _moved(events: list[StoredEvent], name: str) -> Counter[int]:
    """Return the number of events with this name, by the amount that the event moved out of a vault."""
    return Counter(event.data["amount"] for event in events if event.name == name)


async def within(seconds: float, differences: Callable[[], Awaitable[list[str]]]) -> list[str]:
    """Return the differences left after this many seconds. Returns early once there are none."""
    end = time.monotonic() + seconds
    while (found := await differences()) and time.monotonic() < end:  # noqa: ASYNC110 - asks over HTTP
        await asyncio.sleep(0.5)
    return found


async def unlike_the_chain(deployment: Deployed, fleet: Fleet) -> list[str]:
    """Return the differences between the service's transactions and wallets and the events and vaults on the chain."""
    events = await history(deployment)
    found = []
    for type_, name in (("payment", "PaymentExecuted"), ("escrow_lock", "EscrowCreated")):
        rows = await fleet.listed(f"/v1/transactions?type={type_}&status=confirmed")
        shown = Counter(parse_usdc(row["amount"]) for row in rows)
        landed = _moved(events, name)
        found += [f"{type_} {micro}: {count} rows too many" for micro, count in (shown - landed).items()]
        found += [f"{type_} {micro}: {count} rows missing" for micro, count in (landed - shown).items()]
    for one in fleet.agents:
        shows = await fleet.read(f"/v1/wallets/{one.id}")
        vault = await deployment.chain.account(shows["chain_address"])
        assert vault is not None
        account = vault.decode(load()).data
        holds = await deployment.chain.token_balance(Pubkey.from_string(str(account["tokens"])))
        if parse_usdc(shows["usdc_balance"], allow_zero=True) != holds:
            found.append(f"wallet {one.id} shows {shows['usdc_balance']}, its vault holds {holds}")
        if (shows["status"] == "frozen") != bool(account["frozen"]):
            found.append(f"wallet {one.id} shows {shows['status']}, frozen on the chain: {account['frozen']}")
    return found


async def export_problems(deployment: Deployed, fleet: Fleet) -> list[str]:
    """Return the problems that `agent-vault verify` finds in an export of everything."""
    made = (await deployment.client.post("/v1/transactions/export", json={"format": "json"})).json()
    async with asyncio.timeout(_EXPORTED):
        path = f"/v1/transactions/exports/{made['export_id']}"
        while (ready := await fleet.read(path))["status"] != "ready":  # noqa: ASYNC110 - asks over HTTP
            await asyncio.sleep(0.2)
    export = deployment.folder / "export.json"
    export.write_bytes((await deployment.client.get(ready["download_url"])).content)
    transport = HttpTransport(deployment.chain_url)
    try:
        return (await verify(export, transport, None)).problems
    finally:
        await transport.aclose()


async def wronged(deployment: Deployed, fleet: Fleet, events: list[StoredEvent]) -> list[str]:
    """Return the fleet's orders with a missing or wrong last answer, and the amounts that were paid more than once."""
    landed = _moved(events, "PaymentExecuted") + _moved(events, "EscrowCreated")
    signatures = {event.signature for event in events}
    found = [f"paid {count} times: 0.{micro:06}" for micro, count in landed.items() if count > 1 and micro < 10**6]
    for order in fleet.orders:
        if order.answer is None:
            found.append(f"no final answer: {order}")
        if not order.micro or order.answer is None:
            continue
        told = order.answer.json()
        if not order.accepted and landed[order.micro]:
            found.append(f"refused, but it landed: {order}")
        elif order.accepted and told["status"] == "pending":
            shown = await deployment.client.get(f"{order.path}/{told['escrow_id' if order.path == A2A else 'tx_id']}")
            # The id of an escrow that was never made passes to the wallet's next escrow.
            missing = shown.status_code == 404 or shown.json()["tx_id"] != told["tx_id"]
            missing = missing or shown.json()["status"] in {"failed", "pending"}
            if missing == bool(landed[order.micro]) or (shown.status_code == 404 and order.path == "/v1/payments"):
                found.append(f"{order}, now {shown.text}, on the chain {landed[order.micro]} times")
        elif order.accepted and not landed[order.micro]:
            found.append(f"accepted, but it is not on the chain: {order}")
        elif order.accepted and order.path == "/v1/payments" and told["tx_signature"] not in signatures:
            found.append(f"accepted with another signature than the chain's: {order}")
    return found


async def wronged_escrows(fleet: Fleet, events: list[StoredEvent]) -> list[str]:
    """Return completions and disputes with a last answer that contradicts the chain, and escrows in a wrong state."""
    ended = {
        name: {str(event.data["escrow"]) for event in events if event.name == event_name}
        for name, event_name in (("complete", "EscrowSettled"), ("dispute", "EscrowDisputed"))
    }
    found = []
    for order in fleet.orders:
        _, escrow, step = order.path.rsplit("/", 2)
        if step in ended and order.accepted != (fleet.escrows[escrow] in ended[step]):
            found.append(f"the chain contradicts the answer: {order}")
    for escrow, address in fleet.escrows.items():
        on_chain = (
            "released" if address in ended["complete"] else "disputed" if address in ended["dispute"] else "locked"
        )
        shown = (await fleet.read(f"{A2A}/{escrow}"))["status"]
        if shown != on_chain:
            found.append(f"{escrow} is shown as {shown}, on the chain it is {on_chain}")
    return found


async def pending(fleet: Fleet) -> list[str]:
    rows = await fleet.listed("/v1/transactions?status=pending")
    escrows = await fleet.listed(f"{A2A}?status=pending")
    return [str(row) for row in rows + escrows]
