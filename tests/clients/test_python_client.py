"""Runs the example client in Python, based on anchorpy, as its users do."""

import sys
from pathlib import Path

import pytest
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Confirmed
from solders.keypair import Keypair

from tests.support.clients import check, run, run_on, session_vault, vault_with_session
from tests.support.processes import COMMAND_LINE, serving
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_CLIENT = Path(__file__).parent / "python/client.py"


@pytest.mark.parametrize("restricted", [False, True], ids=["anybody", "allowlist"])
async def test_python_client_reads_pays_and_is_refused_with_only_the_idl(
    world: ServiceWorld, tmp_path: Path, restricted: bool
) -> None:
    vault = await vault_with_session(world, tmp_path, restricted=restricted)

    said = await run(world, [sys.executable, str(_CLIENT)], vault)

    await check(world, vault, said)


async def test_python_client_waits_for_its_payment_on_a_running_service(tmp_path: Path) -> None:
    payee = str(Keypair().pubkey())
    async with serving(tmp_path / "data", COMMAND_LINE) as served:

        async def ask(path: str, **body: str) -> dict[str, str]:
            response = await served.client.post(path, json=body)
            assert response.status_code == 200, response.text
            answer: dict[str, str] = response.json()
            return answer

        policy = await ask("/v1/policies", name="direct", maxPerTx="5")
        wallet = await ask("/v1/wallets", agentId="direct", label="Direct", policyId=policy["policy_id"])
        await ask(f"/v1/wallets/{wallet['wallet_id']}/fund", amount="50")
        token = (await ask(f"/v1/wallets/{wallet['wallet_id']}/rotate-token"))["session_token"]
        vault = session_vault(wallet["chain_address"], token, payee, tmp_path)
        async with AsyncClient(served.rpc, Confirmed) as node:
            airdrop = await node.request_airdrop(vault.session.pubkey(), 10**9)
            await node.confirm_transaction(airdrop.value)
        said = await run_on(served.rpc, [sys.executable, str(_CLIENT)], vault)

    assert said["payment"]["event"]["name"] == "PaymentExecuted"
    assert said["refusal"]["name"] == "MaxPerTxExceeded"
    assert said["history"][-1] == said["payment"]["event"]
