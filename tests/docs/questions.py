"""Searches as a newcomer types them: two for each task, with the pages that answer both. `*` matches any text.

The search's weights and synonyms were chosen with these searches.
"""

from collections.abc import Mapping

QUESTIONS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("stop agent immediately", "block wallet emergency"): ("/docs/api/update_wallet", "/docs/api/pause_organisation"),
    ("verify webhook signature", "check hmac of webhook"): ("/docs/guides/webhooks", "/docs/guides/clients"),
    ("docker", "run container image"): ("/docs/guides/deploy", "/docs/guides/nodes"),
    ("retry payment safely", "duplicate payment after timeout"): (
        *("/docs/guides/retries", "/docs/guides/clients", "/docs/guides/authentication"),
        *("/docs/guides/mcp", "/docs/errors/idempotency*"),
    ),
    ("python sdk", "npm install client"): ("/docs/guides/clients", "/docs"),
    ("how much does a payment cost", "transaction fees"): ("/docs/guides/costs", "/docs/guides/limits"),
    ("rate limit", "too many requests 429"): ("/docs/errors/rate_limited", "/docs/guides/limits"),
    ("rotate api key", "replace leaked api key"): ("/docs/api/rotate_key", "/docs/guides/leaked-keys"),
    ("devnet", "switch to mainnet"): ("/docs/guides/clusters",),
    ("backup database", "restore from backup"): ("/docs/guides/operations", "/docs/guides/nodes"),
    ("policy_violation", "402 error payment refused"): ("/docs/errors/policy_violation",),
    ("hold money until work is done", "dispute escrow"): ("/docs/guides/escrow", "/docs/api/*escrow"),
    ("human approval for large payments", "approve payment manually"): (
        *("/docs/guides/approvals", "/docs/api/approve_payment", "/docs/api/approvals"),
    ),
    ("whitelist addresses", "allowed recipients"): (
        *("/docs/guides/recipients", "/docs/api/*_policy", "/docs/api/policies", "/docs/api/*recipient*"),
    ),
    ("claude mcp setup", "connect langchain agent"): ("/docs/guides/mcp",),
    ("pay for http 402 api", "x402 price before paying"): (
        *("/docs/guides/x402", "/docs/api/*paid*", "/docs/api/x402", "/docs/api/*x402*"),
    ),
    ("download csv transactions", "export for accounting"): (
        *("/docs/guides/exports", "/docs/api/transactions", "/docs/api/*export*"),
    ),
    ("who changed the policy", "audit log retention"): (
        *("/docs/guides/audit", "/docs/api/get_policy_audit_log", "/docs/api/list_audit_log", "/docs/api/audit"),
    ),
    ("email when balance is low", "notify me of refusals"): ("/docs/guides/alerts", "/docs/api/*alert*"),
    ("prometheus metrics", "monitoring alarms"): ("/docs/guides/operations",),
    ("postgresql", "high availability"): ("/docs/guides/nodes", "/docs/guides/operations"),
    ("hsm", "yubikey"): ("/docs/guides/tokens",),
    ("sign offline", "cold wallet for authority key"): ("/docs/guides/keys", "/docs/api/*sign*"),
    ("sso login", "invite team member"): ("/docs/guides/dashboard", "/docs/api/people", "/docs/guides/command-line"),
    ("change port", "AGENT_VAULT_PUBLIC_URL"): ("/docs/settings", "/docs/guides/command-line"),
    ("add money to wallet", "withdraw funds"): (
        "/docs/api/fund_wallet*",
        "/docs/api/withdraw_from_wallet",
        "/docs/api/wallets",
    ),
    ("pagination", "next page cursor"): ("/docs/reference", "/docs/guides/clients", "/docs/api/list_*"),
    ("shared budget for a team", "monthly spending limit"): ("/docs/api/*budget*", "/docs/api/*_policy"),
    ("session token expired", "token lifetime"): (
        *("/docs/errors/session_token*", "/docs/guides/authentication", "/docs/api/rotate_session_token"),
        "/docs/guides/limits",
    ),
    ("latency performance", "how many payments per second"): ("/docs/guides/limits",),
    ("send usdc to an address", "make payment api"): (
        *(
            "/docs/api/create_payment",
            "/docs/api/payments",
            "/docs/api/pay_from_wallet",
            "/docs",
            "/docs/guides/recipients",
            "/docs/guides/authentication",
        ),
    ),
    ("check if payment would be allowed", "dry run payment"): (
        *("/docs/api/simulate_payment", "/docs/api/preview_policy", "/docs/api/payments"),
    ),
    ("list transactions of one wallet", "payment history"): (
        *("/docs/api/list_wallet_transactions", "/docs/api/list_transactions", "/docs/api/transactions"),
    ),
    ("webhook not delivered", "resend webhook event"): (
        *("/docs/guides/webhooks", "/docs/api/resend_delivery", "/docs/api/replay_events", "/docs/api/webhooks"),
    ),
    ("wallet_frozen", "unfreeze wallet"): (*("/docs/errors/wallet_frozen", "/docs/api/update_wallet"),),
    ("authorization header", "api key roles"): (
        *(
            "/docs/guides/authentication",
            "/docs/api/create_key",
            "/docs/api/keys",
            "/docs/errors/authentication_failed",
            "/docs/reference",
        ),
    ),
    ("refill wallet automatically", "auto topup"): (*("/docs/api/put_topup_rule", "/docs/api/get_topup_rule"),),
    ("what happens if the server is hacked", "security model"): (
        *("/docs/guides/threat-model", "/docs/guides/leaked-keys"),
    ),
    ("domain as recipient", "pay to domain name"): (
        *("/docs/guides/recipients", "/docs/api/*recipient*", "/docs/api/recipients"),
    ),
    ("use program directly without api", "anchor idl client"): (*("/docs/guides/direct-use",),),
    ("load balancer", "upgrade without downtime"): (
        *("/docs/guides/nodes", "/docs/guides/upgrading", "/docs/guides/deploy", "/docs/guides/operations"),
    ),
    ("spending limit per day", "max_per_tx"): (
        *(
            "/docs/api/create_policy",
            "/docs/api/update_policy",
            "/docs/api/policies",
            "/docs/reference",
            "/docs/api/*budget*",
        ),
    ),
    ("error 409 idempotency", "idempotency key expired"): (
        *(
            "/docs/errors/idempotency*",
            "/docs/guides/retries",
            "/docs/guides/authentication",
            "/docs/guides/clients",
            "/docs/guides/mcp",
            "/docs/reference",
        ),
    ),
    ("health check endpoint", "logs and tracing"): (
        *("/docs/guides/operations", "/docs/api/service", "/docs/api/list_requests"),
    ),
    ("agents paying each other", "dispute resolution arbiter"): (
        *("/docs/guides/escrow", "/docs/api/resolve_dispute", "/docs/api/escrows", "/docs/api/dispute_escrow"),
    ),
    # Written by two readers who had seen no page. The last 30 queries were first tried after the search was finished.
    ("quickstart first payment", "docker compose up local"): ("/docs", "/docs/guides/deploy"),
    ("payment declined error codes", "why was my transfer rejected"): ("/docs/errors", "/docs/errors/policy_violation"),
    ("idempotency key retry", "avoid double charge timeout"): ("/docs/guides/retries",),
    ("webhook localhost testing", "webhook signing secret"): ("/docs/guides/receivers", "/docs/guides/webhooks"),
    ("resend failed webhook events", "missed webhooks replay"): ("/docs/guides/webhooks", "/docs/api/resend_delivery"),
    ("daily spending limit agent", "allowlist recipients vault policy"): (
        *("/docs/api/*_policy", "/docs/api/policies", "/docs/guides/recipients"),
    ),
    ("test mode fake usdc", "solana-test-validator CI pytest"): ("/docs/guides/testing", "/docs/guides/clusters"),
    ("multiple nodes load balancer", "production deployment postgres high availability"): ("/docs/guides/nodes",),
    ("transaction fees per payment", "who pays gas SOL rent"): ("/docs/guides/costs",),
    ("rotate leaked api key", "restricted keys scopes permissions"): (
        *("/docs/guides/leaked-keys", "/docs/guides/authentication", "/docs/api/rotate_key"),
    ),
    ("private key storage kms", "server hacked funds safe"): (
        *("/docs/guides/keys", "/docs/guides/tokens", "/docs/guides/threat-model"),
    ),
    ("export transactions csv", "monthly reconciliation balance mismatch"): (
        *("/docs/guides/exports", "/docs/guides/operations"),
    ),
    ("langchain payment tool python", "mcp server claude setup"): ("/docs/guides/mcp",),
    ("escrow release refund", "agent dispute expired deadline"): ("/docs/guides/escrow",),
    ("freeze agent emergency stop", "payment stuck pending blockhash expired"): (
        *("/docs/api/update_wallet", "/docs/api/pause_organisation", "/docs/guides/operations"),
    ),
    ("getting started", "local validator airdrop usdc"): ("/docs", "/docs/guides/clusters", "/docs/guides/testing"),
    ("payment declined reason", "error codes list"): ("/docs/errors", "/docs/errors/policy_violation"),
    ("idempotency key", "timeout retry double payment"): ("/docs/guides/retries",),
    ("verify webhook signature python", "webhook retry schedule"): ("/docs/guides/receivers", "/docs/guides/webhooks"),
    ("missed webhooks resend", "whitelist recipients"): ("/docs/guides/webhooks", "/docs/guides/recipients"),
    ("test mode github actions", "how much SOL needed"): ("/docs/guides/testing", "/docs/guides/costs"),
    ("high availability multiple nodes", "rolling upgrade database migration"): (
        *("/docs/guides/nodes", "/docs/guides/upgrading"),
    ),
    ("transaction fees who pays", "balance mismatch reconciliation"): ("/docs/guides/costs", "/docs/guides/operations"),
    ("rotate api key leaked", "revoke key audit log"): ("/docs/guides/leaked-keys", "/docs/guides/audit"),
    ("is it custodial", "langchain tool pay"): ("/docs/guides/keys", "/docs/guides/threat-model", "/docs/guides/mcp"),
    ("claude desktop mcp config", "escrow refund deadline"): ("/docs/guides/mcp", "/docs/guides/escrow"),
    ("dispute between agents", "rpc outage stuck pending"): ("/docs/guides/escrow", "/docs/guides/operations"),
}
