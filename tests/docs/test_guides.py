"""Runs the commands of the guides exactly as shown, on a service started for them, and checks the results."""

import json
import re
import socket
import sqlite3
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from agent_vault_client._core import _passing
from agent_vault_client.errors import family
from solders.keypair import Keypair
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from app.core.errors import CATALOGUE
from app.core.settings import Settings
from app.core.signers import write_secret
from app.core.timestamps import now_ms
from app.exports.service import MAX_LIVE, MAX_ROWS
from app.people.sessions import LIFETIME, digest, new_token
from app.store.daily_counts import MAX_RECORDS
from app.wallets.models import MAX_TTL
from tests.support import http
from tests.support.processes import Serve, serving
from tests.support.reader import Reader, blocks_of
from tests.support.warm import COMMAND_LINE, programs
from tests.support.webhooks import Receiver

pytestmark = pytest.mark.asyncio(loop_scope="module")

_GUIDES = Path(__file__).resolve().parents[2] / "app/docs/guides"
_BLOCKS = {guide.name: blocks_of(guide) for guide in _GUIDES.glob("*.md")}
_THIS = Path(__file__).read_text(encoding="utf-8")
#: Guides with commands that are not run here, because another test runs them or because they need other software.
_ELSEWHERE = {
    "clients.md": "tests/clients/test_built_vaults.py",
    "nodes.md": "tests/docs/test_nodes_guide.py",
    "clusters.md": "needs Solana's command line; tests/validator runs the service on such a chain",
    "deploy.md": "needs a container engine; tests/structure/test_deploy.py checks the files",
    "mcp.md": "needs other people's clients; tests/mcp runs the inspector",
    "testing.md": "tests/docs/test_testing_guide.py",
    "tokens.md": "needs a terminal for PINs; tests/remote_signer makes keys in such a token",
}
#: Parts of blocks that need PostgreSQL, run by tests/docs/test_nodes_guide.py and tests/commands/test_database_copy.py.
_ON_POSTGRESQL = ("createdb", "db copy")


@dataclass
class _Story:
    """A running service with one object of each kind, and the values that replace the guides' placeholders."""

    serve: Serve
    folder: Path
    values: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    async def types(self, guide: str, pattern: str, **values: str) -> str:
        """Run the only block of the guide that has the pattern. `values` maps placeholders in it to their values."""
        environment = {**self.environment, "NEW_KEY": str(uuid.uuid4())}
        reader = Reader(self.folder, _BLOCKS[guide], {**values, **self.values}, **environment)
        return await reader.types(pattern)

    async def told(self, guide: str, pattern: str, values: dict[str, str] | None = None) -> list[Any]:
        """Run the block and return the JSON documents that it prints. None of them may be an error."""
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
    async with serving(folder / "data", COMMAND_LINE) as serve:
        one = _Story(serve, folder)
        key = (folder / "data/admin-api-key").read_text().strip()
        wallet = await one.wallet("payer", allowAllowances=True, x402Hosts=["*"])
        agent = await one.ok("POST", "/v1/keys", {"role": "agent", "walletId": wallet, "name": "Agent"})
        token = (await one.ok("POST", f"/v1/wallets/{wallet}/rotate-token", {}))["session_token"]
        one.values = {"wal_…": wallet, "http://127.0.0.1:8402": serve.url}
        one.environment = {
            "PATH": f"{programs()}:/usr/local/bin:/usr/bin:/bin",
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


async def test_payment_is_repeated_by_curl(story: _Story) -> None:
    [paid] = await story.told("retries.md", "--retry")

    assert paid["status"] == "confirmed"


async def test_errors_to_repeat_are_those_that_the_clients_repeat() -> None:
    rows = re.findall(r"^\| (`.+?) \|", (_GUIDES / "retries.md").read_text(encoding="utf-8"), re.MULTILINE)
    errors = [family(kind.status)("", code=kind.code, status=kind.status) for kind in CATALOGUE.values()]

    assert sorted(re.findall(r"`(\w+)`", "".join(rows))) == sorted(one.code for one in errors if _passing(one, 1))


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


async def test_steps_after_a_leak_end_each_credential(story: _Story) -> None:
    # Given a leak of each credential
    leaked_wallet, to = await story.wallet("leaked"), str(Keypair().pubkey())
    token = (await story.ok("POST", f"/v1/wallets/{leaked_wallet}/rotate-token", {}))["session_token"]
    hook = await story.ok("POST", "/v1/webhooks", {"url": "http://127.0.0.1:9/", "events": ["ping"]})
    cookie = _person(story.folder / "data/agent-vault.db", "per_leaked")
    keys = []
    for role in ("admin", "operator", "viewer", "agent"):
        bound = {"walletId": leaked_wallet} if role == "agent" else {}
        keys.append(await story.ok("POST", "/v1/keys", {"role": role, **bound}))

    async def statuses() -> list[int]:
        headers = [{"Authorization": f"Bearer {key['key']}"} for key in keys]
        found = [await story.serve.client.get(f"/v1/wallets/{leaked_wallet}", headers=one) for one in headers]
        browser = {"Cookie": cookie, "Host": f"localhost:{story.serve.client.base_url.port}"}
        found.append(await story.serve.client.get("/dashboard/people", headers=browser))
        payment: dict[str, Any] = {"walletId": leaked_wallet, "to": to, "amount": "1", "currency": "USDC"}
        payment["allowUnverifiedRecipient"] = True
        found.append(await story.serve.client.post("/v1/payments", json=payment, headers={"Session-Token": token}))
        return [one.status_code for one in found]

    assert await statuses() == [200] * 6

    # When the operator types the guide's steps
    [paused] = await story.told("operations.md", '"paused": true')
    assert (paused, (await statuses())[-1]) == ({"paused": True}, 422)
    for key in keys:
        revoked, log = await story.told("operations.md", "LEAKED_KEY_ID", {"$LEAKED_KEY_ID": key["key_id"]})
        assert (revoked["status"], log["data"]) == ("revoked", [])
    [rotated] = await story.told("operations.md", "LEAKED_WALLET_ID", {"$LEAKED_WALLET_ID": leaked_wallet})
    [removed] = await story.told("operations.md", "LEAKED_PERSON_ID", {"$LEAKED_PERSON_ID": "per_leaked"})
    assert removed["person_id"] == "per_leaked"
    secrets = await story.told("operations.md", "LEAKED_WEBHOOK_ID", {"$LEAKED_WEBHOOK_ID": hook["webhook_id"]})
    assert len({hook["signing_secret"], *(one["signing_secret"] for one in secrets)}) == 3
    await story.types("operations.md", "after-leak", **{"/backups": str(story.folder)})
    assert (story.folder / "restored-after-leak/agent-vault.db").is_file()
    [resumed] = await story.told("operations.md", '"paused": false')

    # Then no leaked credential works, and the new token pays
    assert (resumed, await statuses()) == ({"paused": False}, [401] * 4 + [303, 401])
    token = rotated["session_token"]
    assert (await statuses())[-1] == 200


def _person(database: Path, person_id: str) -> str:
    """Add a person who is signed in, and return the browser's cookie."""
    token, now = new_token(), now_ms()
    with sqlite3.connect(database) as db:
        [org] = db.execute("SELECT org FROM organisations").fetchone()
        db.execute(
            "INSERT INTO people (person_id, org, name, role, created_at) VALUES (?, ?, 'Eve', 'viewer', ?)",
            (person_id, org, now),
        )
        db.execute(
            "INSERT INTO browser_sessions (session_id, digest, org, actor, created_at, expires_at, user_agent)"
            " VALUES ('ses_leaked', ?, ?, ?, ?, ?, '')",
            (digest(token), org, f"person:{person_id}", now, now + 3_600_000),
        )
    return f"agent-vault-session={token}"


async def test_worst_costs_are_the_limits_of_the_settings() -> None:
    guide = (_GUIDES / "threat-model.md").read_text(encoding="utf-8")
    section = guide.partition("## Worst cost")[2].partition("\n## ")[0]
    constants = {
        # tests/x402/test_bytes_per_day.py measures the bytes.
        "MB": {50, 100},
        "GB": {4},
        "refusals": {MAX_RECORDS},
        "rotations": {MAX_RECORDS},
        "exports": {MAX_LIVE},
        "transactions": {MAX_ROWS // 4},
        "days": {MAX_TTL // 86_400},
        "hours": {LIFETIME // 3_600_000},
    }
    settings = re.findall(r"([\d,.]+) [^|(\d`]*\(`([A-Z_]+)`\)", section)
    others = re.findall(r"([\d,.]*\d) (\w+)", section)

    for number, name in settings:
        assert float(number.replace(",", "")) == float(Settings.model_fields[name.lower()].default), name
    named = {number for number, _ in settings}
    for number, unit in others:
        if number not in named or unit in constants:
            assert int(number.replace(",", "")) in constants[unit], (number, unit)
    assert {name for _, name in settings} >= {"SOL_PER_WALLET_DAY", "SOL_PER_DAY", "OPERATOR_DAILY_LIMIT"}


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

    node = {"https://api.mainnet-beta.solana.com": story.serve.rpc}
    assert "0 differences" in await story.types("exports.md", "verify export", **node)

    made = await story.ok("POST", "/v1/transactions/export", {"format": "accounting"}, **{"Idempotency-Key": "books"})
    while (made := (await story.ok("GET", f"/v1/transactions/exports/{made['export_id']}")))["status"] != "ready":
        assert made["status"] == "processing"
    for name, url in (("accounting.csv", made["download_url"]), ("manifest.json", made["manifest_url"])):
        (story.folder / name).write_bytes((await story.serve.client.get(url)).content)
    assert "0 differences" in await story.types("exports.md", "verify accounting", **node)


async def test_spending_is_added_up(story: _Story) -> None:
    [spent] = await story.told("exports.md", "insights")

    assert (spent["from_date"], spent["to_date"]) == ("2026-11-01", "2026-12-01")
    assert spent["compared"]["from_date"] == "2026-10-01"


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
            [fetched] = await story.told("x402.md", "paid-requests/fetch", {"https://api.example.com/weather": free})

    assert (fetched["resource"]["body"], fetched["payment"]) == ("sunny", None)


async def test_backup_is_made_and_restored(story: _Story) -> None:
    made = {"/backups/vault-2026-11-22.zip": f"{story.folder}/vault-$(date +%F).zip", "/backups": str(story.folder)}
    made |= {"keys-copy": "data/keys"}

    await story.types("operations.md", "backups/vault", **made)

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
