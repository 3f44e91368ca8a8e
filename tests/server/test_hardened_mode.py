"""A service without the authority's key: every change is signed by `agent-vault sign` with a key kept elsewhere."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from solders.keypair import Keypair

from app.commands.main import main
from app.core.signers import create_key, read_key
from tests.support.processes import free_ports, running, serving
from tests.support.unowned import unowned
from tests.support.warm import COMMAND_LINE

Json = dict[str, Any]


@dataclass
class Office:
    """A hardened service's data folder, and the place where the authority's key is."""

    data: Path
    safe: Path
    client: httpx.AsyncClient
    rpc: str

    async def run(self, *arguments: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, main, arguments)

    async def done(self, *arguments: str) -> str:
        result = await self.run(*arguments)
        assert result.exit_code == 0, result.output
        return result.output

    async def command(self, *arguments: str) -> str:
        return await self.done(*arguments, "--data-dir", str(self.data))

    async def ok(self, method: str, path: str, body: Json | None = None) -> Json:
        response = await self.client.request(method, path, json=body)
        assert response.status_code == 200, response.text
        answer: Json = response.json()
        return answer

    async def signed(self, file: Path, *shown: str, key: str = "authority", node: bool = False) -> Json:
        """Sign a file, and send the result; `shown` is what the signer must read."""
        out = file.with_suffix(".signed")
        asks = ["--rpc-url", self.rpc] if node else []
        command = ["sign", str(file), "--keypair", str(self.safe / f"{key}.json"), "--out", str(out), "--yes", *asks]
        result = await self.run(*command)
        assert result.exit_code == 0, result.output
        for text in shown:
            assert text in result.stderr, result.stderr
        return await self.ok("POST", "/v1/signed-transactions", json.loads(out.read_text()))

    async def changed(self, name: str, method: str, path: str, body: Json, *shown: str, node: bool = False) -> Json:
        """Ask for a change, sign and send it, and return its answer."""
        answer = await self.ok(method, f"{path}?sign=offline", body)
        assert answer["status"] == "awaiting_signature"
        file = self.safe / f"{name}.json"
        file.write_text(json.dumps(answer))
        return await self.signed(file, *shown, node=node)

    async def command_signed(self, name: str, *arguments: str, shown: tuple[str, ...], key: str = "authority") -> None:
        file = self.safe / f"{name}.json"
        await self.command(*arguments, "--offline", str(file))
        await self.signed(file, *shown, key=key, node=True)


@contextlib.asynccontextmanager
async def _serving_again(data: Path) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    port, rpc_port = free_ports()
    options = ("serve", "--data-dir", str(data), "--port", str(port), "--localnet-port", str(rpc_port))
    async with running(COMMAND_LINE, *options, until=b"Embedded chain") as process:
        headers = {"Authorization": f"Bearer {(data / 'admin-api-key').read_text().strip()}"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=20) as client:
            yield client, f"http://127.0.0.1:{rpc_port}"
        process.terminate()
        await process.wait()


async def test_every_change_is_signed_elsewhere(tmp_path: Path) -> None:
    data, safe = tmp_path / "data", tmp_path / "safe"
    safe.mkdir()
    async with serving(data, COMMAND_LINE) as first:
        first.process.terminate()
        await first.process.wait()
    (data / "keys" / "authority.json").rename(safe / "authority.json")
    (data / "keys" / "arbiter.json").rename(safe / "arbiter.json")

    async with _serving_again(data) as (client, rpc):
        office = Office(data, safe, client, rpc)
        await _changes(office)
        await _withdraws(office)
        await _rotates_operator(office)

    async with _serving_again(data) as (client, rpc):
        office = Office(data, safe, client, rpc)
        organization = await office.ok("GET", "/v1/organization")
        operator = read_key(data / "keys" / "operator.json").pubkey()
        assert organization["roles"]["operator"] == str(operator)
        await _pays(office)
        await _exchanges_authority(office)
        assert "new key" in await office.command("roles", "rotate", "fee-payer")

    async with _serving_again(data) as (client, rpc):
        office = Office(data, safe, client, rpc)
        payer = read_key(data / "keys" / "fee-payer.json").pubkey()
        assert (await office.ok("GET", "/v1/organization"))["roles"]["fee_payer"] == str(payer)
        await _pays(office)
        (safe / "authority.json").unlink()
        (safe / "next.json").rename(safe / "authority.json")
        await office.changed("last", "POST", "/v1/policies", {"name": "By the new authority"})


async def _changes(office: Office) -> None:
    body: Json = {"name": "Signed", "maxPerTx": "5"}
    made = await office.changed("create", "POST", "/v1/policies", body, "Create a policy", "max_per_tx: 5.00")
    path = f"/v1/policies/{made['policy_id']}"
    entry = str(Keypair().pubkey())
    change: Json = {"maxPerTx": "7", "allowedRecipients": [entry]}
    shown: tuple[str, ...]
    shown = (
        "max_per_tx is now 5.00",
        "max_per_tx: 7.00",
        entry,
        "restricted is now no",
        "Claims of the file, not proved",
    )
    assert (await office.changed("update", "PATCH", path, change, *shown))["max_per_tx"] == "7.00"
    other = str(Keypair().pubkey())
    shown = (f"no longer allowed: {entry}", f"{other}", "max_per_tx is now 7.00 USDC (unchanged)", office.rpc)
    await office.changed("list", "PATCH", path, {"allowedRecipients": [other]}, *shown, node=True)
    [wallet, *_] = (await office.ok("GET", "/v1/wallets"))["data"]
    place = f"/v1/wallets/{wallet['wallet_id']}"
    await office.ok("PATCH", place, {"status": "frozen"})
    shown = ("frozen is now by hand", "action: Unfreeze", wallet["chain_address"])
    assert (await office.changed("unfreeze", "PATCH", place, {"status": "active"}, *shown))["status"] == "active"
    await _changes_budget(office, wallet)


async def _changes_budget(office: Office, wallet: Json) -> None:
    limits: Json = {"name": "Team", "maxPerDay": "5", "velocityCap": 3}
    shown: tuple[str, ...] = ("Create a budget", "max_per_day: 5.00", "max_per_month: none")
    made = await office.changed("budget", "POST", "/v1/budgets", limits, *shown)
    path, place = f"/v1/budgets/{made['budget_id']}", f"/v1/wallets/{wallet['wallet_id']}"
    shown = ("max_per_day is now 5.00", "max_per_day: 7.00", "velocity_cap is now 3 (unchanged)")
    assert (await office.changed("raise", "PATCH", path, {"maxPerDay": "7"}, *shown))["max_per_day"] == "7.00"
    assert (await office.ok("PATCH", place, {"budgetId": made["budget_id"]}))["budget_id"] == made["budget_id"]
    assert (await office.ok("PATCH", path, {"status": "frozen"}))["status"] == "frozen"
    shown = ("Unfreeze a budget", "frozen is now yes")
    assert (await office.changed("thaw", "PATCH", path, {"status": "active"}, *shown))["status"] == "active"
    shown = ("Put a wallet into a budget, or take it out", wallet["chain_address"], "new_budget: none")
    assert (await office.changed("leave", "PATCH", place, {"budgetId": None}, *shown))["budget_id"] is None
    shown = ("Delete a budget", "max_per_day is now 7.00")
    assert (await office.changed("delete", "DELETE", path, {}, *shown))["budget_id"] == made["budget_id"]


async def _withdraws(office: Office) -> None:
    owner, before = str(Keypair().pubkey()), await office.ok("GET", "/v1/organization")
    shown = ("amount: 12.50 USDC", f"owned by {owner}", before["reserve_address"], before["organization_address"])
    await office.command_signed("withdraw", "orgs", "withdraw", "12.5", owner, shown=shown)
    after = await office.ok("GET", "/v1/organization")
    assert float(before["reserve_balance"]) - float(after["reserve_balance"]) == 12.5


async def _rotates_operator(office: Office) -> None:
    old = str(read_key(office.data / "keys" / "operator.json").pubkey())
    said = await office.run("roles", "rotate", "operator", "--data-dir", str(office.data))
    assert (said.exit_code, "--offline" in said.output) == (1, True)
    new = str(read_key(office.data / "keys" / "operator.next.json").pubkey())
    shown = (f"operator is now {old}", f"operator: {new}")
    await office.command_signed("operator", "roles", "rotate", "operator", shown=shown)
    said_again = await office.command("roles", "rotate", "operator")
    assert "Restart" in said_again
    assert "Rotate the session token of every wallet" in said_again
    assert str(read_key(office.data / "keys" / "operator.json").pubkey()) == new
    assert str(read_key(office.data / "keys" / "operator.old.json").pubkey()) == old


async def _pays(office: Office) -> None:
    wallets = (await office.ok("GET", "/v1/wallets"))["data"]
    body = {"walletId": wallets[0]["wallet_id"], "to": wallets[1]["chain_address"], "amount": "1", "currency": "USDC"}
    if float(wallets[0]["usdc_balance"]) < 1:
        body |= {"walletId": wallets[1]["wallet_id"], "to": wallets[0]["chain_address"]}
    assert (await office.ok("POST", "/v1/payments", body))["status"] == "confirmed"


async def _exchanges_authority(office: Office) -> None:
    old = str(read_key(office.safe / "authority.json").pubkey())
    new = str(create_key(office.safe / "next.json").pubkey())
    shown = ("pending_authority is now nobody", f"pending_authority: {new}")
    await office.command_signed("propose", "roles", "propose-authority", new, shown=shown)
    shown = (f"authority is now {old}", f"new_authority: {new}")
    await office.command_signed("accept", "roles", "accept-authority", shown=shown, key="next")
    assert f"authority: {new}" in await office.command("roles", "show")


@pytest.mark.proves("action organization.roles", "action organization.withdraw")
async def test_changes_of_roles_are_signed_by_key_files(tmp_path: Path) -> None:
    async with serving(tmp_path, COMMAND_LINE) as serve:
        office = Office(tmp_path, tmp_path / "safe", serve.client, serve.rpc)
        office.safe.mkdir()
        arbiter, wrong = str(Keypair().pubkey()), office.safe / "wrong.json"
        create_key(wrong)
        folder = ("--data-dir", str(tmp_path))
        refused = [
            (["roles", "set", *folder], 2),
            (["roles", "set", "--operator", "x", *folder], 2),
            (["roles", "set", "--arbiter", arbiter, "--keypair", str(wrong), *folder], 1),
            (["roles", "set", "--arbiter", arbiter, "--keypair", str(wrong), "--offline", "x", *folder], 2),
            (["roles", "set", "--arbiter", arbiter, "--offline", str(wrong), *folder], 1),
            (["roles", "accept-authority", *folder], 1),
            (["roles", "set", "--arbiter", arbiter, "--org", "unknown", *folder], 1),
            (["orgs", "withdraw", "1000000000", arbiter, *folder], 1),
            (["orgs", "withdraw", "1", unowned(), *folder], 1),
            (["orgs", "withdraw", "-1", arbiter, *folder], 2),
            (["roles", "show", "--data-dir", str(tmp_path / "none")], 1),
        ]
        for arguments, code in refused:
            result = await office.run(*arguments)
            assert result.exit_code == code, (arguments, result.output)
            assert "Traceback" not in result.output

        assert arbiter in await office.command("roles", "set", "--arbiter", arbiter)
        assert "Withdrawn" in await office.command("orgs", "withdraw", "1", arbiter)
        next_key = office.safe / "next.json"
        create_key(next_key)
        proposed = str(read_key(next_key).pubkey())
        await office.command("roles", "propose-authority", proposed)
        await office.command("roles", "accept-authority", "--keypair", str(next_key))
        roles = (await office.ok("GET", "/v1/organization"))["roles"]
        assert (roles["arbiter"], roles["authority"]) == (arbiter, proposed)
        entries = (await office.ok("GET", "/v1/audit-log"))["data"][:4]
        assert [(one["action"], one["actor"]["id"]) for one in entries] == [
            *[("organization.roles", "command_line")] * 2,
            ("organization.withdraw", "command_line"),
            ("organization.roles", "command_line"),
        ]
        assert entries[2]["details"]["amount"] == "1.00"
        assert "new key" in await office.command("roles", "rotate", "operator", "--keypair", str(next_key))
        error = await serve.client.post("/v1/wallets", json={"agentId": "late", "label": "L", "policyId": "pol_locked"})
        assert error.status_code == 503
        assert "start the service again" in error.json()["error"]["message"]
