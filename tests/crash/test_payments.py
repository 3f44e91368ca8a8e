"""Kill -9 of `serve` under load: nothing confirmed is lost, nothing is paid twice, no micro-USDC appears or vanishes.

It is killed 5 times, with `--full` 51 times: in turn between storing and sending a payment, between sending and
answering it, and anywhere.
"""

import asyncio
import contextlib
import itertools
import random
import signal
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from solders.keypair import Keypair

from app.core.money import parse_usdc
from tests.support.processes import PATIENCE, Serve, exit_code, serving

_KILLS, _MANY_KILLS = 5, 51
_IN_FLIGHT = 20
_WALLETS = 4
_TOTAL = 1_000_000_000_000

#: Runs `serve` and, armed by a signal, kills it at the given payment: before or after the chain gets it.
_LAUNCHER = """
import os, signal, sys
from app.submission.submitter import Submitter
moment, count = sys.argv[1], int(sys.argv[2])
send, seen, armed = Submitter._post, 0, False
def arm(*_):
    global armed
    armed = True
signal.signal(signal.SIGUSR1, arm)
async def deadly(self, attempt):
    global seen
    seen += armed and attempt.type == "payment"
    if moment == "stored" and seen == count:
        os.kill(os.getpid(), signal.SIGKILL)
    outcome = await send(self, attempt)
    if moment == "sent" and seen >= count:
        os.kill(os.getpid(), signal.SIGKILL)
    return outcome
Submitter._post = deadly
from app.commands.main import main
main(sys.argv[3:])
"""


@dataclass
class Ledger:
    """What a client knows: its orders by idempotency key, and the answers."""

    orders: dict[str, dict[str, Any]] = field(default_factory=dict)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)


async def _order(serve: Serve, ledger: Ledger, key: str) -> None:
    with contextlib.suppress(httpx.HTTPError):
        headers = {"Idempotency-Key": key}
        response = await serve.client.post("/v1/payments", json=ledger.orders[key], headers=headers)
        if response.status_code == 200:
            ledger.answers[key] = response.json()


async def _answer_everything(serve: Serve, ledger: Ledger) -> None:
    """Repeat what has no answer until it has one."""
    async with asyncio.timeout(PATIENCE):
        while missing := [key for key in ledger.orders if key not in ledger.answers]:
            await asyncio.gather(*(_order(serve, ledger, key) for key in missing))


async def _balance(serve: Serve, owner: str) -> int:
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "getTokenAccountsByOwner",
        "params": [owner, {"programId": "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA"}, {"encoding": "jsonParsed"}],
    }
    async with httpx.AsyncClient() as client:
        found = (await client.post(serve.rpc, json=body)).json()["result"]["value"]
    return sum(int(one["account"]["data"]["parsed"]["info"]["tokenAmount"]["amount"]) for one in found)


async def _check(serve: Serve, ledger: Ledger, payee: str, org: str) -> None:
    confirmed: dict[str, list[dict[str, Any]]] = {}
    cursor: dict[str, str] = {}
    while True:
        query = {"type": "payment", "status": "confirmed", "limit": "100", **cursor}
        page = (await serve.client.get("/v1/transactions", params=query)).json()
        for row in page["data"]:
            confirmed.setdefault(row["memo"], []).append(row)
        if not page["has_more"]:
            break
        cursor = {"cursor": page["next_cursor"]}
    for key, answer in ledger.answers.items():
        rows = confirmed.get(key, [])
        assert [row["tx_id"] for row in rows] == [answer["tx_id"]], (key, answer, rows)
    wallets = (await serve.client.get("/v1/wallets", params={"limit": "100"})).json()["data"]
    owners = [payee, org, *(wallet["chain_address"] for wallet in wallets)]
    assert sum([await _balance(serve, owner) for owner in owners]) == _TOTAL
    paid = sum(parse_usdc(order["amount"]) for order in ledger.orders.values())
    assert await _balance(serve, payee) == paid


@pytest.mark.proves("Idempotency: Crashes")
async def test_kill_under_load_loses_nothing_and_pays_nothing_twice(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kills = _MANY_KILLS if request.config.getoption("--full") else _KILLS
    ledger, payee, numbers = Ledger(), str(Keypair().pubkey()), itertools.count(1)
    wallets: list[str] = []
    moments = itertools.cycle(["stored", "sent", "any"])
    for kill in range(kills + 1):
        moment = next(moments) if kill < kills else "never"
        count = str(random.randint(2, _IN_FLIGHT - 2))
        async with serving(tmp_path, _LAUNCHER, moment, count, AGENT_VAULT_RATE_LIMIT="0") as serve:
            if not wallets:
                wallets += await _make_wallets(serve)
            # Given a restart, what was confirmed is there
            for answer in ledger.answers.values():
                shown = (await serve.client.get(f"/v1/payments/{answer['tx_id']}")).json()
                assert shown["status"] == "confirmed" or answer["status"] == "pending", shown
            if moment == "never":
                await _answer_everything(serve, ledger)
                [org] = _organisations(tmp_path)
                async with asyncio.timeout(PATIENCE):
                    while await _pending(serve):  # noqa: ASYNC110 - asks over HTTP
                        await asyncio.sleep(0.1)
                await _check(serve, ledger, payee, org)
                return
            unanswered = [key for key in ledger.orders if key not in ledger.answers]
            # When it is killed with payments in flight
            for _ in range(_IN_FLIGHT):
                number = next(numbers)
                key = f"order-{number}"
                ledger.orders[key] = {
                    "walletId": wallets[number % _WALLETS],
                    "to": payee,
                    "amount": f"0.{number:06}",
                    "currency": "USDC",
                    "memo": key,
                }
                unanswered.append(key)
            serve.process.send_signal(signal.SIGUSR1)
            load = asyncio.gather(*(_order(serve, ledger, key) for key in unanswered))
            if moment == "any":
                await asyncio.sleep(random.uniform(0.01, 0.25))
                serve.process.kill()
            await exit_code(serve.process)
            await load


async def _make_wallets(serve: Serve) -> list[str]:
    made = []
    for number in range(_WALLETS):
        body = {"agentId": f"load-{number}", "label": "Load", "policyId": "pol_permissive"}
        wallet = (await serve.client.post("/v1/wallets", json=body)).json()["wallet_id"]
        funded = await serve.client.post(f"/v1/wallets/{wallet}/fund", json={"amount": "1000"})
        assert funded.status_code == 200, funded.text
        made.append(wallet)
    return made


def _organisations(data: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(data / "agent-vault.db")) as conn:
        return [row[0] for row in conn.execute("SELECT org FROM organisations")]


async def _pending(serve: Serve) -> list[dict[str, Any]]:
    return list((await serve.client.get("/v1/transactions?type=payment&status=pending")).json()["data"])
