CREATE TABLE reserves (
    org VARCHAR NOT NULL,
    balance BIGINT NOT NULL,
    slot BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    authority VARCHAR NOT NULL,
    operator VARCHAR NOT NULL,
    arbiter VARCHAR NOT NULL,
    verifier VARCHAR NOT NULL,
    paused BOOLEAN NOT NULL,
    authority_attaches BOOLEAN NOT NULL,
    PRIMARY KEY (org)
);

CREATE TABLE wallets (
    wallet_id VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    vault VARCHAR NOT NULL,
    tokens VARCHAR NOT NULL,
    policy VARCHAR NOT NULL,
    budget VARCHAR,
    agent_hash VARCHAR NOT NULL,
    session_authority VARCHAR,
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
    address VARCHAR NOT NULL,
    policy_id VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    "key" BLOB NOT NULL,
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
    allowlist VARCHAR,
    version BIGINT NOT NULL,
    immutable BOOLEAN NOT NULL,
    closed BOOLEAN NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (address),
    UNIQUE (org, policy_id)
);

CREATE TABLE budgets (
    address VARCHAR NOT NULL,
    budget_id VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    "key" BLOB NOT NULL,
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
    address VARCHAR NOT NULL,
    version BIGINT NOT NULL,
    changes JSON NOT NULL,
    timestamp BIGINT NOT NULL,
    signature VARCHAR NOT NULL,
    PRIMARY KEY (address, version)
);

CREATE TABLE recipients (
    org VARCHAR NOT NULL,
    address VARCHAR NOT NULL,
    domain_hash VARCHAR,
    category INTEGER NOT NULL,
    effective_at BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (org, address)
);
CREATE INDEX recipients_by_domain ON recipients (org, domain_hash);
CREATE INDEX recipients_newest ON recipients (org, updated_at, address);

CREATE TABLE transactions (
    tx_id VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    wallet_id VARCHAR NOT NULL,
    type VARCHAR NOT NULL,
    recipient VARCHAR,
    recipient_address VARCHAR,
    amount BIGINT NOT NULL,
    status VARCHAR NOT NULL,
    signature VARCHAR,
    instruction_index INTEGER,
    inner_index INTEGER,
    slot BIGINT,
    policy_id VARCHAR,
    policy_triggered BOOLEAN NOT NULL,
    memo VARCHAR,
    attestation_hash VARCHAR,
    violation JSON,
    error VARCHAR,
    timestamp BIGINT NOT NULL,
    PRIMARY KEY (tx_id)
);
CREATE INDEX transactions_newest ON transactions (org, timestamp, tx_id);
CREATE INDEX transactions_by_wallet ON transactions (wallet_id, timestamp, tx_id);
CREATE INDEX transactions_by_kind ON transactions (org, status, type, timestamp, tx_id, amount);
CREATE INDEX transactions_by_wallet_kind ON transactions (wallet_id, status, type, timestamp, tx_id, amount);
CREATE INDEX transactions_by_address ON transactions (org, recipient_address, status, type, timestamp, tx_id);
CREATE INDEX transactions_by_wallet_address ON transactions (wallet_id, recipient_address, status, type, timestamp, tx_id);
CREATE INDEX transactions_by_recipient ON transactions (org, recipient, status, type, timestamp, tx_id)
    WHERE recipient IS NOT recipient_address;
CREATE INDEX transactions_by_wallet_recipient ON transactions (wallet_id, recipient, status, type, timestamp, tx_id)
    WHERE recipient IS NOT recipient_address;
CREATE INDEX transactions_by_signature ON transactions (signature);

CREATE TABLE feed (
    position INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    event_id VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    type VARCHAR NOT NULL,
    timestamp BIGINT NOT NULL,
    wallet_id VARCHAR,
    severity VARCHAR NOT NULL,
    summary VARCHAR NOT NULL,
    payload JSON NOT NULL,
    signature VARCHAR,
    other_wallet_id VARCHAR,
    UNIQUE (event_id)
);
CREATE INDEX feed_newest ON feed (org, timestamp, position);
CREATE INDEX feed_by_kind ON feed (org, type, severity, timestamp, position);
CREATE INDEX feed_by_wallet ON feed (wallet_id, timestamp, position);
CREATE INDEX feed_by_wallet_kind ON feed (wallet_id, type, severity, timestamp, position);
CREATE INDEX feed_by_other ON feed (other_wallet_id, timestamp, position)
    WHERE other_wallet_id <> wallet_id;
CREATE INDEX feed_by_other_kind ON feed (other_wallet_id, type, severity, timestamp, position)
    WHERE other_wallet_id <> wallet_id;
CREATE INDEX feed_by_signature ON feed (signature);
CREATE INDEX feed_alerting ON feed (org, position)
    WHERE severity <> 'info';

CREATE TABLE projection (
    name VARCHAR NOT NULL,
    position BIGINT NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE approvals (
    address VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    vault VARCHAR NOT NULL,
    recipient VARCHAR NOT NULL,
    amount BIGINT NOT NULL,
    purpose VARCHAR DEFAULT 'payment' NOT NULL,
    policy_version BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    payer VARCHAR NOT NULL,
    state VARCHAR NOT NULL,
    PRIMARY KEY (address)
);
CREATE INDEX approvals_by_vault ON approvals (vault, recipient, amount);

CREATE TABLE escrows (
    escrow_id VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    address VARCHAR NOT NULL,
    wallet_id VARCHAR NOT NULL,
    vault VARCHAR NOT NULL,
    receiver VARCHAR NOT NULL,
    to_wallet VARCHAR,
    payer VARCHAR NOT NULL,
    policy VARCHAR NOT NULL,
    amount BIGINT NOT NULL,
    task_hash VARCHAR NOT NULL,
    output_commitment VARCHAR,
    proof_kinds INTEGER NOT NULL,
    counter BIGINT NOT NULL,
    status VARCHAR NOT NULL,
    deadline BIGINT NOT NULL,
    due_at BIGINT,
    created_at BIGINT NOT NULL,
    tx_id VARCHAR,
    signature VARCHAR,
    disputed_at BIGINT,
    disputed_by VARCHAR,
    reason_hash VARCHAR,
    evidence_hash VARCHAR,
    dispute_signature VARCHAR,
    dispute_sequence BIGINT,
    released BIGINT,
    refunded BIGINT,
    output_hash VARCHAR,
    proof_kind INTEGER,
    settled_at BIGINT,
    settlement_signature VARCHAR,
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
    allowance_id VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    address VARCHAR NOT NULL,
    wallet_id VARCHAR NOT NULL,
    vault VARCHAR NOT NULL,
    policy VARCHAR NOT NULL,
    policy_version BIGINT,
    recipient VARCHAR NOT NULL,
    destination VARCHAR NOT NULL,
    delegate VARCHAR NOT NULL,
    tokens VARCHAR NOT NULL,
    payer VARCHAR NOT NULL,
    reference VARCHAR NOT NULL,
    amount BIGINT NOT NULL,
    counter BIGINT NOT NULL,
    sequence BIGINT,
    status VARCHAR NOT NULL,
    expires_at BIGINT NOT NULL,
    due_at BIGINT,
    created_at BIGINT NOT NULL,
    tx_id VARCHAR,
    signature VARCHAR,
    spent BIGINT,
    returned BIGINT,
    settled_at BIGINT,
    settlement_signature VARCHAR,
    transfers JSON,
    PRIMARY KEY (allowance_id),
    UNIQUE (address)
);
CREATE INDEX allowances_by_wallet ON allowances (wallet_id, created_at, allowance_id);
CREATE INDEX allowances_by_wallet_status ON allowances (wallet_id, status, created_at, allowance_id);
CREATE INDEX allowances_by_transaction ON allowances (tx_id);
CREATE INDEX allowances_due ON allowances (due_at);

CREATE TABLE webhooks (
    webhook_id VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    url VARCHAR NOT NULL,
    events JSON NOT NULL,
    status VARCHAR NOT NULL,
    secret VARCHAR NOT NULL,
    old_secret VARCHAR,
    old_secret_until BIGINT,
    position BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    created_under VARCHAR,
    rotated_under VARCHAR,
    PRIMARY KEY (webhook_id)
);
CREATE INDEX webhooks_newest ON webhooks (org, created_at, webhook_id);
CREATE INDEX webhooks_by_status ON webhooks (status);

CREATE TABLE webhook_deliveries (
    delivery_id VARCHAR NOT NULL,
    webhook_id VARCHAR NOT NULL,
    event_id VARCHAR NOT NULL,
    event VARCHAR NOT NULL,
    position BIGINT NOT NULL,
    body TEXT NOT NULL,
    status VARCHAR NOT NULL,
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
    org VARCHAR NOT NULL,
    org_id VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    creator VARCHAR NOT NULL,
    mint VARCHAR NOT NULL,
    reserve VARCHAR NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (org),
    UNIQUE (org_id)
);

CREATE TABLE api_keys (
    key_id VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    role VARCHAR NOT NULL,
    wallet_id VARCHAR,
    name VARCHAR NOT NULL,
    digest VARCHAR NOT NULL,
    hint VARCHAR NOT NULL,
    created_at BIGINT NOT NULL,
    revoked_at BIGINT,
    last_used_at BIGINT,
    PRIMARY KEY (key_id),
    UNIQUE (digest)
);
CREATE INDEX ix_api_keys_org ON api_keys (org);

CREATE TABLE wallet_details (
    wallet_id VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    vault VARCHAR NOT NULL,
    agent_id VARCHAR NOT NULL,
    label VARCHAR NOT NULL,
    tags JSON NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (wallet_id),
    UNIQUE (org, agent_id),
    UNIQUE (vault)
);

CREATE TABLE policy_details (
    address VARCHAR NOT NULL,
    policy_id VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    created_at BIGINT NOT NULL,
    x402_hosts JSON,
    PRIMARY KEY (address),
    UNIQUE (org, policy_id)
);

CREATE TABLE budget_details (
    address VARCHAR NOT NULL,
    budget_id VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (address),
    UNIQUE (org, budget_id)
);

CREATE TABLE policy_edits (
    id INTEGER NOT NULL,
    org VARCHAR NOT NULL,
    policy_id VARCHAR NOT NULL,
    version BIGINT,
    changed_by VARCHAR NOT NULL,
    changes JSON NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX policy_edits_by_policy ON policy_edits (org, policy_id);

CREATE TABLE allowlists (
    allowlist VARCHAR NOT NULL,
    policy_id VARCHAR NOT NULL,
    entries JSON NOT NULL,
    PRIMARY KEY (allowlist)
);

CREATE TABLE domains (
    domain_hash VARCHAR NOT NULL,
    domain VARCHAR NOT NULL,
    PRIMARY KEY (domain_hash)
);

CREATE TABLE attempts (
    tx_id VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    wallet_id VARCHAR,
    type VARCHAR NOT NULL,
    status VARCHAR NOT NULL,
    recipient VARCHAR,
    recipient_address VARCHAR,
    amount BIGINT NOT NULL,
    policy_id VARCHAR,
    policy_triggered BOOLEAN NOT NULL,
    memo VARCHAR,
    actor VARCHAR,
    subject VARCHAR,
    reference BLOB,
    signature VARCHAR,
    message_hash VARCHAR,
    instruction_index INTEGER,
    inner_index INTEGER,
    raw BLOB,
    last_valid_block_height BIGINT,
    attestation_hash VARCHAR,
    violation JSON,
    error VARCHAR,
    stopped_by VARCHAR,
    slot BIGINT,
    created_at BIGINT NOT NULL,
    ended_at BIGINT,
    nonce_account VARCHAR,
    nonce VARCHAR,
    PRIMARY KEY (tx_id),
    UNIQUE (signature),
    UNIQUE (message_hash)
);
CREATE INDEX attempts_by_status ON attempts (status, created_at);
CREATE INDEX attempts_by_wallet ON attempts (wallet_id, created_at);

CREATE TABLE unsigned_transactions (
    tx_id VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    message_hash VARCHAR NOT NULL,
    authority VARCHAR NOT NULL,
    accounts JSON NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (tx_id),
    UNIQUE (message_hash)
);

CREATE TABLE brakes (
    scope VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,
    node VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    actor VARCHAR NOT NULL,
    since BIGINT NOT NULL,
    PRIMARY KEY (scope, kind, node)
);

CREATE TABLE idempotency (
    org VARCHAR NOT NULL,
    "key" VARCHAR NOT NULL,
    method VARCHAR NOT NULL,
    path VARCHAR NOT NULL,
    body_hash VARCHAR NOT NULL,
    state VARCHAR NOT NULL,
    status_code INTEGER,
    response VARCHAR,
    tx_id VARCHAR,
    sealed_for VARCHAR,
    node VARCHAR,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (org, "key")
);
CREATE INDEX ix_idempotency_expires_at ON idempotency (expires_at);

CREATE TABLE escrow_details (
    escrow_id VARCHAR NOT NULL,
    task_description VARCHAR,
    expected_output VARCHAR,
    output_hash VARCHAR,
    output_url VARCHAR,
    dispute_reason VARCHAR,
    disputed_by VARCHAR,
    PRIMARY KEY (escrow_id)
);

CREATE TABLE setting_values (
    name VARCHAR NOT NULL,
    value VARCHAR NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE alert_mails (
    mail_id VARCHAR NOT NULL,
    event_id VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    type VARCHAR NOT NULL,
    recipient VARCHAR NOT NULL,
    subject VARCHAR NOT NULL,
    body TEXT NOT NULL,
    status VARCHAR NOT NULL,
    attempts INTEGER NOT NULL,
    due_at BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (mail_id)
);
CREATE INDEX alert_mails_due ON alert_mails (status, due_at);
CREATE INDEX alert_mails_counted ON alert_mails (org, type, recipient, created_at);

CREATE TABLE alert_rules (
    scope VARCHAR NOT NULL,
    type VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    enabled BOOLEAN NOT NULL,
    threshold BIGINT,
    emails JSON,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (scope, type)
);
CREATE INDEX alert_rules_by_type ON alert_rules (type, enabled);

CREATE TABLE alert_marks (
    wallet_id VARCHAR NOT NULL,
    type VARCHAR NOT NULL,
    event_id VARCHAR NOT NULL,
    marked_at BIGINT NOT NULL,
    PRIMARY KEY (wallet_id, type)
);
CREATE INDEX alert_marks_by_type ON alert_marks (type);

CREATE TABLE approval_requests (
    approval_id VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    wallet_id VARCHAR NOT NULL,
    address VARCHAR NOT NULL,
    recipient VARCHAR NOT NULL,
    recipient_address VARCHAR NOT NULL,
    amount BIGINT NOT NULL,
    purpose VARCHAR DEFAULT 'payment' NOT NULL,
    policy VARCHAR NOT NULL,
    policy_id VARCHAR NOT NULL,
    policy_version BIGINT NOT NULL,
    threshold BIGINT,
    requested_by VARCHAR NOT NULL,
    memo VARCHAR,
    created_at BIGINT NOT NULL,
    rejected BOOLEAN NOT NULL,
    decided_by VARCHAR,
    decided_at BIGINT,
    PRIMARY KEY (approval_id),
    UNIQUE (address)
);
CREATE INDEX approval_requests_newest ON approval_requests (org, created_at, approval_id);
CREATE INDEX approval_requests_by_wallet ON approval_requests (wallet_id, created_at, approval_id);
CREATE INDEX approval_requests_undecided ON approval_requests (created_at)
    WHERE decided_at IS NULL;
CREATE INDEX approval_requests_by_payment ON approval_requests (wallet_id, recipient_address, amount);

CREATE TABLE webhook_attempts (
    id INTEGER NOT NULL,
    delivery_id VARCHAR NOT NULL,
    attempt INTEGER NOT NULL,
    started_at BIGINT NOT NULL,
    duration BIGINT NOT NULL,
    status_code INTEGER,
    error VARCHAR,
    excerpt TEXT NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX webhook_attempts_by_delivery ON webhook_attempts (delivery_id, id);

CREATE TABLE exports (
    export_id VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    wallet_id VARCHAR,
    format VARCHAR NOT NULL,
    start BIGINT,
    "end" BIGINT,
    status VARCHAR NOT NULL,
    created_at BIGINT NOT NULL,
    estimated_at BIGINT NOT NULL,
    rows INTEGER,
    reason VARCHAR,
    finished_at BIGINT,
    expires_at BIGINT,
    created_under VARCHAR,
    PRIMARY KEY (export_id)
);
CREATE INDEX exports_by_status ON exports (status, created_at);
CREATE INDEX exports_by_end ON exports (status, expires_at);
CREATE INDEX exports_by_org ON exports (org, status);
CREATE INDEX exports_by_time ON exports (org, created_at, export_id);

CREATE TABLE made_keys (
    org VARCHAR NOT NULL,
    idempotency_key VARCHAR NOT NULL,
    key_id VARCHAR NOT NULL,
    PRIMARY KEY (org, idempotency_key)
);

CREATE TABLE topup_rules (
    wallet_id VARCHAR NOT NULL,
    enabled BOOLEAN NOT NULL,
    trigger_below BIGINT,
    topup_amount BIGINT,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (wallet_id)
);
CREATE INDEX topup_rules_enabled ON topup_rules (enabled);

CREATE TABLE wallet_tags (
    wallet_id VARCHAR NOT NULL,
    tag VARCHAR NOT NULL,
    PRIMARY KEY (wallet_id, tag),
    FOREIGN KEY(wallet_id) REFERENCES wallet_details (wallet_id) ON DELETE CASCADE
);

CREATE TABLE session_grants (
    wallet_id VARCHAR NOT NULL,
    session_authority VARCHAR NOT NULL,
    granted_until BIGINT NOT NULL,
    PRIMARY KEY (wallet_id, session_authority)
);

CREATE TABLE differences (
    address VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    subject VARCHAR NOT NULL,
    wallet_id VARCHAR,
    escrow_id VARCHAR,
    found JSON NOT NULL,
    since BIGINT NOT NULL,
    PRIMARY KEY (address)
);

CREATE TABLE audit_entries (
    log VARCHAR NOT NULL,
    number BIGINT NOT NULL,
    timestamp BIGINT NOT NULL,
    actor VARCHAR NOT NULL,
    action VARCHAR NOT NULL,
    object VARCHAR,
    address VARCHAR,
    request_id VARCHAR,
    details JSON NOT NULL,
    hash VARCHAR NOT NULL,
    PRIMARY KEY (log, number)
);
CREATE INDEX audit_entries_by_action ON audit_entries (log, action, number, timestamp);
CREATE INDEX audit_entries_by_actor ON audit_entries (log, actor, number, timestamp);
CREATE INDEX audit_entries_by_object ON audit_entries (log, object, number, timestamp);

CREATE TABLE audit_heads (
    log VARCHAR NOT NULL,
    number BIGINT NOT NULL,
    hash VARCHAR NOT NULL,
    published_at BIGINT NOT NULL,
    PRIMARY KEY (log)
);

CREATE TABLE x402_payloads (
    tx_id VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    wallet_id VARCHAR NOT NULL,
    url VARCHAR NOT NULL,
    host VARCHAR NOT NULL,
    scheme VARCHAR NOT NULL,
    network VARCHAR NOT NULL,
    pay_to VARCHAR NOT NULL,
    facilitator VARCHAR NOT NULL,
    version INTEGER NOT NULL,
    lane VARCHAR NOT NULL,
    header VARCHAR NOT NULL,
    resource_status INTEGER,
    fetched BOOLEAN NOT NULL,
    last_valid_block_height BIGINT,
    signature VARCHAR,
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
    org VARCHAR NOT NULL,
    origin VARCHAR NOT NULL,
    fee_payer VARCHAR NOT NULL,
    accepts BOOLEAN NOT NULL,
    checked_at BIGINT NOT NULL,
    PRIMARY KEY (org, origin, fee_payer)
);

CREATE TABLE people (
    person_id VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    role VARCHAR NOT NULL,
    created_at BIGINT NOT NULL,
    removed_at BIGINT,
    PRIMARY KEY (person_id)
);
CREATE INDEX people_by_org ON people (org, created_at);

CREATE TABLE passkeys (
    credential_id VARCHAR NOT NULL,
    person_id VARCHAR NOT NULL,
    public_key BLOB NOT NULL,
    sign_count BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    last_used_at BIGINT,
    PRIMARY KEY (credential_id)
);
CREATE INDEX ix_passkeys_person_id ON passkeys (person_id);

CREATE TABLE identities (
    issuer VARCHAR NOT NULL,
    subject VARCHAR NOT NULL,
    person_id VARCHAR NOT NULL,
    created_at BIGINT NOT NULL,
    last_used_at BIGINT,
    PRIMARY KEY (issuer, subject)
);
CREATE INDEX ix_identities_person_id ON identities (person_id);

CREATE TABLE browser_sessions (
    session_id VARCHAR NOT NULL,
    digest VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    actor VARCHAR NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    ended_at BIGINT,
    stepped_up_at BIGINT,
    address VARCHAR,
    user_agent VARCHAR NOT NULL,
    PRIMARY KEY (session_id),
    UNIQUE (digest)
);
CREATE INDEX browser_sessions_by_actor ON browser_sessions (org, actor, created_at);

CREATE TABLE challenges (
    challenge VARCHAR NOT NULL,
    holder VARCHAR NOT NULL,
    purpose VARCHAR NOT NULL,
    person_id VARCHAR,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (challenge)
);
CREATE INDEX ix_challenges_expires_at ON challenges (expires_at);

CREATE TABLE openid_requests (
    state VARCHAR NOT NULL,
    holder VARCHAR NOT NULL,
    purpose VARCHAR NOT NULL,
    nonce VARCHAR NOT NULL,
    person_id VARCHAR,
    invitation VARCHAR,
    name VARCHAR,
    started_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (state)
);
CREATE INDEX ix_openid_requests_expires_at ON openid_requests (expires_at);

CREATE TABLE invitations (
    invitation_id VARCHAR NOT NULL,
    digest VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    role VARCHAR NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    used_at BIGINT,
    created_under VARCHAR,
    PRIMARY KEY (invitation_id),
    UNIQUE (digest)
);
CREATE INDEX ix_invitations_org ON invitations (org);

CREATE TABLE feed_readers (
    org VARCHAR NOT NULL,
    actor VARCHAR NOT NULL,
    position BIGINT NOT NULL,
    PRIMARY KEY (org, actor)
);

CREATE TABLE claims (
    kind VARCHAR NOT NULL,
    id VARCHAR NOT NULL,
    node VARCHAR NOT NULL,
    PRIMARY KEY (kind, id)
);

CREATE TABLE export_chunks (
    export_id VARCHAR NOT NULL,
    number INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (export_id, number)
);

CREATE TABLE leases (
    name VARCHAR NOT NULL,
    holder VARCHAR NOT NULL,
    fencing BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE request_log (
    request_id VARCHAR NOT NULL,
    org VARCHAR NOT NULL,
    key_id VARCHAR NOT NULL,
    timestamp BIGINT NOT NULL,
    method VARCHAR NOT NULL,
    path VARCHAR NOT NULL,
    status INTEGER NOT NULL,
    code VARCHAR,
    duration_ms INTEGER NOT NULL,
    wallet_id VARCHAR,
    PRIMARY KEY (request_id)
);
CREATE INDEX request_log_by_time ON request_log (org, timestamp, request_id);
CREATE INDEX request_log_by_key ON request_log (org, key_id, timestamp, request_id);
CREATE INDEX request_log_by_wallet ON request_log (org, wallet_id, timestamp, request_id);

CREATE TABLE schema_versions (
    revision VARCHAR NOT NULL,
    oldest_code VARCHAR NOT NULL,
    PRIMARY KEY (revision)
);

CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);

INSERT INTO alembic_version VALUES ('0001');
INSERT INTO schema_versions VALUES ('0001', '0001');
