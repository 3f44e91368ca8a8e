"""Remedies for agents: the agent calls a tool or asks a person. No remedy needs an HTTP request or a command."""

from collections.abc import Mapping

from app.core.errors import CATALOGUE

#: Remedies that replace the catalogue's own remedy if that is written for a client of the HTTP API.
_FOR_AGENTS: Mapping[str, str] = {
    "invalid_request": "Correct the argument that the message names.",
    "request_too_large": "Make the arguments shorter.",
    "request_timeout": "Call the tool again with the same idempotency key.",
    "rate_limited": "Make fewer calls at a time.",
    "internal_error": "Quote the `request_id` to an operator of the service.",
    "authentication_failed": "The API key is part of the client's settings. Ask an operator of the vault to renew it.",
    "insufficient_permissions": "Ask an operator of the vault to make this request, or use only your own vault.",
    "session_token_expired": "Ask an operator of the vault to put a new session token into the client's settings.",
    "session_token_invalid": "Ask an operator of the vault to put a new session token into the client's settings.",
    "wallet_frozen": "Ask an admin of the organisation to unfreeze the vault. Do not try another way to pay.",
    "wallet_archived": "Ask an operator of the organisation for another vault.",
    "wallet_insufficient_balance": "Ask an operator of the vault to fund the vault, then call the tool again.",
    "policy_violation": "Ask an admin of the organisation to change the vault's policy or budget.",
    "approval_not_found": "Use the `approval_id` of the refused payment.",
    "approval_not_pending": "Make the payment again. If it still needs an approval, a new one is requested.",
    "approval_outdated": "Make the payment again. If it still needs an approval, a new one is requested.",
    "recipient_unverified": "Compare the address with its source. If it is right, ask an admin of the organisation to "
    "list it in the policy, then call the tool again with `allow_unverified_recipient` = true.",
    "invalid_amount": 'Give amounts as strings, such as "12.50".',
    "restore_unacknowledged": "Use `list_transactions` and `get_transaction` to find out if the money has moved. "
    "If it has not, call the tool again with the same `idempotency_key` and, if the tool has this argument, with "
    "`after_restore` = true. In any other case, ask an operator of the service.",
    "transaction_failed": "Read the message. To try again, call the tool with a new `idempotency_key`.",
    "transaction_not_found": "Use the id of a transaction that `list_transactions` returns.",
    "recipient_not_found": "Ask an operator of the organisation to register the recipient.",
    "policy_not_found": "Ask an operator of the vault to check the id of the policy.",
    "escrow_not_found": "Use the escrow's id, which `create_escrow` returned or the other party gave you.",
    "escrow_already_settled": "Read the escrow's status with `get_escrow`.",
    "dispute_raised_before": "Your side has used its one dispute. Complete the escrow or let its deadline pass.",
    "escrow_not_disputed": "A party can raise a dispute before the deadline with `dispute_escrow`.",
    "org_insufficient_balance": "Ask an operator of the organisation to deposit USDC into its reserve.",
    "org_paused": "Ask an admin of the organisation to end the pause.",
    "authority_offline": "Ask an admin of the organisation to make the change with the authority's key.",
    "x402_wallet_not_supported": "Ask an admin of the organisation to set `allowAllowances` in the vault's policy, or "
    "use another resource.",
    "too_many_allowances": "Wait a minute, until running payments have ended. The number of allowances per day is "
    "also limited. If this limit is reached, ask an operator of the service to raise it.",
    "x402_host_not_allowed": "Ask an admin of the organisation to allow the host, or use another resource.",
}


def remedy(code: str) -> str | None:
    """Return the agent's remedy for an error of the catalogue, or None for an unknown code."""
    kind = CATALOGUE.get(code)
    return None if kind is None else _FOR_AGENTS.get(code, kind.remedy)
