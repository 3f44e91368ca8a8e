"""Creates an agent, a merchant and a facilitator's key on the local network, and prints the settings of the examples.

Run `python prepare.py DATA_FOLDER` with the data folder of `agent-vault serve`.
"""

import json
import os
import shlex
import sys
import uuid
from pathlib import Path
from typing import Any

import httpx
from solders.keypair import Keypair

URL = os.environ.get("AGENT_VAULT_URL", "http://127.0.0.1:8402")
RPC = os.environ.get("RPC", "http://127.0.0.1:8899")
SOL = 10**9


def main(data: Path) -> None:
    """Create the objects, and print the settings as `export` lines for a shell."""
    key = (data / "admin-api-key").read_text().strip()
    admin = httpx.Client(base_url=URL, headers={"Authorization": f"Bearer {key}"}, timeout=30)

    def post(path: str, **body: Any) -> Any:
        key = {"Idempotency-Key": str(uuid.uuid4())}
        return admin.post(path, json=body, headers=key).raise_for_status().json()

    name = f"example-{uuid.uuid4().hex[:8]}"
    # Allows at most 0.05 USDC for a payment and 1 USDC a day, and paid resources only on this machine.
    policy = post(
        "/v1/policies", name=name, maxPerTx="0.05", maxPerDay="1", x402Hosts=["127.0.0.1"], allowAllowances=True
    )
    agent = post("/v1/wallets", agentId=name, label="Example agent", policyId=policy["policy_id"])
    post(f"/v1/wallets/{agent['wallet_id']}/fund", amount="5")
    # A facilitator can pay only a recipient with a USDC account. A vault has one.
    merchant = post("/v1/wallets", agentId=f"{name}-merchant", label="Merchant", policyId=policy["policy_id"])
    token = post(f"/v1/wallets/{agent['wallet_id']}/rotate-token", ttlSeconds=86_400)["session_token"]
    facilitator = Keypair()
    key_file = Path(__file__).resolve().parent / "facilitator.json"
    key_file.touch(mode=0o600)
    key_file.write_text(json.dumps(list(bytes(facilitator))))
    airdrop = {"jsonrpc": "2.0", "id": 1, "method": "requestAirdrop", "params": [str(facilitator.pubkey()), SOL]}
    httpx.post(RPC, json=airdrop).raise_for_status()

    chain = admin.get("/v1/organization").raise_for_status().json()
    network = f"solana:{chain['genesis_hash'][:32]}"
    settings = {
        "AGENT_VAULT_URL": URL,
        "AGENT_VAULT_API_KEY": post("/v1/keys", role="agent", walletId=agent["wallet_id"])["key"],
        "AGENT_VAULT_SESSION_TOKEN": token,
        "NETWORK": network,
        "MINT": chain["mint"],
        "PAY_TO": merchant["chain_address"],
        "RPC": RPC,
        "FACILITATOR_KEY": str(key_file),
        "NETWORKS": network,
        "SMART": "1",
        "ALLOWED": chain["program_id"],
    }
    for variable, value in settings.items():
        print(f"export {variable}={shlex.quote(value)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
