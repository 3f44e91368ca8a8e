"""Many clients repeat the same requests at once over sockets: each has one effect and one answer.

Every key is used by every one of 64 clients; there are 20 keys, with `--full` 100.
"""

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.support.http import listening
from tests.support.service_world import Json, ServiceWorld

_CLIENTS = 64
_KEYS, _MANY_KEYS = 20, 100
_WAIT = 10.0


@dataclass
class Change:
    """A request under a key, its altered form, and the answers to each."""

    key: str
    path: str
    body: Json
    altered: Json
    answers: list[tuple[httpx.Response, float]] = field(default_factory=list)
    conflicts: list[httpx.Response] = field(default_factory=list)


def _changes(count: int, wallet: str, payees: list[str]) -> list[Change]:
    made = []
    for number in range(count):
        kinds: list[tuple[str, Json, Json]] = [
            (
                "/v1/payments",
                {"walletId": wallet, "to": payees[number], "amount": "1", "currency": "USDC"},
                {"amount": "1.000001"},
            ),
            (f"/v1/wallets/{wallet}/fund", {"amount": "0.01", "currency": "USDC"}, {"amount": "0.02"}),
            (
                "/v1/wallets",
                {"agentId": f"load-{number}", "label": "Load", "policyId": "pol_moderate"},
                {"label": "Altered"},
            ),
            ("/v1/policies", {"name": f"Load {number}", "maxPerTx": "5"}, {"maxPerTx": "6"}),
            (
                "/v1/payments/a2a",
                {
                    "fromWallet": wallet,
                    "toWallet": payees[number],
                    "amount": "2",
                    "currency": "USDC",
                    "taskDescription": "Work",
                },
                {"timeoutSeconds": 600},
            ),
        ]
        path, body, other = kinds[number % len(kinds)]
        made.append(Change(f"load-{number}", path, body, {**body, **other}))
    return made


async def _repeat(base: str, key: str, changes: list[Change], seed: int) -> None:
    """Send every request once as one client, in its own order, each followed by the altered one."""
    order = list(changes)
    random.Random(seed).shuffle(order)
    limits = httpx.Limits(max_connections=1)
    authorised = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=base, headers=authorised, limits=limits, timeout=60) as client:
        for change in order:
            headers = {"Idempotency-Key": change.key}
            began = time.monotonic()
            answer = await client.post(change.path, json=change.body, headers=headers)
            change.answers.append((answer, time.monotonic() - began))
            change.conflicts.append(await client.post(change.path, json=change.altered, headers=headers))


@pytest.mark.proves("error idempotency_conflict", "Limits: Wait of a duplicate request", "Idempotency: Repetition")
@pytest.mark.asyncio(loop_scope="module")
async def test_parallel_clients_over_many_keys_have_one_effect_each(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    count = _MANY_KEYS if request.config.getoption("--full") else _KEYS
    async with ServiceWorld(tmp_path, idempotency_wait=_WAIT) as world:
        wallet = (await world.wallet(funds="1000"))["wallet_id"]
        payees = [await world.payee() for _ in range(count)]
        changes = _changes(count, wallet, payees)

        async with listening(world, 60) as port:
            base = f"http://127.0.0.1:{port}"
            await asyncio.gather(
                *(_repeat(base, world.keys["admin"], changes, seed) for seed in range(_CLIENTS)),
            )

        await world.catch_up()
        for change in changes:
            # Every answer is the same, except to those who waited too long for it.
            good = [answer for answer, _ in change.answers if answer.status_code == 200]
            late = [(answer, seconds) for answer, seconds in change.answers if answer.status_code != 200]
            assert len(change.answers) == _CLIENTS
            assert len({answer.content for answer in good}) == 1
            assert Counter(answer.headers.get("idempotent-replayed") for answer in good)[None] == 1
            for answer, seconds in late:
                assert (answer.status_code, answer.json()["error"]["code"]) == (409, "idempotency_in_progress")
                assert seconds >= _WAIT
            told = {(answer.status_code, answer.json()["error"]["code"]) for answer in change.conflicts}
            assert told == {(409, "idempotency_conflict")}
        await _check_effects(world, wallet, changes)


async def _check_effects(world: ServiceWorld, wallet: str, changes: list[Change]) -> None:
    by_path = Counter(change.path for change in changes)
    expected = {
        "payment": by_path["/v1/payments"],
        "funding": by_path[f"/v1/wallets/{wallet}/fund"] + 1,
        "escrow_lock": by_path["/v1/payments/a2a"],
    }
    for kind, count in expected.items():
        page = await world.ok("GET", f"/v1/wallets/{wallet}/transactions?limit=100&type={kind}")
        assert [row["status"] for row in page["data"]] == ["confirmed"] * count
    for change in changes:
        if change.path == "/v1/payments":
            assert await world.balance(change.body["to"]) == 1_000_000
    wallets = (await world.ok("GET", "/v1/wallets?limit=100"))["data"]
    assert sum(one["agent_id"].startswith("load-") for one in wallets) == by_path["/v1/wallets"]
    policies = (await world.ok("GET", "/v1/policies"))["data"]
    assert sum(one["name"].startswith("Load ") for one in policies) == by_path["/v1/policies"]
