"""What a user does on a cluster of which only the address is known: create an organisation, fund it, serve."""

import asyncio
import contextlib
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.core.timestamps import iso_ms
from tests.validator.chain import ValidatorVm
from tests.validator.node import Node
from tests.validator.service import Faucet

pytestmark = pytest.mark.validator(smoke=True)

_ROOT = Path(__file__).resolve().parents[2]
_AGENT_VAULT = ["-c", "from app.commands.main import main; main()"]
_PATIENCE = 30.0
RESERVE = 1_000_000_000


@pytest.fixture(scope="module")
def faucet(validator: Node) -> Faucet:
    return Faucet(validator)


def run(*arguments: str) -> str:
    """Run Python with these arguments and return its output."""
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=_ROOT, timeout=_PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.contextmanager
def serving(data: Path, *options: str) -> Iterator[str]:
    """Run `agent-vault serve` and yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [*_AGENT_VAULT, "serve", "--data-dir", str(data), "--port", str(port), *options]
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, cwd=_ROOT) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            base = f"http://127.0.0.1:{port}"
            assert base in said
            yield base
            process.send_signal(signal.SIGTERM)
            assert process.wait(_PATIENCE) == 0
        finally:
            process.kill()


def eventually(look: Callable[[], bool]) -> None:
    """Wait until `look` returns true."""
    deadline = time.monotonic() + _PATIENCE
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_organisation_is_created_funded_served_and_kept(validator: Node, faucet: Faucet, tmp_path: Path) -> None:
    place = ["--data-dir", str(tmp_path), "--rpc-url", validator.url, "--usdc-mint", str(faucet.usdc_mint)]
    # Given an organisation with money in its reserve
    said = run(*_AGENT_VAULT, "orgs", "create", "acme", *place)
    [reserve] = re.findall(r"into its reserve: (\w+)", said)
    [key] = re.findall(r"shown only once: (\w+)", said)
    asyncio.run(faucet.mint_usdc(Pubkey.from_string(reserve), RESERVE))

    # When it is served
    options = ["--rpc-url", validator.url, "--usdc-mint", str(faucet.usdc_mint)]
    with (
        serving(tmp_path, *options) as base,
        httpx.Client(base_url=base, headers={"Authorization": f"Bearer {key}"}, timeout=_PATIENCE) as client,
    ):

        def post(path: str, body: dict[str, Any]) -> Any:
            response = client.post(path, json=body)
            assert response.status_code == 200, response.text
            return response.json()

        def wallet(agent_id: str, **rules: Any) -> Any:
            policy = post("/v1/policies", {"name": agent_id, "maxPerTx": "5", **rules})
            return post("/v1/wallets", {"agentId": agent_id, "label": agent_id, "policyId": policy["policy_id"]})

        shopper = wallet("shopper")
        post(f"/v1/wallets/{shopper['wallet_id']}/fund", {"amount": "50", "currency": "USDC"})
        order = {"walletId": shopper["wallet_id"], "to": str(Keypair().pubkey()), "currency": "USDC"}
        paid = post("/v1/payments", {**order, "amount": "4.50"})
        refused = client.post("/v1/payments", json={**order, "amount": "6"})

        # Then the program on the cluster decides
        assert paid["status"] == "confirmed"
        landed = validator.call("getTransaction", paid["tx_signature"], {"commitment": "confirmed"})
        assert landed["meta"]["err"] is None
        assert (refused.status_code, refused.json()["error"]["violation"]["rule"]) == (402, "max_per_tx")

        # And the keeper freezes a wallet when its policy expires by the cluster's clock
        expiring = wallet("expiring", expiry=iso_ms((ValidatorVm(validator).now + 3) * 1000))
        path = f"/v1/wallets/{expiring['wallet_id']}"
        eventually(lambda: client.get(path).json()["status"] == "frozen")

    # And an indexer that knows only the address finds the events, too
    output = run("-m", "indexer", "--rpc-url", validator.url, "--db", str(tmp_path / "other.db"), "--once")
    assert int(output.split()[0]) >= 10
