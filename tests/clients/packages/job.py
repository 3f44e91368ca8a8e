"""Uses the installed client for Python: `job.py KIND MODE ARGUMENT...`, with KIND sync or async. Prints JSON."""

import asyncio
import base64
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import agent_vault_client as client

URL, PRICE = os.environ["URL"], "0.01"
STARTED = time.time()


def clock() -> float:
    """Return a time that may be ahead, or pass faster than it does."""
    passed = (time.time() - STARTED) * float(os.environ.get("SPEED", "1"))
    return STARTED + passed + float(os.environ.get("AHEAD", "0"))


OPTIONS: Any = {
    "store": client.FolderStore(os.environ.get("STORE", "store")),
    "clock": clock,
    "deadline": float(os.environ.get("DEADLINE", "60")),
}


def told(error: client.VaultError) -> dict[str, Any]:
    """Return what an error says."""
    names = ["code", "status", "retry_after", "rule", "limit", "attempted", "wallet_id", "payee", "amount"]
    names += ["idempotency_key"]
    return {"error": type(error).__name__, **{name: getattr(error, name) for name in names if hasattr(error, name)}}


@asynccontextmanager
async def opened(kind: str, base_url: str) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """Open a vault, and yield a function that calls the method of a name."""
    key, session = os.environ["KEY"], os.environ["SESSION"]
    options = OPTIONS | {"base_url": base_url, "wallet_id": os.environ.get("WALLET")}
    if kind == "async":
        async with client.AsyncVault(key, session, **options) as patient:
            yield lambda name, *arguments, **more: getattr(patient, name)(*arguments, **more)
    else:
        with client.Vault(key, session, **options) as vault:
            yield lambda name, *arguments, **more: asyncio.to_thread(getattr(vault, name), *arguments, **more)


async def paid(kind: str, base_url: str, order: str) -> dict[str, Any]:
    """Pay an order and return the outcome."""
    try:
        async with opened(kind, base_url) as vault:
            answer = await vault("pay", os.environ["TO"], PRICE, order=order)
    except client.VaultError as error:
        return told(error)
    return {"status": answer["status"], "tx_id": answer["tx_id"], "idempotency_key": client.idempotency_key_of(answer)}


async def together(kind: str, orders: dict[str, str], most: int) -> list[dict[str, Any]]:
    """Pay orders, given with their addresses, so many at a time."""
    if kind == "sync":
        with ThreadPoolExecutor(most) as pool:
            return list(pool.map(lambda order: asyncio.run(paid(kind, orders[order], order)), orders))
    turns = asyncio.Semaphore(most)

    async def one(order: str) -> dict[str, Any]:
        async with turns:
            return await paid(kind, orders[order], order)

    return await asyncio.gather(*map(one, orders))


async def orders(kind: str, count: str) -> list[dict[str, Any]]:
    """Pay orders, eight at a time."""
    return await together(kind, {f"{os.environ['PREFIX']}-{number}": URL for number in range(int(count))}, 8)


async def cases(kind: str, *names: str) -> dict[str, Any]:
    """Pay once at each address below the service's."""
    outcomes = await together(kind, {name: f"{URL}/{name}" for name in names}, len(names))
    return dict(zip(names, outcomes, strict=True))


async def buy(kind: str, *urls: str) -> list[dict[str, Any]]:
    """Ask for the price of each resource, and buy it."""
    async with opened(kind, URL) as vault:
        found = []
        for url in urls:
            quote, bought = await vault("quote", url), await vault("fetch", url, "0.05")
            payment, resource = bought["payment"], bought["resource"]
            said = {
                "protocol": quote["protocol"],
                "price": quote["price"],
                "key": client.idempotency_key_of(bought) is not None,
            }
            found.append({**said, "status": payment["status"], "tx_id": payment["tx_id"], "body": resource["body"]})
        return found


async def refused(kind: str, url: str) -> dict[str, Any]:
    """Buy a resource that the policy does not allow."""
    async with opened(kind, URL) as vault:
        try:
            await vault("fetch", url, "0.05")
        except client.VaultError as error:
            return told(error)
    raise AssertionError("it was not refused")


async def lock(kind: str, worker: str) -> dict[str, Any]:
    """Lock money for another wallet's task."""
    async with opened(kind, URL) as vault:
        escrow = await vault("escrow", worker, "1.00", "Translate", timeout_seconds=600)
        return {name: escrow[name] for name in ("status", "amount", "to_wallet")}


async def verify(_kind: str, *requests: str) -> list[str]:
    """Verify requests of a webhook: the secret, the headers and the body."""
    found = []
    for request in requests:
        secret, headers, body = json.loads(request)
        try:
            event = client.verify_webhook(base64.b64decode(body), headers, secret)
        except client.SignatureInvalid:
            found.append("invalid")
        else:
            found.append(event["event"])
    return found


async def quickstart(_kind: str, agent_id: str) -> dict[str, Any]:
    """Make a policy, a wallet and a payment, and be refused."""
    admin = client.Admin(os.environ["KEY"], base_url=URL)
    policy = admin.policies.create(name="Quick start", max_per_tx="5.00", max_per_day="20.00")
    wallet = admin.wallets.create(agent_id=agent_id, label="Quick start", policy_id=policy["policy_id"])
    funded = admin.wallets.fund(wallet["wallet_id"], amount="10.00")
    key = admin.keys.create(role="agent", name="Quick start", wallet_id=wallet["wallet_id"])["key"]
    token = admin.wallets.rotate_session_token(wallet["wallet_id"], ttl_seconds=3600)["session_token"]
    vault = client.Vault(key, token, base_url=URL)
    status = vault.pay(os.environ["TO"], "4.50")["status"]
    try:
        vault.pay(os.environ["TO"], "6.00")
    except client.PolicyViolation as refusal:
        refused = {**told(refusal), "remedy": bool(refusal.remedy)}
    rows = [row["amount"] for row in vault.transactions.list(limit=1)]
    return {"balance": funded["usdc_balance"], "status": status, "refused": refused, "rows": rows}


if __name__ == "__main__":
    mode: Any = globals()[sys.argv[2]]
    print(json.dumps(asyncio.run(mode(sys.argv[1], *sys.argv[3:]))))
