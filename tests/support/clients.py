"""Runs an example client against a vault on the embedded chain, over sockets, and checks its output."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from based58 import b58decode
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Confirmed
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from tests.support.processes import output, serving
from tests.support.service_world import ServiceWorld
from tests.support.warm import COMMAND_LINE

IDL = Path(__file__).parents[2] / "idl/agent_vault.json"
AMOUNT, TOO_MUCH = 4_500_000, 6_000_000
_FEES = 10**9
_RULE_MAX_PER_TX = "5"


@dataclass(frozen=True)
class SessionVault:
    """A vault as a direct user of the program knows it, and the payee for the client."""

    address: str
    session: Keypair
    keypair_file: Path
    payee: str


async def vault_with_session(world: ServiceWorld, folder: Path, *, restricted: bool) -> SessionVault:
    """Create a wallet with 50 USDC that pays at most 5 USDC per payment, and give its session key some SOL for fees.

    If `restricted`, its policy allows only the payee and also blocks the category `gambling`.
    """
    payee = str(Keypair().pubkey())
    rules = {"allowedRecipients": [payee], "blockedCategories": ["gambling"]} if restricted else {}
    policy = await world.policy(maxPerTx="5", **rules)
    wallet = await world.wallet(policy["policy_id"], funds="50")
    vault = _session_vault(wallet["chain_address"], await world.session(wallet), payee, folder)
    await world.localnet.airdrop(vault.session.pubkey(), _FEES)
    return vault


def _session_vault(address: str, token: str, payee: str, folder: Path) -> SessionVault:
    """Return a vault with its session key, which is written into a file for the client."""
    session = Keypair.from_seed(b58decode(token.removeprefix("avs_").encode()))
    keypair_file = folder / "session.json"
    keypair_file.write_text(json.dumps(list(bytes(session))))
    return SessionVault(address, session, keypair_file, payee)


async def run(world: ServiceWorld, command: list[str], vault: SessionVault) -> Any:
    """Run a client in a separate process against the chain's sockets, and return the JSON that it prints."""
    async with world.localnet.serving("127.0.0.1", 0) as (port, _):
        return await _run_on(f"http://127.0.0.1:{port}", command, vault)


async def run_on_serve(command: list[str], folder: Path) -> Any:
    """Run a client against a vault of `agent-vault serve`, a separate process, and return the JSON that it prints."""
    async with serving(folder / "data", COMMAND_LINE) as served:

        async def ask(path: str, **body: str) -> dict[str, str]:
            response = await served.client.post(path, json=body)
            assert response.status_code == 200, response.text
            answer: dict[str, str] = response.json()
            return answer

        policy = await ask("/v1/policies", name="direct", maxPerTx="5")
        wallet = await ask("/v1/wallets", agentId="direct", label="Direct", policyId=policy["policy_id"])
        await ask(f"/v1/wallets/{wallet['wallet_id']}/fund", amount="50")
        token = (await ask(f"/v1/wallets/{wallet['wallet_id']}/rotate-token"))["session_token"]
        vault = _session_vault(wallet["chain_address"], token, str(Keypair().pubkey()), folder)
        async with AsyncClient(served.rpc, Confirmed) as node:
            airdrop = await node.request_airdrop(vault.session.pubkey(), _FEES)
            await node.confirm_transaction(airdrop.value)
        return await _run_on(served.rpc, command, vault)


async def _run_on(rpc_url: str, command: list[str], vault: SessionVault) -> Any:
    """Run a client in a separate process against a node, and return the JSON that it prints."""
    options = {
        "--idl": IDL,
        "--rpc-url": rpc_url,
        "--keypair": vault.keypair_file,
        "--vault": vault.address,
        "--to": vault.payee,
        "--amount": AMOUNT,
        "--too-much": TOO_MUCH,
    }
    arguments = [str(part) for option in options.items() for part in option]
    return json.loads(await output(*command, *arguments))


def check_on_serve(said: Any) -> None:
    """Check the output of a client that ran on `agent-vault serve`."""
    paid = said["payment"]["event"]
    assert (paid["name"], paid["data"]["amount"]) == ("PaymentExecuted", str(AMOUNT))
    assert said["refusal"]["name"] == "MaxPerTxExceeded"
    assert said["history"][-1] == paid


async def check(world: ServiceWorld, vault: SessionVault, said: Any) -> None:
    """Compare a client's output with the chain."""
    session, signature = str(vault.session.pubkey()), said["payment"]["signature"]
    read, paid, refused = said["vault"], said["payment"]["event"], said["refusal"]
    destination = world.service.addresses.token_account(Pubkey.from_string(vault.payee))

    # The client read the vault before the payment.
    assert read["org"] == world.org
    assert read["session_authority"] == session
    assert read["balance"] == "50000000"

    # The client paid, and read the payment's event.
    assert await world.balance(vault.payee) == AMOUNT
    assert await world.balance(vault.address) == 50_000_000 - AMOUNT
    assert signature in await world.signatures(vault.address)
    sequence = str(int(read["sequence"]) + 1)
    assert paid["name"] == "PaymentExecuted"
    assert (
        paid["data"]
        | {
            "org": world.org,
            "vault": vault.address,
            "policy": read["policy"],
            "recipient": vault.payee,
            "destination": str(destination),
            "signer": session,
            "approval": str(Pubkey.default()),
            "sequence": sequence,
            "amount": str(AMOUNT),
            "balance": str(50_000_000 - AMOUNT),
            "co_signed": "0",
            "by_session": "1",
        }
        == paid["data"]
    )
    assert len(bytes.fromhex(paid["data"]["reference"])) == 16

    # The second payment was refused, and the client read the rule that refused it.
    errors = {error["code"]: error for error in json.loads(IDL.read_text())["errors"]}
    assert refused["name"] == "MaxPerTxExceeded"
    assert errors[refused["code"]]["name"] == refused["name"]
    assert refused["message"] == errors[refused["code"]]["msg"]
    assert refused["event"]["name"] == "PolicyViolation"
    assert (
        refused["event"]["data"]
        | {
            "org": world.org,
            "vault": vault.address,
            "recipient": vault.payee,
            "limit": "5000000",
            "attempted": str(TOO_MUCH),
            "rule": _RULE_MAX_PER_TX,
        }
        == refused["event"]["data"]
    )

    # The client read the vault's whole history.
    history = said["history"]
    assert [event["name"] for event in history] == [
        "WalletCreated",
        "WalletFunded",
        "WalletUpdated",
        "PaymentExecuted",
    ]
    assert [event["data"]["sequence"] for event in history] == ["1", "2", "3", sequence]
    assert history[-1] == paid
