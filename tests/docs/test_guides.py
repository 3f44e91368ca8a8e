"""Types the commands of the guides as they are shown, on a service of their own, and looks at what comes back."""

import json
import re
import socket
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from solders.keypair import Keypair
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from app.core.signers import write_secret
from tests.support import http
from tests.support.processes import COMMAND_LINE, Serve, serving
from tests.support.reader import Reader, blocks_of
from tests.support.warm import warmed
from tests.support.webhooks import Receiver

pytestmark = pytest.mark.asyncio(loop_scope="module")

_GUIDES = Path(__file__).resolve().parents[2] / "app/docs/guides"
_BLOCKS = {guide.name: blocks_of(guide) for guide in _GUIDES.glob("*.md")}
_THIS = Path(__file__).read_text(encoding="utf-8")
#: What other tests type, and what needs a program that is not ours.
_ELSEWHERE = {
    "nodes.md": "tests/docs/test_nodes_guide.py",
    "clusters.md": "needs Solana's command line; tests/validator runs the service on such a chain",
    "mcp.md": "needs other people's clients; tests/mcp runs the inspector",
    "tokens.md": "needs a terminal for PINs; tests/remote_signer makes keys in such a token",
}
#: Parts of blocks that need PostgreSQL, run by tests/docs/test_nodes_guide.py and tests/commands/test_database_copy.py.
_ON_POSTGRESQL = ("createdb", "db copy")


@dataclass
class _Story:
    """A running service with something of everything, and the values that stand for those that the guides show."""

    serve: Serve
    folder: Path
    values: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    async def types(self, guide: str, pattern: str, **values: str) -> str:
        """Type the guide's one block that has the pattern; `values` replace what it shows."""
        environment = {**self.environment, "NEW_KEY": str(uuid.uuid4())}
        reader = Reader(self.folder, _BLOCKS[guide], {**values, **self.values}, **environment)
        return await reader.types(pattern)

    async def told(self, guide: str, pattern: str, values: dict[str, str] | None = None) -> list[Any]:
        """Type the block and return the JSON documents that it prints; none is an error."""
        printed = await self.types(guide, pattern, **(values or {}))
        found, decoder = [], json.JSONDecoder()
        while printed := printed.strip():
            one, end = decoder.raw_decode(printed)
            assert "error" not in one, one
            found.append(one)
            printed = printed[end:]
        return found

    async def ok(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        answered = await self.serve.client.request(method, path, json=body, headers=headers)
        assert answered.status_code == 200, answered.text
        return answered.json()

    async def wallet(self, name: str, **rules: Any) -> str:
        policy = await self.ok("POST", "/v1/policies", {"name": name, **rules})
        new = {"agentId": name, "label": name, "policyId": policy["policy_id"]}
        made = str((await self.ok("POST", "/v1/wallets", new))["wallet_id"])
        await self.ok("POST", f"/v1/wallets/{made}/fund", {"amount": "100", "currency": "USDC"})
        return made


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="story")
async def _story(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[_Story]:
    folder = tmp_path_factory.mktemp("guides")
    async with serving(folder / "data", COMMAND_LINE) as serve, warmed(folder) as commands:
        one = _Story(serve, folder)
        key = (folder / "data/admin-api-key").read_text().strip()
        wallet = await one.wallet("payer", allowAllowances=True, x402Hosts=["*"])
        agent = await one.ok("POST", "/v1/keys", {"role": "agent", "walletId": wallet, "name": "Agent"})
        token = (await one.ok("POST", f"/v1/wallets/{wallet}/rotate-token", {}))["session_token"]
        one.values = {"wal_…": wallet, "http://127.0.0.1:8402": serve.url}
        one.environment = {
            "PATH": f"{commands}:/usr/local/bin:/usr/bin:/bin",
            "URL": serve.url,
            **dict.fromkeys(("KEY", "OPERATOR_KEY", "ADMIN_KEY"), key),
            "AGENT_KEY": agent["key"],
            "SESSION_TOKEN": token,
            "AGENT_VAULT_DATA_DIR": str(folder / "data"),
        }
        yield one


async def test_every_command_of_a_guide_is_typed_or_says_why_not() -> None:
    for guide, blocks in sorted(_BLOCKS.items()):
        if guide in _ELSEWHERE:
            assert blocks, guide
            continue
        left = [block for block in blocks if any(one in block for one in _ON_POSTGRESQL)]
        assert _THIS.count(f'("{guide}"') == len(blocks) - len(left), guide


async def test_every_command_that_changes_something_sends_an_idempotency_key() -> None:
    changes = 0
    for guide, blocks in _BLOCKS.items():
        for command in re.split(r"\n(?=curl|ask)", "\n".join(blocks)):
            if re.search(r"/v1/", command) and re.search(r" -d | -X ", command):
                changes += 1
                assert re.search(r"[Ii]dempotency-?Key", command), f"{guide}: {command}"
    assert changes >= 15


async def test_rules_of_alerts_are_set(story: _Story) -> None:
    [rules] = await story.told("alerts.md", "v1/alerts")

    assert rules["balance_low"]["threshold"] == "10.00"


async def test_allowance_is_granted_and_settled(story: _Story) -> None:
    payee, delegate = (str(Keypair().pubkey()) for _ in range(2))
    wallet = story.values["wal_…"]
    await story.ok("POST", "/v1/payments", {"walletId": wallet, "to": payee, "amount": "1", "currency": "USDC"})
    shown = {'"destination": "…"': f'"destination": "{payee}"', '"delegate": "…"': f'"delegate": "{delegate}"'}

    [granted] = await story.told("allowances.md", "expiresIn", shown)
    [settled] = await story.told("allowances.md", "/settle", {"alw_…": granted["allowance_id"]})

    assert (granted["status"], settled["status"], settled["spent_amount"]) == ("outstanding", "settled", "0.00")


async def test_approval_is_listed_and_given(story: _Story) -> None:
    wallet = await story.wallet("approved", requireCoSign="1")
    agent = await story.ok("POST", "/v1/keys", {"role": "agent", "walletId": wallet, "name": "Approved"})
    token = (await story.ok("POST", f"/v1/wallets/{wallet}/rotate-token", {}))["session_token"]
    body = {"walletId": wallet, "to": str(Keypair().pubkey()), "amount": "2", "currency": "USDC"}
    headers = {"Authorization": f"Bearer {agent['key']}", "Session-Token": token}
    asked = (await story.serve.client.post("/v1/payments", json=body, headers=headers)).json()["error"]

    listed, given = await story.told("approvals.md", "/approve", {"apr_…": asked["approval_id"]})

    assert [one["approval_id"] for one in listed["data"]] == [asked["approval_id"]]
    assert given["status"] == "approved"


async def test_audit_log_is_read_and_verified(story: _Story) -> None:
    await story.ok("PATCH", f"/v1/wallets/{story.values['wal_…']}", {"status": "frozen"})
    await story.ok("PATCH", f"/v1/wallets/{story.values['wal_…']}", {"status": "active"})
    newest = (await story.ok("GET", "/v1/audit-log?limit=1"))["data"][0]

    frozen, mine = await story.told("audit.md", "action=wallet.freeze", {"key:key_…": f"key:{newest['actor']['id']}"})
    said = await story.types("audit.md", "audit verify", **{"9f2c…": newest["hash"]})

    assert story.values["wal_…"] in {one["object"] for one in frozen["data"]}
    assert newest["hash"] in {one["hash"] for one in mine["data"]}
    assert said.startswith("Verified: ")


async def test_keys_are_used_and_made(story: _Story) -> None:
    [wallets] = await story.told("authentication.md", "v1/wallets")
    [key] = await story.told("authentication.md", "Back office")
    [restricted] = await story.told("authentication.md", "allowedAddresses")

    assert wallets["data"]
    assert key["role"] == "operator"
    assert (restricted["role"], restricted["expires_at"][:10]) == ("viewer", "2099-01-31")
    await story.ok("GET", "/v1/wallets", Authorization=f"Bearer {restricted['key']}")


async def test_leaked_key_is_revoked_with_the_keys_that_it_created(story: _Story) -> None:
    leaked = await story.ok("POST", "/v1/keys", {"role": "admin"})
    made = await story.ok("POST", "/v1/keys", {"role": "viewer"}, Authorization=f"Bearer {leaked['key']}")

    [revoked] = await story.told("leaked-keys.md", "endDescendants", {"$LEAKED_KEY_ID": leaked["key_id"]})

    assert [one["actor"]["id"] for one in revoked["descendants"]] == [made["key_id"]]
    for ended in (leaked, made):
        headers = {"Authorization": f"Bearer {ended['key']}"}
        assert (await story.serve.client.get("/v1/wallets", headers=headers)).status_code == 401


async def test_person_is_invited_on_the_host(story: _Story) -> None:
    assert "/dashboard/" in await story.types("dashboard.md", "people invite")


async def test_task_is_paid_for_by_an_escrow(story: _Story) -> None:
    receiver = await story.wallet("receiver")

    [locked] = await story.told("escrow.md", "taskDescription", {'"toWallet": "wal_…"': f'"toWallet": "{receiver}"'})

    assert (locked["status"], locked["amount"]) == ("locked", "12.50")


async def test_export_is_made_downloaded_and_verified(story: _Story) -> None:
    [asked] = await story.told("exports.md", '"format"')
    export = {"exp_…": asked["export_id"]}
    while (made := (await story.ok("GET", f"/v1/transactions/exports/{asked['export_id']}")))["status"] != "ready":
        assert made["status"] == "processing"
    [made] = await story.told("exports.md", "exports/exp_…", export)
    (story.folder / "export.csv").write_bytes((await story.serve.client.get(made["download_url"])).content)

    said = await story.types("exports.md", "verify", **{"https://api.mainnet-beta.solana.com": story.serve.rpc})

    assert "0 differences" in said


async def test_webhook_is_made_and_enabled(story: _Story) -> None:
    async with Receiver() as receiver:
        [made] = await story.told("webhooks.md", "events", {"https://example.com/agent-vault": receiver.url})
        [enabled] = await story.told("webhooks.md", "enabled", {"wh_…": made["webhook_id"]})
        await story.ok("DELETE", f"/v1/webhooks/{made['webhook_id']}")

    assert enabled["status"] == "enabled"


async def test_resource_is_fetched(story: _Story) -> None:
    app = Starlette(routes=[Route("/weather", lambda _request: PlainTextResponse("sunny"))])
    with socket.create_server(("127.0.0.1", 0)) as bound:
        async with http.serving(app, bound, 10):
            free = f"http://127.0.0.1:{bound.getsockname()[1]}/weather"
            [fetched] = await story.told("x402.md", "x402/fetch", {"https://api.example.com/weather": free})

    assert (fetched["resource"]["body"], fetched["payment"]) == ("sunny", None)


async def test_backup_is_made_and_restored(story: _Story) -> None:
    made = {"/backups/vault-2026-11-22.zip": f"{story.folder}/vault-$(date +%F).zip", "/backups": str(story.folder)}
    made |= {"keys-copy": "data/keys"}

    await story.types("operations.md", "backup", **made)

    assert (story.folder / "restored/agent-vault.db").is_file()


async def test_authority_signs_elsewhere_and_keys_are_replaced(story: _Story) -> None:
    keys, confirmed = story.folder / "data/keys", {"agent-vault sign": "yes | agent-vault sign"}
    write_secret(story.folder / "authority.json", (keys / "authority.json").read_text())
    new, owner = Keypair(), str(Keypair().pubkey())
    write_secret(story.folder / "new-authority.json", json.dumps(list(bytes(new))))

    # A change that the authority signs elsewhere
    await story.types("keys.md", "sign=offline")
    await story.types("keys.md", "sign change.json", **confirmed)
    [made] = await story.told("keys.md", "@signed.json")
    assert made["max_per_tx"] == "25.00"

    # The reserve, and the roles
    await story.types("keys.md", "orgs withdraw", OWNER_ADDRESS=owner)
    assert json.loads((story.folder / "withdrawal.json").read_text())["status"] == "awaiting_signature"
    before = (keys / "operator.json").read_text()
    await story.types("keys.md", "rotate operator", **confirmed)
    assert (keys / "operator.json").read_text() != before
    await story.types("keys.md", "propose-authority", NEW_ADDRESS=str(new.pubkey()))
    assert (await story.ok("GET", "/v1/organization"))["roles"]["authority"] == str(new.pubkey())
    before = (keys / "fee-payer.json").read_text()
    await story.types("keys.md", "rotate fee-payer")
    assert (keys / "fee-payer.json").read_text() != before
