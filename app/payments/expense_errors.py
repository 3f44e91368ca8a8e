"""Error codes shared by all operations that a policy judges as payments."""

SPENDING_ERRORS = (
    "invalid_amount",
    "invalid_recipient",
    "recipient_unverified",
    "wallet_not_found",
    "policy_violation",
    "wallet_frozen",
    "wallet_archived",
    "wallet_insufficient_balance",
    "org_paused",
    "sol_limit_reached",
    "transaction_failed",
)
