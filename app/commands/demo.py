"""`agent-vault demo`: a tour in a single process, with the real HTTP API and the real program."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from solders.keypair import Keypair

from app.access.keyring import KeyRing
from app.core.paths import program_file
from app.core.settings import Settings
from app.localnet import Localnet
from app.organisations import service as organisations
from app.server.application import create_app
from app.server.bootstrap import codec_of, running
from app.server.quickstart import RESERVE, fill_fee_payer

Say = Callable[[str], None]


async def run(say: Say) -> None:
    """Run the demo in a temporary folder and print each step."""
    with tempfile.TemporaryDirectory(prefix="agent-vault-demo-") as folder:
        settings = Settings(data_dir=Path(folder), rpc_url=None)
        programs = {codec_of(settings).program_id: program_file()}
        async with Localnet.open(None, programs) as localnet, running(settings, localnet) as service:
            await fill_fee_payer(service, localnet)
            organisation = await organisations.create(service, "demo")
            await localnet.mint_usdc(service.instructions(organisation.org).reserve_tokens, RESERVE)
            key = service.part(KeyRing).create(org=organisation.org, role="admin", name="demo")
            say(f"An in-memory chain with the program at {service.codec.program_id}")
            say(f"Organisation {organisation.org} with a reserve of 1,000,000 USDC\n")
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(create_app(settings, service)),
                base_url=settings.base_url(),
                headers={"Authorization": f"Bearer {key}"},
                timeout=30,
            ) as client:
                await _story(client, say)


async def _story(client: httpx.AsyncClient, say: Say) -> None:
    async def step(title: str, method: str, path: str, **body: Any) -> dict[str, Any]:
        response = await client.request(method, path, json=body)
        answer: dict[str, Any] = response.json()
        say(f"{title}\n  {method} {path} -> {response.status_code}")
        return answer

    def show(*lines: str) -> None:
        for line in lines:
            say(f"  {line}")
        say("")

    shop = str(Keypair().pubkey())
    policy = await step(
        "1. A policy: at most 5 USDC per payment and 8 USDC in any 24 hours",
        "POST",
        "/v1/policies",
        name="Demo",
        maxPerTx="5",
        maxPerDay="8",
    )
    show(f"policy {policy['policy_id']}")
    wallet = await step(
        "2. A wallet for an agent, attached to this policy",
        "POST",
        "/v1/wallets",
        agentId="research-agent",
        label="Research agent",
        policyId=policy["policy_id"],
    )
    wallet_id = wallet["wallet_id"]
    show(f"wallet {wallet_id} at {wallet['chain_address']}, {wallet['usdc_balance']} USDC")
    funded = await step("3. Funds from the reserve", "POST", f"/v1/wallets/{wallet_id}/fund", amount="50")
    show(f"balance {funded['usdc_balance']} USDC, reserve {funded['org_balance_remaining']} USDC")

    async def pay(title: str, amount: str) -> None:
        answer = await step(
            title, "POST", "/v1/payments", walletId=wallet_id, to=shop, amount=amount, currency="USDC", memo="demo"
        )
        if "error" not in answer:
            show(f"{answer['status']} in slot {answer['on_chain_slot']}", f"signature {answer['tx_signature']}")
            return
        error = answer["error"]
        violation = error["violation"]
        reason = f"limit {violation['limit']}, attempted {violation['attempted']}"
        show(f"{error['code']} - rule {violation['rule']}: {reason}")

    await pay("4. A payment of 4.50 USDC: within the policy", "4.50")
    await pay("5. A payment of 6 USDC: above the limit per payment", "6")
    await pay("6. A payment of 4 USDC: with the first one, above the limit for 24 hours", "4")
    frozen = await client.patch(f"/v1/wallets/{wallet_id}", json={"status": "frozen"})
    say(f"7. The wallet is frozen\n  PATCH /v1/wallets/{wallet_id} -> {frozen.status_code}")
    show(f"status {frozen.json()['status']}")
    answer = await step(
        "8. A payment from the frozen wallet",
        "POST",
        "/v1/payments",
        walletId=wallet_id,
        to=shop,
        amount="1",
        currency="USDC",
    )
    show(f"{answer['error']['code']} - {answer['error']['message']}")
    history = (await client.get(f"/v1/wallets/{wallet_id}/transactions")).json()["data"]
    say("The recorded transactions, newest first")
    show(*(f"{row['timestamp']}  {row['type']:8} {row['amount']:>6} USDC  {row['status']}" for row in history))
