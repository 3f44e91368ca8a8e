"""Allowances over HTTP on a validator: spent by the delegate, settled, and settled after a kill -9, too."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.chain.addresses import TOKEN_PROGRAM
from tests.support.allowances import DECIMALS, TRANSFER_CHECKED, USDC
from tests.support.processes import PATIENCE, command, exit_code, free_ports, running
from tests.support.warm import Fork
from tests.validator.chain import ValidatorVm
from tests.validator.node import Node
from tests.validator.service import Faucet

pytestmark = pytest.mark.validator

#: Runs `serve` and kills it right after the second grant was sent, before it can see what became of it.
_LAUNCHER = """
import os, signal, sys
from app.submission.submitter import Submitter
send, grants = Submitter._post, []
async def post(self, attempt):
    answer = await send(self, attempt)
    if attempt.type == "grant_allowance":
        grants.append(attempt)
        if len(grants) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    return answer
Submitter._post = post
from app.commands.main import main
main(sys.argv[1:])
"""


@contextlib.asynccontextmanager
async def _serving(key: str, *place: str) -> AsyncIterator[tuple[Fork, httpx.AsyncClient]]:
    port, _ = free_ports()
    url = f"http://127.0.0.1:{port}"
    async with running(_LAUNCHER, "serve", "--port", str(port), *place, until=b"Agent Vault serves") as process:
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE) as client:
            yield process, client


async def _until_settled(client: httpx.AsyncClient, path: str, count: int) -> list[dict[str, Any]]:
    """Return the wallet's allowances once all are settled and their transfers read, newest first."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found: list[dict[str, Any]] = (await client.get(f"{path}/allowances")).json()["data"]
            read = [one for one in found if one["status"] == "settled" and one["transfers"] is not None]
            if len(read) == len(found) == count:
                return found
            await asyncio.sleep(0.1)


def _transfer(vm: ValidatorVm, mint: Pubkey, granted: dict[str, Any], delegate: Keypair, amount: int) -> None:
    """Pay as a facilitator's client does: by a plain transfer that the delegate signs."""
    named = (granted["token_account"], str(mint), granted["destination"])
    metas = [AccountMeta(Pubkey.from_string(one), is_signer=False, is_writable=one != str(mint)) for one in named]
    metas.append(AccountMeta(delegate.pubkey(), is_signer=True, is_writable=False))
    vm._keys[delegate.pubkey()] = delegate
    vm.succeed(Instruction(TOKEN_PROGRAM, bytes([TRANSFER_CHECKED, *amount.to_bytes(8, "little"), DECIMALS]), metas))


async def test_delegate_pays_and_a_kill_leaves_no_allowance_behind(validator: Node, tmp_path: Path) -> None:
    faucet = Faucet(validator)
    place = ("--data-dir", str(tmp_path), "--rpc-url", validator.url, "--usdc-mint", str(faucet.usdc_mint))
    said = await command("orgs", "create", "allowing", *place)
    [reserve] = re.findall(r"into its reserve: (\w+)", said)
    [key] = re.findall(r"shown only once: (\w+)", said)
    await faucet.mint_usdc(Pubkey.from_string(reserve), 100 * USDC)
    delegate = Keypair()

    async with _serving(key, *place) as (process, client):

        async def post(path: str, body: dict[str, Any]) -> Any:
            response = await client.post(path, json=body)
            assert response.status_code == 200, response.text
            return response.json()

        policy = (await post("/v1/policies", {"name": "A", "allowAllowances": True}))["policy_id"]
        wallets = [{"agentId": name, "label": name, "policyId": policy} for name in ("payer", "payee")]
        payer, payee = [await post("/v1/wallets", one) for one in wallets]
        path = f"/v1/wallets/{payer['wallet_id']}"
        await post(f"{path}/fund", {"amount": "50", "currency": "USDC"})
        body = {"amount": "6", "destination": payee["chain_address"], "delegate": str(delegate.pubkey())}
        # When the delegate spends a part of an allowance, and it is settled
        granted = await post(f"{path}/allowances", {**body, "expiresIn": 120})
        await asyncio.to_thread(_transfer, ValidatorVm(validator), faucet.usdc_mint, granted, delegate, 2 * USDC)
        settled = await post(f"{path}/allowances/{granted['allowance_id']}/settle", {})
        # Then the program's answer and what the token account shows agree
        assert (settled["spent_amount"], settled["returned_amount"]) == ("2.00", "4.00")
        [found] = await _until_settled(client, path, 1)
        assert len(found["transfers"]) == 1
        assert (await client.get(path)).json()["usdc_balance"] == "48.00"

        # When the service is killed as the next one is granted
        with contextlib.suppress(httpx.HTTPError):
            await client.post(f"{path}/allowances", json={**body, "expiresIn": 5})
        assert await exit_code(process) == -9

    # Then its next run settles it
    async with _serving(key, *place) as (_, client):
        latest, _ = await _until_settled(client, path, 2)
        assert (latest["spent_amount"], latest["returned_amount"]) == ("0.00", "6.00")
        assert (await client.get(path)).json()["usdc_balance"] == "48.00"
        events = (await client.get("/v1/events?limit=100")).json()["data"]
        assert not {"allowance.overdue", "allowance.discrepancy"} & {one["event"] for one in events}
