"""Examples of the OpenAPI document: bodies of the main operations, and a refusal by the policy."""

from collections.abc import Mapping
from typing import Any

from app.core.errors import PolicyViolationError

_WALLET, _POLICY = "wal_VDycjSYafbJkJfSRKajygt", "pol_VzU53AtbSxsDL2M2jvnpAT"
_RECIPIENT = "9xQeWvG816bUx9EPjHmaT23yvVM2ZWbrrpZb9PusVFin"
_HASH = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

#: Request bodies by operation.
BODIES: Mapping[str, dict[str, Any]] = {
    "create_policy": {
        "name": "Shopping",
        "maxPerTx": "5.00",
        "maxPerDay": "50.00",
        "velocityCap": 20,
        "blockedCategories": ["gambling"],
    },
    "update_policy": {"maxPerTx": "10.00", "maxPerDay": None},
    "clone_policy": {"name": "Shopping, larger", "maxPerTx": "25.00"},
    "preview_policy": {"maxPerTx": "2.50"},
    "create_wallet": {"agentId": "agent-7", "label": "Shopping agent", "policyId": _POLICY, "tags": ["shop"]},
    "update_wallet": {"status": "frozen"},
    "fund_wallet": {"amount": "100.00", "currency": "USDC"},
    "fund_wallets": {"allocations": [{"walletId": _WALLET, "amount": "25.00"}]},
    "withdraw_from_wallet": {"amount": "all"},
    "rotate_session_token": {"ttlSeconds": 3600},
    "put_alerts": {
        "balanceLow": {"threshold": "10.00", "emails": ["ops@example.com"]},
        "policyViolation": {"enabled": True, "emails": ["ops@example.com"]},
    },
    "put_wallet_alerts": {"balanceLow": {"threshold": "50.00"}, "inactivity": {"threshold": 24}},
    "put_topup_rule": {"enabled": True, "triggerBelow": "10.00", "topupAmount": "50.00"},
    "create_payment": {
        "walletId": _WALLET,
        "to": _RECIPIENT,
        "amount": "4.50",
        "currency": "USDC",
        "memo": "Order 1024",
        "idempotencyKey": "order-1024",
    },
    "pay_from_wallet": {"to": _RECIPIENT, "amount": "4.50", "currency": "USDC", "memo": "Order 1024"},
    "simulate_payment": {"walletId": _WALLET, "to": _RECIPIENT, "amount": "4.50", "currency": "USDC"},
    "create_escrow": {
        "fromWallet": _WALLET,
        "toWallet": _RECIPIENT,
        "amount": "20.00",
        "currency": "USDC",
        "taskDescription": "Translate the manual into French.",
        "timeoutSeconds": 3600,
    },
    "complete_escrow": {"proofType": "output_hash", "proof": _HASH},
    "dispute_escrow": {"reason": "The output is empty.", "evidence": _HASH},
    "resolve_dispute": {"decision": "split", "releasedAmount": "5.00"},
    "put_recipient": {"category": "marketplace"},
    "export_transactions": {"format": "csv", "from": "2026-04-01T00:00:00Z", "to": "2026-05-01T00:00:00Z"},
    "create_webhook": {"url": "https://example.com/agent-vault", "events": ["transaction.completed", "wallet.frozen"]},
    "create_key": {"role": "operator", "name": "Back office"},
}

#: The answer to a payment that the wallet's policy refused.
POLICY_VIOLATION: Mapping[str, Any] = PolicyViolationError(
    violation={"rule": "max_per_tx", "limit": "5.00", "attempted": "6.00"},
    wallet_id=_WALLET,
    policy_id=_POLICY,
    tx_id="tx_KiEQfkf6fLwrUKr9MX11QZ",
).envelope(docs="/docs/errors/policy_violation", request_id="req_NaLTW5KRAT7GNcwLfd2Mhr")
