CREATE TABLE reserves (
    org VARCHAR COLLATE "C" NOT NULL,
    balance BIGINT NOT NULL,
    slot BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    authority VARCHAR COLLATE "C" NOT NULL,
    operator VARCHAR COLLATE "C" NOT NULL,
    arbiter VARCHAR COLLATE "C" NOT NULL,
    verifier VARCHAR COLLATE "C" NOT NULL,
    paused BOOLEAN NOT NULL,
    authority_attaches BOOLEAN NOT NULL,
    PRIMARY KEY (org)
);

CREATE TABLE wallets (
    wallet_id VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    vault VARCHAR COLLATE "C" NOT NULL,
    tokens VARCHAR COLLATE "C" NOT NULL,
    policy VARCHAR COLLATE "C" NOT NULL,
    budget VARCHAR COLLATE "C",
    agent_hash VARCHAR COLLATE "C" NOT NULL,
    session_authority VARCHAR COLLATE "C",
    session_expires_at BIGINT NOT NULL,
    frozen INTEGER NOT NULL,
    archived BOOLEAN NOT NULL,
    balance BIGINT NOT NULL,
    balance_slot BIGINT NOT NULL,
    balance_sequence BIGINT NOT NULL,
    balance_row BIGINT NOT NULL,
    config_sequence BIGINT NOT NULL,
    budget_sequence BIGINT DEFAULT '0' NOT NULL,
    frozen_sequence BIGINT NOT NULL,
    funded BOOLEAN NOT NULL,
    sequence BIGINT NOT NULL,
    escrow_counter BIGINT DEFAULT '0' NOT NULL,
    allowance_counter BIGINT DEFAULT '0' NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    last_transaction_at BIGINT,
    blocked_at BIGINT,
    PRIMARY KEY (wallet_id),
    UNIQUE (vault)
);
CREATE INDEX wallets_newest ON wallets (org, created_at, wallet_id);
CREATE INDEX wallets_by_policy ON wallets (org, policy);
CREATE INDEX wallets_by_budget ON wallets (org, budget);

CREATE TABLE policies (
    address VARCHAR COLLATE "C" NOT NULL,
    policy_id VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    key BYTEA NOT NULL,
    max_per_tx BIGINT,
    max_per_day BIGINT,
    max_per_month BIGINT,
    velocity_cap BIGINT,
    require_co_sign BIGINT,
    expiry BIGINT,
    blocked_categories BIGINT NOT NULL,
    restricted BOOLEAN NOT NULL,
    max_open_escrows BIGINT,
    allow_allowances BOOLEAN NOT NULL,
    allowlist VARCHAR COLLATE "C",
    version BIGINT NOT NULL,
    immutable BOOLEAN NOT NULL,
    closed BOOLEAN NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (address),
    UNIQUE (org, policy_id)
);

CREATE TABLE budgets (
    address VARCHAR COLLATE "C" NOT NULL,
    budget_id VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    key BYTEA NOT NULL,
    max_per_day BIGINT,
    max_per_month BIGINT,
    velocity_cap BIGINT,
    version BIGINT NOT NULL,
    closed BOOLEAN NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (address),
    UNIQUE (org, budget_id)
);

CREATE TABLE policy_versions (
    address VARCHAR COLLATE "C" NOT NULL,
    version BIGINT NOT NULL,
    changes JSON NOT NULL,
    timestamp BIGINT NOT NULL,
    signature VARCHAR COLLATE "C" NOT NULL,
    PRIMARY KEY (address, version)
);

CREATE TABLE recipients (
    org VARCHAR COLLATE "C" NOT NULL,
    address VARCHAR COLLATE "C" NOT NULL,
    domain_hash VARCHAR COLLATE "C",
    category INTEGER NOT NULL,
    effective_at BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (org, address)
);
CREATE INDEX recipients_by_domain ON recipients (org, domain_hash);
CREATE INDEX recipients_newest ON recipients (org, updated_at, address);

CREATE TABLE transactions (
    tx_id VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    wallet_id VARCHAR COLLATE "C" NOT NULL,
    type VARCHAR COLLATE "C" NOT NULL,
    recipient VARCHAR COLLATE "C",
    recipient_address VARCHAR COLLATE "C",
    amount BIGINT NOT NULL,
    status VARCHAR COLLATE "C" NOT NULL,
    signature VARCHAR COLLATE "C",
    instruction_index INTEGER,
    inner_index INTEGER,
    slot BIGINT,
    policy_id VARCHAR COLLATE "C",
    policy_triggered BOOLEAN NOT NULL,
    memo VARCHAR COLLATE "C",
    attestation_hash VARCHAR COLLATE "C",
    violation JSON,
    error VARCHAR COLLATE "C",
    timestamp BIGINT NOT NULL,
    PRIMARY KEY (tx_id)
);
CREATE INDEX transactions_newest ON transactions (org, timestamp, tx_id);
CREATE INDEX transactions_by_wallet ON transactions (wallet_id, timestamp, tx_id);
CREATE INDEX transactions_by_kind ON transactions (org, status, type, timestamp, tx_id, amount);
CREATE INDEX transactions_by_wallet_kind ON transactions (wallet_id, status, type, timestamp, tx_id, amount);
CREATE INDEX transactions_by_address ON transactions (org, recipient_address, status, type, timestamp, tx_id);
CREATE INDEX transactions_by_wallet_address ON transactions (wallet_id, recipient_address, status, type, timestamp, tx_id);
CREATE INDEX transactions_by_recipient ON transactions (org, recipient, status, type, timestamp, tx_id) WHERE recipient IS DISTINCT FROM recipient_address;
CREATE INDEX transactions_by_wallet_recipient ON transactions (wallet_id, recipient, status, type, timestamp, tx_id) WHERE recipient IS DISTINCT FROM recipient_address;
CREATE INDEX transactions_by_signature ON transactions (signature);

CREATE TABLE feed (
    position BIGSERIAL NOT NULL,
    event_id VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    type VARCHAR COLLATE "C" NOT NULL,
    timestamp BIGINT NOT NULL,
    wallet_id VARCHAR COLLATE "C",
    severity VARCHAR COLLATE "C" NOT NULL,
    summary VARCHAR COLLATE "C" NOT NULL,
    payload JSON NOT NULL,
    signature VARCHAR COLLATE "C",
    other_wallet_id VARCHAR COLLATE "C",
    PRIMARY KEY (position),
    UNIQUE (event_id)
);
CREATE INDEX feed_newest ON feed (org, timestamp, position);
CREATE INDEX feed_by_kind ON feed (org, type, severity, timestamp, position);
CREATE INDEX feed_by_wallet ON feed (wallet_id, timestamp, position);
CREATE INDEX feed_by_wallet_kind ON feed (wallet_id, type, severity, timestamp, position);
CREATE INDEX feed_by_other ON feed (other_wallet_id, timestamp, position) WHERE other_wallet_id <> wallet_id;
CREATE INDEX feed_by_other_kind ON feed (other_wallet_id, type, severity, timestamp, position) WHERE other_wallet_id <> wallet_id;
CREATE INDEX feed_by_signature ON feed (signature);
CREATE INDEX feed_alerting ON feed (org, position) WHERE severity <> 'info';

CREATE TABLE projection (
    name VARCHAR COLLATE "C" NOT NULL,
    position BIGINT NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE approvals (
    address VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    vault VARCHAR COLLATE "C" NOT NULL,
    recipient VARCHAR COLLATE "C" NOT NULL,
    amount BIGINT NOT NULL,
    purpose VARCHAR COLLATE "C" DEFAULT 'payment' NOT NULL,
    policy_version BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    payer VARCHAR COLLATE "C" NOT NULL,
    state VARCHAR COLLATE "C" NOT NULL,
    PRIMARY KEY (address)
);
CREATE INDEX approvals_by_vault ON approvals (vault, recipient, amount);

CREATE TABLE escrows (
    escrow_id VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    address VARCHAR COLLATE "C" NOT NULL,
    wallet_id VARCHAR COLLATE "C" NOT NULL,
    vault VARCHAR COLLATE "C" NOT NULL,
    receiver VARCHAR COLLATE "C" NOT NULL,
    to_wallet VARCHAR COLLATE "C",
    payer VARCHAR COLLATE "C" NOT NULL,
    policy VARCHAR COLLATE "C" NOT NULL,
    amount BIGINT NOT NULL,
    task_hash VARCHAR COLLATE "C" NOT NULL,
    output_commitment VARCHAR COLLATE "C",
    proof_kinds INTEGER NOT NULL,
    counter BIGINT NOT NULL,
    status VARCHAR COLLATE "C" NOT NULL,
    deadline BIGINT NOT NULL,
    due_at BIGINT,
    created_at BIGINT NOT NULL,
    tx_id VARCHAR COLLATE "C",
    signature VARCHAR COLLATE "C",
    disputed_at BIGINT,
    disputed_by VARCHAR COLLATE "C",
    reason_hash VARCHAR COLLATE "C",
    evidence_hash VARCHAR COLLATE "C",
    dispute_signature VARCHAR COLLATE "C",
    dispute_sequence BIGINT,
    released BIGINT,
    refunded BIGINT,
    output_hash VARCHAR COLLATE "C",
    proof_kind INTEGER,
    settled_at BIGINT,
    settlement_signature VARCHAR COLLATE "C",
    settlement_sequence BIGINT,
    receiver_owed BOOLEAN,
    vault_owed BOOLEAN,
    PRIMARY KEY (escrow_id),
    UNIQUE (address)
);
CREATE INDEX escrows_newest ON escrows (org, created_at, escrow_id);
CREATE INDEX escrows_by_status ON escrows (org, status, created_at, escrow_id);
CREATE INDEX escrows_by_wallet ON escrows (wallet_id, created_at, escrow_id);
CREATE INDEX escrows_by_receiver ON escrows (to_wallet, created_at, escrow_id);
CREATE INDEX escrows_by_wallet_status ON escrows (wallet_id, status, created_at, escrow_id);
CREATE INDEX escrows_by_receiver_status ON escrows (to_wallet, status, created_at, escrow_id);
CREATE INDEX escrows_by_transaction ON escrows (tx_id);
CREATE INDEX escrows_due ON escrows (due_at);

CREATE TABLE allowances (
    allowance_id VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    address VARCHAR COLLATE "C" NOT NULL,
    wallet_id VARCHAR COLLATE "C" NOT NULL,
    vault VARCHAR COLLATE "C" NOT NULL,
    policy VARCHAR COLLATE "C" NOT NULL,
    policy_version BIGINT,
    recipient VARCHAR COLLATE "C" NOT NULL,
    destination VARCHAR COLLATE "C" NOT NULL,
    delegate VARCHAR COLLATE "C" NOT NULL,
    tokens VARCHAR COLLATE "C" NOT NULL,
    payer VARCHAR COLLATE "C" NOT NULL,
    reference VARCHAR COLLATE "C" NOT NULL,
    amount BIGINT NOT NULL,
    counter BIGINT NOT NULL,
    sequence BIGINT,
    status VARCHAR COLLATE "C" NOT NULL,
    expires_at BIGINT NOT NULL,
    due_at BIGINT,
    created_at BIGINT NOT NULL,
    tx_id VARCHAR COLLATE "C",
    signature VARCHAR COLLATE "C",
    spent BIGINT,
    returned BIGINT,
    settled_at BIGINT,
    settlement_signature VARCHAR COLLATE "C",
    transfers JSON,
    PRIMARY KEY (allowance_id),
    UNIQUE (address)
);
CREATE INDEX allowances_by_wallet ON allowances (wallet_id, created_at, allowance_id);
CREATE INDEX allowances_by_wallet_status ON allowances (wallet_id, status, created_at, allowance_id);
CREATE INDEX allowances_by_transaction ON allowances (tx_id);
CREATE INDEX allowances_due ON allowances (due_at);

CREATE TABLE webhooks (
    webhook_id VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    url VARCHAR COLLATE "C" NOT NULL,
    events JSON NOT NULL,
    status VARCHAR COLLATE "C" NOT NULL,
    secret VARCHAR COLLATE "C" NOT NULL,
    old_secret VARCHAR COLLATE "C",
    old_secret_until BIGINT,
    position BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    created_under VARCHAR COLLATE "C",
    rotated_under VARCHAR COLLATE "C",
    PRIMARY KEY (webhook_id)
);
CREATE INDEX webhooks_newest ON webhooks (org, created_at, webhook_id);
CREATE INDEX webhooks_by_status ON webhooks (status);

CREATE TABLE webhook_deliveries (
    delivery_id VARCHAR COLLATE "C" NOT NULL,
    webhook_id VARCHAR COLLATE "C" NOT NULL,
    event_id VARCHAR COLLATE "C" NOT NULL,
    event VARCHAR COLLATE "C" NOT NULL,
    position BIGINT NOT NULL,
    body TEXT COLLATE "C" NOT NULL,
    status VARCHAR COLLATE "C" NOT NULL,
    attempts INTEGER NOT NULL,
    due_at BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (delivery_id)
);
CREATE INDEX webhook_deliveries_newest ON webhook_deliveries (webhook_id, position, delivery_id);
CREATE INDEX webhook_deliveries_by_status ON webhook_deliveries (webhook_id, status, position, delivery_id);
CREATE INDEX webhook_deliveries_by_round ON webhook_deliveries (webhook_id, status, attempts, position, delivery_id);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (webhook_id, status, due_at);

CREATE TABLE organisations (
    org VARCHAR COLLATE "C" NOT NULL,
    org_id VARCHAR COLLATE "C" NOT NULL,
    name VARCHAR COLLATE "C" NOT NULL,
    creator VARCHAR COLLATE "C" NOT NULL,
    mint VARCHAR COLLATE "C" NOT NULL,
    reserve VARCHAR COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (org),
    UNIQUE (org_id)
);

CREATE TABLE api_keys (
    key_id VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    role VARCHAR COLLATE "C" NOT NULL,
    wallet_id VARCHAR COLLATE "C",
    name VARCHAR COLLATE "C" NOT NULL,
    digest VARCHAR COLLATE "C" NOT NULL,
    hint VARCHAR COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    revoked_at BIGINT,
    last_used_at BIGINT,
    PRIMARY KEY (key_id),
    UNIQUE (digest)
);
CREATE INDEX ix_api_keys_org ON api_keys (org);

CREATE TABLE wallet_details (
    wallet_id VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    vault VARCHAR COLLATE "C" NOT NULL,
    agent_id VARCHAR COLLATE "C" NOT NULL,
    label VARCHAR COLLATE "C" NOT NULL,
    tags JSON NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (wallet_id),
    UNIQUE (org, agent_id),
    UNIQUE (vault)
);

CREATE TABLE policy_details (
    address VARCHAR COLLATE "C" NOT NULL,
    policy_id VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    name VARCHAR COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    x402_hosts JSON,
    PRIMARY KEY (address),
    UNIQUE (org, policy_id)
);

CREATE TABLE budget_details (
    address VARCHAR COLLATE "C" NOT NULL,
    budget_id VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    name VARCHAR COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (address),
    UNIQUE (org, budget_id)
);

CREATE TABLE policy_edits (
    id BIGSERIAL NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    policy_id VARCHAR COLLATE "C" NOT NULL,
    version BIGINT,
    changed_by VARCHAR COLLATE "C" NOT NULL,
    changes JSON NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX policy_edits_by_policy ON policy_edits (org, policy_id);

CREATE TABLE allowlists (
    allowlist VARCHAR COLLATE "C" NOT NULL,
    policy_id VARCHAR COLLATE "C" NOT NULL,
    entries JSON NOT NULL,
    PRIMARY KEY (allowlist)
);

CREATE TABLE domains (
    domain_hash VARCHAR COLLATE "C" NOT NULL,
    domain VARCHAR COLLATE "C" NOT NULL,
    PRIMARY KEY (domain_hash)
);

CREATE TABLE attempts (
    tx_id VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    wallet_id VARCHAR COLLATE "C",
    type VARCHAR COLLATE "C" NOT NULL,
    status VARCHAR COLLATE "C" NOT NULL,
    recipient VARCHAR COLLATE "C",
    recipient_address VARCHAR COLLATE "C",
    amount BIGINT NOT NULL,
    policy_id VARCHAR COLLATE "C",
    policy_triggered BOOLEAN NOT NULL,
    memo VARCHAR COLLATE "C",
    actor VARCHAR COLLATE "C",
    subject VARCHAR COLLATE "C",
    reference BYTEA,
    signature VARCHAR COLLATE "C",
    message_hash VARCHAR COLLATE "C",
    instruction_index INTEGER,
    inner_index INTEGER,
    raw BYTEA,
    last_valid_block_height BIGINT,
    attestation_hash VARCHAR COLLATE "C",
    violation JSON,
    error VARCHAR COLLATE "C",
    stopped_by VARCHAR COLLATE "C",
    slot BIGINT,
    created_at BIGINT NOT NULL,
    ended_at BIGINT,
    nonce_account VARCHAR COLLATE "C",
    nonce VARCHAR COLLATE "C",
    PRIMARY KEY (tx_id),
    UNIQUE (signature),
    UNIQUE (message_hash)
);
CREATE INDEX attempts_by_status ON attempts (status, created_at);
CREATE INDEX attempts_by_wallet ON attempts (wallet_id, created_at);

CREATE TABLE unsigned_transactions (
    tx_id VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    message_hash VARCHAR COLLATE "C" NOT NULL,
    authority VARCHAR COLLATE "C" NOT NULL,
    accounts JSON NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (tx_id),
    UNIQUE (message_hash)
);

CREATE TABLE brakes (
    scope VARCHAR COLLATE "C" NOT NULL,
    kind VARCHAR COLLATE "C" NOT NULL,
    node VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    actor VARCHAR COLLATE "C" NOT NULL,
    since BIGINT NOT NULL,
    PRIMARY KEY (scope, kind, node)
);

CREATE TABLE idempotency (
    org VARCHAR COLLATE "C" NOT NULL,
    key VARCHAR COLLATE "C" NOT NULL,
    method VARCHAR COLLATE "C" NOT NULL,
    path VARCHAR COLLATE "C" NOT NULL,
    body_hash VARCHAR COLLATE "C" NOT NULL,
    state VARCHAR COLLATE "C" NOT NULL,
    status_code INTEGER,
    response VARCHAR COLLATE "C",
    tx_id VARCHAR COLLATE "C",
    sealed_for VARCHAR COLLATE "C",
    node VARCHAR COLLATE "C",
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (org, key)
);
CREATE INDEX ix_idempotency_expires_at ON idempotency (expires_at);

CREATE TABLE escrow_details (
    escrow_id VARCHAR COLLATE "C" NOT NULL,
    task_description VARCHAR COLLATE "C",
    expected_output VARCHAR COLLATE "C",
    output_hash VARCHAR COLLATE "C",
    output_url VARCHAR COLLATE "C",
    dispute_reason VARCHAR COLLATE "C",
    disputed_by VARCHAR COLLATE "C",
    PRIMARY KEY (escrow_id)
);

CREATE TABLE setting_values (
    name VARCHAR COLLATE "C" NOT NULL,
    value VARCHAR COLLATE "C" NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE alert_mails (
    mail_id VARCHAR COLLATE "C" NOT NULL,
    event_id VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    type VARCHAR COLLATE "C" NOT NULL,
    recipient VARCHAR COLLATE "C" NOT NULL,
    subject VARCHAR COLLATE "C" NOT NULL,
    body TEXT COLLATE "C" NOT NULL,
    status VARCHAR COLLATE "C" NOT NULL,
    attempts INTEGER NOT NULL,
    due_at BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (mail_id)
);
CREATE INDEX alert_mails_due ON alert_mails (status, due_at);
CREATE INDEX alert_mails_counted ON alert_mails (org, type, recipient, created_at);

CREATE TABLE alert_rules (
    scope VARCHAR COLLATE "C" NOT NULL,
    type VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    enabled BOOLEAN NOT NULL,
    threshold BIGINT,
    emails JSON,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (scope, type)
);
CREATE INDEX alert_rules_by_type ON alert_rules (type, enabled);

CREATE TABLE alert_marks (
    wallet_id VARCHAR COLLATE "C" NOT NULL,
    type VARCHAR COLLATE "C" NOT NULL,
    event_id VARCHAR COLLATE "C" NOT NULL,
    marked_at BIGINT NOT NULL,
    PRIMARY KEY (wallet_id, type)
);
CREATE INDEX alert_marks_by_type ON alert_marks (type);

CREATE TABLE approval_requests (
    approval_id VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    wallet_id VARCHAR COLLATE "C" NOT NULL,
    address VARCHAR COLLATE "C" NOT NULL,
    recipient VARCHAR COLLATE "C" NOT NULL,
    recipient_address VARCHAR COLLATE "C" NOT NULL,
    amount BIGINT NOT NULL,
    purpose VARCHAR COLLATE "C" DEFAULT 'payment' NOT NULL,
    policy VARCHAR COLLATE "C" NOT NULL,
    policy_id VARCHAR COLLATE "C" NOT NULL,
    policy_version BIGINT NOT NULL,
    threshold BIGINT,
    requested_by VARCHAR COLLATE "C" NOT NULL,
    memo VARCHAR COLLATE "C",
    created_at BIGINT NOT NULL,
    rejected BOOLEAN NOT NULL,
    decided_by VARCHAR COLLATE "C",
    decided_at BIGINT,
    PRIMARY KEY (approval_id),
    UNIQUE (address)
);
CREATE INDEX approval_requests_newest ON approval_requests (org, created_at, approval_id);
CREATE INDEX approval_requests_by_wallet ON approval_requests (wallet_id, created_at, approval_id);
CREATE INDEX approval_requests_undecided ON approval_requests (created_at) WHERE decided_at IS NULL;
CREATE INDEX approval_requests_by_payment ON approval_requests (wallet_id, recipient_address, amount);

CREATE TABLE webhook_attempts (
    id BIGSERIAL NOT NULL,
    delivery_id VARCHAR COLLATE "C" NOT NULL,
    attempt INTEGER NOT NULL,
    started_at BIGINT NOT NULL,
    duration BIGINT NOT NULL,
    status_code INTEGER,
    error VARCHAR COLLATE "C",
    excerpt TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX webhook_attempts_by_delivery ON webhook_attempts (delivery_id, id);

CREATE TABLE exports (
    export_id VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    wallet_id VARCHAR COLLATE "C",
    format VARCHAR COLLATE "C" NOT NULL,
    start BIGINT,
    "end" BIGINT,
    status VARCHAR COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    estimated_at BIGINT NOT NULL,
    rows INTEGER,
    reason VARCHAR COLLATE "C",
    finished_at BIGINT,
    expires_at BIGINT,
    created_under VARCHAR COLLATE "C",
    PRIMARY KEY (export_id)
);
CREATE INDEX exports_by_status ON exports (status, created_at);
CREATE INDEX exports_by_end ON exports (status, expires_at);
CREATE INDEX exports_by_org ON exports (org, status);
CREATE INDEX exports_by_time ON exports (org, created_at, export_id);

CREATE TABLE made_keys (
    org VARCHAR COLLATE "C" NOT NULL,
    idempotency_key VARCHAR COLLATE "C" NOT NULL,
    key_id VARCHAR COLLATE "C" NOT NULL,
    PRIMARY KEY (org, idempotency_key)
);

CREATE TABLE topup_rules (
    wallet_id VARCHAR COLLATE "C" NOT NULL,
    enabled BOOLEAN NOT NULL,
    trigger_below BIGINT,
    topup_amount BIGINT,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (wallet_id)
);
CREATE INDEX topup_rules_enabled ON topup_rules (enabled);

CREATE TABLE wallet_tags (
    wallet_id VARCHAR COLLATE "C" NOT NULL,
    tag VARCHAR COLLATE "C" NOT NULL,
    PRIMARY KEY (wallet_id, tag),
    FOREIGN KEY(wallet_id) REFERENCES wallet_details (wallet_id) ON DELETE CASCADE
);

CREATE TABLE session_grants (
    wallet_id VARCHAR COLLATE "C" NOT NULL,
    session_authority VARCHAR COLLATE "C" NOT NULL,
    granted_until BIGINT NOT NULL,
    PRIMARY KEY (wallet_id, session_authority)
);

CREATE TABLE differences (
    address VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    subject VARCHAR COLLATE "C" NOT NULL,
    wallet_id VARCHAR COLLATE "C",
    escrow_id VARCHAR COLLATE "C",
    found JSON NOT NULL,
    since BIGINT NOT NULL,
    PRIMARY KEY (address)
);

CREATE TABLE audit_entries (
    log VARCHAR COLLATE "C" NOT NULL,
    number BIGINT NOT NULL,
    timestamp BIGINT NOT NULL,
    actor VARCHAR COLLATE "C" NOT NULL,
    action VARCHAR COLLATE "C" NOT NULL,
    object VARCHAR COLLATE "C",
    address VARCHAR COLLATE "C",
    request_id VARCHAR COLLATE "C",
    details JSON NOT NULL,
    hash VARCHAR COLLATE "C" NOT NULL,
    PRIMARY KEY (log, number)
);
CREATE INDEX audit_entries_by_action ON audit_entries (log, action, number, timestamp);
CREATE INDEX audit_entries_by_actor ON audit_entries (log, actor, number, timestamp);
CREATE INDEX audit_entries_by_object ON audit_entries (log, object, number, timestamp);

CREATE TABLE audit_heads (
    log VARCHAR COLLATE "C" NOT NULL,
    number BIGINT NOT NULL,
    hash VARCHAR COLLATE "C" NOT NULL,
    published_at BIGINT NOT NULL,
    PRIMARY KEY (log)
);

CREATE TABLE x402_payloads (
    tx_id VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    wallet_id VARCHAR COLLATE "C" NOT NULL,
    url VARCHAR COLLATE "C" NOT NULL,
    host VARCHAR COLLATE "C" NOT NULL,
    scheme VARCHAR COLLATE "C" NOT NULL,
    network VARCHAR COLLATE "C" NOT NULL,
    pay_to VARCHAR COLLATE "C" NOT NULL,
    facilitator VARCHAR COLLATE "C" NOT NULL,
    version INTEGER NOT NULL,
    lane VARCHAR COLLATE "C" NOT NULL,
    header VARCHAR COLLATE "C" NOT NULL,
    resource_status INTEGER,
    fetched BOOLEAN NOT NULL,
    last_valid_block_height BIGINT,
    signature VARCHAR COLLATE "C",
    slot BIGINT,
    created_at BIGINT NOT NULL,
    closed_at BIGINT,
    PRIMARY KEY (tx_id)
);
CREATE INDEX x402_payloads_by_host ON x402_payloads (org, host, created_at, tx_id);
CREATE INDEX x402_payloads_by_org ON x402_payloads (org, created_at, tx_id);
CREATE INDEX x402_payloads_by_wallet ON x402_payloads (wallet_id, created_at, tx_id);
CREATE INDEX x402_payloads_by_wallet_host ON x402_payloads (wallet_id, host, created_at, tx_id);
CREATE INDEX x402_payloads_open ON x402_payloads (closed_at, created_at);

CREATE TABLE x402_facilitators (
    org VARCHAR COLLATE "C" NOT NULL,
    origin VARCHAR COLLATE "C" NOT NULL,
    fee_payer VARCHAR COLLATE "C" NOT NULL,
    accepts BOOLEAN NOT NULL,
    checked_at BIGINT NOT NULL,
    PRIMARY KEY (org, origin, fee_payer)
);

CREATE TABLE people (
    person_id VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    name VARCHAR COLLATE "C" NOT NULL,
    role VARCHAR COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    removed_at BIGINT,
    PRIMARY KEY (person_id)
);
CREATE INDEX people_by_org ON people (org, created_at);

CREATE TABLE passkeys (
    credential_id VARCHAR COLLATE "C" NOT NULL,
    person_id VARCHAR COLLATE "C" NOT NULL,
    public_key BYTEA NOT NULL,
    sign_count BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    last_used_at BIGINT,
    PRIMARY KEY (credential_id)
);
CREATE INDEX ix_passkeys_person_id ON passkeys (person_id);

CREATE TABLE identities (
    issuer VARCHAR COLLATE "C" NOT NULL,
    subject VARCHAR COLLATE "C" NOT NULL,
    person_id VARCHAR COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    last_used_at BIGINT,
    PRIMARY KEY (issuer, subject)
);
CREATE INDEX ix_identities_person_id ON identities (person_id);

CREATE TABLE browser_sessions (
    session_id VARCHAR COLLATE "C" NOT NULL,
    digest VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    actor VARCHAR COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    ended_at BIGINT,
    stepped_up_at BIGINT,
    address VARCHAR COLLATE "C",
    user_agent VARCHAR COLLATE "C" NOT NULL,
    PRIMARY KEY (session_id),
    UNIQUE (digest)
);
CREATE INDEX browser_sessions_by_actor ON browser_sessions (org, actor, created_at);

CREATE TABLE challenges (
    challenge VARCHAR COLLATE "C" NOT NULL,
    holder VARCHAR COLLATE "C" NOT NULL,
    purpose VARCHAR COLLATE "C" NOT NULL,
    person_id VARCHAR COLLATE "C",
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (challenge)
);
CREATE INDEX ix_challenges_expires_at ON challenges (expires_at);

CREATE TABLE openid_requests (
    state VARCHAR COLLATE "C" NOT NULL,
    holder VARCHAR COLLATE "C" NOT NULL,
    purpose VARCHAR COLLATE "C" NOT NULL,
    nonce VARCHAR COLLATE "C" NOT NULL,
    person_id VARCHAR COLLATE "C",
    invitation VARCHAR COLLATE "C",
    name VARCHAR COLLATE "C",
    started_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (state)
);
CREATE INDEX ix_openid_requests_expires_at ON openid_requests (expires_at);

CREATE TABLE invitations (
    invitation_id VARCHAR COLLATE "C" NOT NULL,
    digest VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    name VARCHAR COLLATE "C" NOT NULL,
    role VARCHAR COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    used_at BIGINT,
    created_under VARCHAR COLLATE "C",
    PRIMARY KEY (invitation_id),
    UNIQUE (digest)
);
CREATE INDEX ix_invitations_org ON invitations (org);

CREATE TABLE feed_readers (
    org VARCHAR COLLATE "C" NOT NULL,
    actor VARCHAR COLLATE "C" NOT NULL,
    position BIGINT NOT NULL,
    PRIMARY KEY (org, actor)
);

CREATE TABLE claims (
    kind VARCHAR COLLATE "C" NOT NULL,
    id VARCHAR COLLATE "C" NOT NULL,
    node VARCHAR COLLATE "C" NOT NULL,
    PRIMARY KEY (kind, id)
);

CREATE TABLE export_chunks (
    export_id VARCHAR COLLATE "C" NOT NULL,
    number INTEGER NOT NULL,
    data BYTEA NOT NULL,
    PRIMARY KEY (export_id, number)
);

CREATE TABLE leases (
    name VARCHAR COLLATE "C" NOT NULL,
    holder VARCHAR COLLATE "C" NOT NULL,
    fencing BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE request_log (
    request_id VARCHAR COLLATE "C" NOT NULL,
    org VARCHAR COLLATE "C" NOT NULL,
    key_id VARCHAR COLLATE "C" NOT NULL,
    timestamp BIGINT NOT NULL,
    method VARCHAR COLLATE "C" NOT NULL,
    path VARCHAR COLLATE "C" NOT NULL,
    status INTEGER NOT NULL,
    code VARCHAR COLLATE "C",
    duration_ms INTEGER NOT NULL,
    wallet_id VARCHAR COLLATE "C",
    PRIMARY KEY (request_id)
);
CREATE INDEX request_log_by_time ON request_log (org, timestamp, request_id);
CREATE INDEX request_log_by_key ON request_log (org, key_id, timestamp, request_id);
CREATE INDEX request_log_by_wallet ON request_log (org, wallet_id, timestamp, request_id);

CREATE TABLE schema_versions (
    revision VARCHAR COLLATE "C" NOT NULL,
    oldest_code VARCHAR COLLATE "C" NOT NULL,
    PRIMARY KEY (revision)
);

CREATE TABLE chain_transactions (
    signature TEXT COLLATE "C" PRIMARY KEY,
    slot BIGINT NOT NULL,
    block_time BIGINT NOT NULL,
    fee_payer TEXT COLLATE "C" NOT NULL,
    message_hash TEXT COLLATE "C" NOT NULL,
    finalized BIGINT NOT NULL DEFAULT 0
);

CREATE TABLE chain_events (
    id BIGSERIAL PRIMARY KEY,
    signature TEXT COLLATE "C" NOT NULL,
    instruction BIGINT NOT NULL,
    "inner" BIGINT NOT NULL,
    slot BIGINT NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    org TEXT COLLATE "C",
    data TEXT COLLATE "C" NOT NULL,
    UNIQUE (signature, instruction, "inner")
);

CREATE TABLE chain_streams (
    stream TEXT COLLATE "C" PRIMARY KEY,
    last BIGINT NOT NULL,
    count BIGINT NOT NULL
);

CREATE TABLE chain_cursors (
    name TEXT COLLATE "C" PRIMARY KEY,
    signature TEXT COLLATE "C" NOT NULL
);

CREATE TABLE chain_holes (
    after TEXT COLLATE "C" PRIMARY KEY,
    after_slot BIGINT NOT NULL,
    before_slot BIGINT NOT NULL
);

CREATE TABLE chain_token_accounts (
    address TEXT COLLATE "C" PRIMARY KEY,
    org TEXT COLLATE "C" NOT NULL,
    vault TEXT COLLATE "C",
    balance BIGINT,
    slot BIGINT NOT NULL,
    suspect BIGINT NOT NULL DEFAULT 0
);

CREATE TABLE chain_allowances (
    address TEXT COLLATE "C" PRIMARY KEY,
    tokens TEXT COLLATE "C" NOT NULL,
    granted TEXT COLLATE "C" NOT NULL
);

CREATE TABLE chain_unread_allowances (
    signature TEXT COLLATE "C" NOT NULL,
    instruction BIGINT NOT NULL,
    "inner" BIGINT NOT NULL,
    PRIMARY KEY (signature, instruction, "inner")
);
CREATE INDEX chain_transactions_to_finalize ON chain_transactions (slot, signature) WHERE finalized = 0;
CREATE INDEX chain_transactions_final ON chain_transactions (slot) WHERE finalized = 1;
CREATE INDEX chain_token_accounts_by_vault ON chain_token_accounts (vault);
CREATE INDEX chain_token_accounts_by_org ON chain_token_accounts (org);
CREATE INDEX chain_allowances_by_tokens ON chain_allowances (tokens);
CREATE INDEX chain_token_accounts_suspect ON chain_token_accounts (address) WHERE suspect = 1;
CREATE INDEX chain_transactions_by_message ON chain_transactions (message_hash);

CREATE TABLE alembic_version (
    version_num VARCHAR(32) COLLATE "C" NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);

INSERT INTO alembic_version VALUES ('0001');
INSERT INTO schema_versions VALUES ('0001', '0001');
